"""One call before anything is derived: a target that cannot run at all is a wrong request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attnprof.errors import RequestError
from attnprof.trace.derivation import told as sizes_told
from attnprof.trace.loading import told
from attnprof.trace.runs import record
from attnprof.trace.symbols import hints_for
from attnprof.trace.target import Target

#: Sizes that divide what code likes to be divided.
_EVEN = {"B": 2, "N": 256, "h": 4, "d": 32}


def tried(target: Target, asked: Mapping[str, int]) -> None:
    """Nothing, where a forward pass runs at one of a few shapes.

    Raises :class:`RequestError` with the exception and its line where it fails at all of them;
    what cannot be followed on fake tensors (code that reads a value) is left to the derivation.
    """
    failure: RequestError | None = None
    for sizes in _shapes(target, asked):
        try:
            record(target, sizes, training=False)
        except Exception as error:  # noqa: BLE001 - whatever somebody's code raises
            if type(error).__module__.startswith("torch._"):
                return
            failure = _failed(target, sizes, error)
        else:
            return
    if failure is not None:
        raise failure


def _failed(target: Target, sizes: Mapping[str, int], error: Exception) -> RequestError:
    where = f" at {sizes_told(sizes)}" if sizes else ""
    inputs = "; ".join(target.spelled_inputs) or "no input"
    return RequestError(
        f"{target.name} does not run{where} with {inputs}: {told(error)}; "
        "give what it needs with --arg and --input"
    )


def _shapes(target: Target, asked: Mapping[str, int]) -> Iterator[dict[str, int]]:
    names = target.symbols
    if set(asked) == set(names):
        yield dict(asked)
        return
    yield hints_for(names, asked)
    yield {name: asked.get(name) or _EVEN.get(name, 16) for name in names}
