"""One call before anything is derived: a target that cannot run at all is a wrong request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attnprof.errors import AttnprofError, CannotRunError, RequestError
from attnprof.trace.derivation import told as sizes_told
from attnprof.trace.loading import line_of, told
from attnprof.trace.reality import on_real_tensors
from attnprof.trace.runs import record
from attnprof.trace.shots import TooLongError, limit
from attnprof.trace.symbols import hints_for
from attnprof.trace.target import Target
from attnprof.trace.verification import A_LONG_RUN

#: Sizes that divide what code likes to be divided.
_EVEN = {"B": 2, "N": 256, "h": 4, "d": 32}


def tried(target: Target, asked: Mapping[str, int], *, training: bool = False) -> Target:
    """The target, where a forward pass (and a backward one) runs at one of a few shapes.

    It is to run on real tensors where it takes a number from values that depend on sizes alone.
    Raises :class:`RequestError` with the exception and its line where it fails at all of them,
    and :class:`CannotRunError` for what cannot be followed without values.
    """
    failure: RequestError | None = None
    for sizes in _shapes(target, asked):
        try:
            record(target, sizes, training=False, before_each=limit(A_LONG_RUN))
        except TooLongError:
            return target  # so far it runs
        except RequestError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - whatever the user's code raises
            if type(error).__module__.startswith("torch."):
                return _on_real_tensors(target, training, error)
            failure = _failed(target, sizes, error)
        else:
            return _tried_backward(target, sizes) if training else target
    if failure is not None:
        raise failure
    return target


def _on_real_tensors(target: Target, training: bool, cause: Exception) -> Target:
    try:
        return on_real_tensors(target, training=training)
    except AttnprofError:
        raise
    except Exception as error:
        raise CannotRunError(f"{target.name} cannot be derived: {why(cause)}") from error


def _tried_backward(target: Target, sizes: Mapping[str, int]) -> Target:
    try:
        record(target, sizes, training=True, before_each=limit(A_LONG_RUN))
    except TooLongError:
        return target
    except Exception as error:
        if type(error).__module__.startswith("torch."):
            return _on_real_tensors(target, training=True, cause=error)
        raise RequestError(
            f"{target.name} has no backward pass: {told(error)}; type --phase forward"
        ) from error
    return target


def _failed(target: Target, sizes: Mapping[str, int], error: Exception) -> RequestError:
    where = f" at {sizes_told(sizes)}" if sizes else ""
    inputs = "; ".join(target.spelled_inputs) or "no input"
    return RequestError(
        f"{target.name} does not run{where} with {inputs}: {told(error)}; "
        "give what it needs with --arg and --input"
    )


def why(error: Exception) -> str:
    """What of torch's cannot run without real numbers, in words, and on which line."""
    if "_local_scalar_dense" in str(error) or type(error).__name__.startswith("GuardOnData"):
        place = f" ({line_of(error)})" if line_of(error) else ""
        return f"its path depends on the value of a tensor, as by .item() or an if on one{place}"
    if type(error).__name__ == "DynamicOutputShapeException":
        return f"the size of a result depends on the values of a tensor: {told(error)}"
    if type(error).__name__ == "UnsupportedOperatorException":
        return f"an operation says nothing of its result on fake tensors: {told(error)}"
    return told(error)


def _shapes(target: Target, asked: Mapping[str, int]) -> Iterator[dict[str, int]]:
    names = target.symbols
    if set(asked) == set(names):
        yield dict(asked)
        return
    yield hints_for(names, asked)
    yield {name: asked.get(name) or _EVEN.get(name, 16) for name in names}
