"""What a target executes and holds at one shape: a run, held against one on real tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf

from attnprof.errors import AttnprofError, CannotRunError, RequestError
from attnprof.trace.events import Trace
from attnprof.trace.request.expressions import EVEN, hints_for, sizes_text
from attnprof.trace.request.target import Target
from attnprof.trace.run.limits import TooLongError, limit
from attnprof.trace.run.runs import record
from attnprof.trace.solve.reality import PartedError, checked, on_real_tensors, too_large
from attnprof.trace.solve.verification import A_LONG_RUN
from attnprof.user_code import error_text, line_of


def count(target: Target, sizes: Mapping[str, int], phase: str, most: float = inf) -> Trace:
    """A run that shows what a phase counts at a shape; to decode, ``target`` is the step.

    Where the code does something else on real tensors, that is what is counted. Raises
    :class:`TooLongError` for a run of more than ``most`` operations, :class:`RequestError` where
    it does not run, and :class:`CannotRunError` where what runs depends on values.
    """
    training = phase in ("backward", "train")
    sizes = {name: sizes[name] for name in target.symbols}
    try:
        trace = record(target, sizes, training=training, before_each=limit(most))
    except (AttnprofError, TooLongError):
        raise
    except Exception as error:  # noqa: BLE001 - somebody's code may raise anything
        target = tried(target, sizes, training=training)  # says why, or gives what does run
        try:
            trace = record(target, sizes, training=training, before_each=limit(most))
        except TooLongError:
            raise
        except Exception:  # noqa: BLE001 - the same
            raise RequestError(f"{target.name} does not run: {error_text(error)}") from error
    try:
        trace.notes += filter(None, [checked(target, sizes, training, trace)])
    except PartedError:
        trace = _recorded_real(target, sizes, training, most)
    return trace


def _recorded_real(target: Target, sizes: Mapping[str, int], training: bool, most: float) -> Trace:
    large = too_large(target, sizes)
    if large:
        raise CannotRunError(
            f"{target.name} does something else on real tensors, which it cannot run on here: "
            f"{large}"
        )
    real = on_real_tensors(target, training=training)
    return record(real, sizes, training=training, before_each=limit(most))


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
        raise CannotRunError(f"{target.name} cannot be derived: {value_reason(cause)}") from error


def _tried_backward(target: Target, sizes: Mapping[str, int]) -> Target:
    try:
        record(target, sizes, training=True, before_each=limit(A_LONG_RUN))
    except TooLongError:
        return target
    except Exception as error:
        if type(error).__module__.startswith("torch."):
            return _on_real_tensors(target, training=True, cause=error)
        raise RequestError(
            f"{target.name} has no backward pass: {error_text(error)}; type --phase forward"
        ) from error
    return target


def _failed(target: Target, sizes: Mapping[str, int], error: Exception) -> RequestError:
    where = f" at {sizes_text(sizes)}" if sizes else ""
    inputs = "; ".join(target.spelled_inputs) or "no input"
    return RequestError(
        f"{target.name} does not run{where} with {inputs}: {error_text(error)}; "
        "give what it needs with --arg and --input"
    )


def value_reason(error: Exception) -> str:
    """What of torch's cannot run without real numbers, in words, and on which line."""
    if "_local_scalar_dense" in str(error) or type(error).__name__.startswith("GuardOnData"):
        place = f" ({line_of(error)})" if line_of(error) else ""
        return f"its path depends on the value of a tensor, as by .item() or an if on one{place}"
    if type(error).__name__ == "DynamicOutputShapeException":
        return f"the size of a result depends on the values of a tensor: {error_text(error)}"
    if type(error).__name__ == "UnsupportedOperatorException":
        return f"an operation says nothing of its result on fake tensors: {error_text(error)}"
    return error_text(error)


def _shapes(target: Target, asked: Mapping[str, int]) -> Iterator[dict[str, int]]:
    names = target.symbols
    if set(asked) == set(names):
        yield dict(asked)
        return
    yield hints_for(names, asked)
    yield {name: asked.get(name) or EVEN.get(name, 16) for name in names}
