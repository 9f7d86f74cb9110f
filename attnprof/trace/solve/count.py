"""Count what a target does at one shape: by a run on fake tensors, compared with a real one.

Code may do something else on real tensors, for example where a weight decides; then the run on real
tensors is returned. Entry points: :func:`count`, :func:`counted`.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import zip_longest
from math import inf
from traceback import extract_tb
from typing import Any

from attnprof.algebra.values import evaluate
from attnprof.errors import AttnprofError, CannotRunError, RequestError
from attnprof.trace.events import Call, Trace, peak, totals, trains
from attnprof.trace.request.target import (
    EVEN,
    Sizes,
    Target,
    divided_hints_for,
    hints_for,
    sizes_text,
)
from attnprof.trace.run.limits import TooLongError
from attnprof.trace.run.runs import MOST_BYTES, outcome, record, weight_bytes
from attnprof.trace.run.surroundings import only_runs
from attnprof.trace.run.worlds import UnsupportedTensorError, quiet_hub
from attnprof.trace.solve.small_runs import (
    SHAPED,
    by_value,
    check_chance,
    failure_of,
    place_of,
    row_of,
    small_shapes,
    value_reason,
)
from attnprof.user_code import error_text

#: Most FLOPs and operations of a run on real tensors.
MOST_FLOPS, MOST_CALLS = 4 * 10**9, 16_000
#: Operations up to which every turn of a loop is run, though one turn could stand for all.
_MOST_IN_LOOPS = 20_000
#: The first branches on values, which are run with the other outcome as well.
_DECISIONS = 12
#: Operations after which a run is taken to succeed.
_ENOUGH = 2_000
#: Operations run on fake tensors before meta tensors, which are three times as fast, take over.
_ON_FAKE = 300
_CAUSAL = (
    "; nn.Transformer's stacks compare their mask with a causal one: say whether it is one by "
    "is_causal or tgt_is_causal (True or False)"
)
_UNCHECKED = "not held against a run on real tensors"


class PartedError(Exception):
    """The runs on fake and real tensors differ; the message has the operation and its line."""


class NoBackwardError(RequestError):
    """The code has a forward pass that runs, but no backward pass."""

    in_training = True


def count(
    target: Target, sizes: Sizes, phase: str, most: float = inf, *, compare_real: bool = True
) -> Trace:
    """Return the run of a phase at a shape; to decode, ``target`` is the step.

    ``compare_real``: compare it with a run on real tensors, and return that one if the code does
    something else there. Raises :class:`TooLongError` for more than ``most`` operations,
    :class:`RequestError` if the code does not run, :class:`CannotRunError` if values decide.
    """
    return counted(target, sizes, phase, most, compare_real=compare_real)[0]


@only_runs()
@quiet_hub()
def counted(
    target: Target, sizes: Sizes, phase: str, most: float = inf, *, compare_real: bool = True
) -> tuple[Trace, Target]:
    """Return the run as ``count`` does, and the target with the settings that it ran with.

    It may have run with experts chosen evenly, or on real tensors. Without ``compare_real``, one
    turn of a very long loop stands for all turns that the code marks as alike.
    """
    training = trains([phase])
    sizes = {name: sizes[name] for name in target.symbols}
    trace = failed = outcome(target, sizes, training=training, most=most, once=not compare_real)
    if not compare_real and isinstance(trace, Trace) and trace.has_loops:
        operations = sum(call.times for call in trace.calls)
        if operations <= _MOST_IN_LOOPS:
            trace = outcome(target, sizes, training=training, most=most)
    if isinstance(failed, Exception) and not isinstance(failed, AttnprofError | TooLongError):
        target = runnable(target, sizes, training=training)  # or the reason that none is
        trace = outcome(target, sizes, training=training, most=most)
        if type(trace).__module__.startswith("torch."):  # values are asked for later on
            target = on_real_tensors(target, training=training)
            trace = outcome(target, sizes, training=training, most=most)
        if isinstance(trace, Exception) and not isinstance(trace, TooLongError):
            raise RequestError(f"{target.name} does not run: {error_text(failed)}") from failed
    if isinstance(trace, Exception):
        raise trace
    try:
        trace.notes += _notes_of_check(target, sizes, training, trace) if compare_real else []
    except PartedError as parted:
        if large := _too_large(target, sizes):
            raise CannotRunError(
                f"{target.name} does something else on real tensors, which it cannot run on here: "
                f"{large}"
            ) from parted
        real = on_real_tensors(target, training=training)
        return record(real, sizes, training=training, most=most), real
    return trace, target


def runnable(
    target: Target, asked_sizes: Sizes, *, training: bool = False, even: bool = True
) -> Target:
    """Return the target with settings at which it runs, and backward if ``training``.

    It is tried at the asked sizes; those that are not given are guessed in two ways, with ``even``
    also as powers of two. Where values decide what runs, they are followed (``routed``) if they
    come from sizes or from experts, which are then chosen evenly; else the target is set to real
    tensors. Raises :class:`RequestError` with the exception and its line if the code fails at all
    shapes, :class:`CannotRunError` if what runs depends on values.
    """
    failures = list[Exception]()
    names = target.symbols
    shapes: list[Sizes] = [hints_for(names, asked_sizes), divided_hints_for(names, asked_sizes)]
    if even:
        shapes.append({name: asked_sizes.get(name) or EVEN.get(name, 16) for name in names})
    for sizes in [asked_sizes] if set(asked_sizes) == set(names) else shapes:
        evaluated = not training  # training may run where evaluation takes a path that is refused
        try:
            for backward in [False, True] if training else [False]:
                with suppress(*[UnsupportedTensorError] if training > backward else []):
                    _run_beginning(target, sizes, training=backward)
                    evaluated = True
        except TooLongError:
            return target  # it ran long enough
        except Exception as error:
            if type(error).__module__.startswith("torch."):
                return _with_values(target, sizes, error, training=training)
            if backward and evaluated:
                why = f"{error_text(error)}; type --phase forward"
                if isinstance(error, UnsupportedTensorError):  # forward would have bounds only
                    why = str(error)
                raise NoBackwardError(f"{target.name} has no backward pass: {why}") from error
            is_refusal = isinstance(error, RequestError)
            failures.append(error if is_refusal else failure_of(target, sizes, error))
        else:
            return target
    raise failures[-1]


def _run_beginning(target: Target, sizes: Sizes, *, training: bool) -> None:
    """Run the first operations of a target, or raise its error; many are run on meta tensors."""
    try:
        record(target, sizes, training=training, most=_ON_FAKE)
    except TooLongError:
        result = outcome(target, sizes, training=training, most=_ENOUGH, on_meta=True)
        if isinstance(result, TooLongError):
            raise result from None
        if isinstance(result, Exception):  # perhaps not on fake tensors
            record(target, sizes, training=training, most=_ENOUGH)


def _with_values(target: Target, sizes: Sizes, error: Exception, *, training: bool) -> Target:
    """Return the target set to follow values or to real tensors; CannotRunError if neither runs."""
    routed = target.running(routed=True)
    result = outcome(routed, sizes, training=training, most=_ENOUGH)
    if isinstance(result, Trace | TooLongError):  # experts chosen evenly, or values that sizes make
        return routed
    try:
        return on_real_tensors(target, training=training)
    except Exception as failure:  # noqa: BLE001 - the user's code may raise anything
        real_error = failure
    try:  # tensors that are no longer torch's, like numpy's
        return on_real_tensors(routed, training=training)
    except CannotRunError as routed_error:
        # evenly chosen experts decide nothing there: its line is one where other values do
        real_error = routed_error if isinstance(real_error, CannotRunError) else real_error
    except Exception:  # noqa: BLE001, S110 - the first failure is reported
        pass
    if not isinstance(real_error, AttnprofError):
        why = value_reason(error)
        raise CannotRunError(f"{target.name} cannot be derived: {why}") from real_error
    if "_detect_is_causal_mask" in {x.name for x in extract_tb(error.__traceback__)}:
        raise CannotRunError(f"{real_error}{_CAUSAL}") from real_error
    raise real_error


# -- real tensors -------------------------------------------------------------------------
def smallest_real_run(
    target: Target, training: bool, holds: Callable[[Sizes], bool], others: Iterable[Sizes],
    flops: Any = 0,
) -> tuple[dict[str, int], Trace] | str:  # fmt: skip
    """Return the smallest shape that runs and where formulas hold, with its run on real tensors.

    A note instead says why there is none. Small shapes come first, then ``others``; shapes of too
    many ``flops``, a formula, are not run. Raises :class:`PartedError` if the run differs from that
    on fake tensors.
    """
    why = "no small shape inside the domain runs"
    for sizes in filter(holds, [*small_shapes(target), *others]):
        if large := _too_many(evaluate(flops, sizes), sizes):
            return f"{_UNCHECKED}: {large}"
        fake = outcome(target, sizes, training=training, most=MOST_CALLS)
        if isinstance(fake, TooLongError):
            return f"{_UNCHECKED}: at {sizes_text(sizes)} it takes {fake}"
        if isinstance(fake, Exception):
            why = f"at {sizes_text(sizes)} it does not run: {error_text(fake)}"
            continue
        real = _run_on_real(target, sizes, training, fake)
        return real if isinstance(real, str) else (dict(sizes), real)
    return f"{_UNCHECKED}: {why}"


def _notes_of_check(target: Target, sizes: Sizes, training: bool, fake: Trace) -> list[str]:
    """Compare a run with one on real tensors; return a note if that would take too much.

    Both are made at a small shape with the same operations, if there is one. Raises
    :class:`PartedError` if they differ. Trusted code and real runs are not checked.
    """
    if target.mode.trusted or target.mode.real:
        return []
    operations = [call.op for call in fake.calls]
    for shape in small_shapes(target):
        small = outcome(target, shape, training=training, most=MOST_CALLS)
        if isinstance(small, Trace) and [call.op for call in small.calls] == operations:
            sizes, fake = shape, small
            break
    real = _run_on_real(target, sizes, training, fake)
    return [real] if isinstance(real, str) else []


def _run_on_real(target: Target, sizes: Sizes, training: bool, fake: Trace) -> Trace | str:
    """Return the run on real tensors, or a note why there is none; PartedError if it differs."""
    if large := _too_large(target, sizes, fake):
        return f"{_UNCHECKED}: {large}"
    real = outcome(target, sizes, training=training, real=True)
    if isinstance(real, Exception):
        return f"{_UNCHECKED}: there it raises {error_text(real)}"
    for expected, call in zip_longest(fake.calls, real.calls):
        if expected is None or call is None or row_of(expected) != row_of(call):
            line = (expected or call).line or (call or expected).line
            raise PartedError(
                f"the code does something else on real tensors{place_of(line)}: {_spelled(call)}, "
                f"where fake ones show {_spelled(expected)}"
            )
    return real


def _too_large(target: Target, sizes: Sizes, fake: Trace | None = None) -> str:
    """Return why a run on real tensors would take too much, or an empty string."""
    needs = weight_bytes(target, sizes)
    if fake is not None:
        phase = "train" if any(call.part == "backward" for call in fake.calls) else "forward"
        needs += peak(fake, phase)
        if large := _too_many(totals(fake, phase)["flops"], sizes):
            return large
    return f"it takes {needs / 2**30:.1f} GiB" if needs > MOST_BYTES else ""


def _too_many(flops: Any, sizes: Sizes) -> str:
    return f"at {sizes_text(sizes)} it takes {flops:.1e} FLOPs" if flops > MOST_FLOPS else ""


def _spelled(call: Call | None) -> str:
    if call is None:
        return "the end"
    memory = f", {call.takes} B new" if call.takes else ""
    return f"{call.op} of {tuple(call.shape)}{memory}"


def on_real_tensors(target: Target, *, training: bool) -> Target:
    """Return the target set to run on real tensors.

    Raises :class:`CannotRunError` if its path depends on values of inputs or weights, or if such a
    run takes too much; what the code raises if it runs at no small shape.
    """
    failure: Exception = CannotRunError(f"{target.name} runs at no small shape")
    for sizes in small_shapes(target):
        if large := _too_large(target, sizes):
            raise CannotRunError(
                f"{target.name} has to run on real tensors, since its path depends on values; "
                f"{large}: derive a smaller configuration of it"
            )
        trace = outcome(target, sizes, training=training, real=True)
        if isinstance(trace, Exception):
            failure = trace
            continue
        rows = [row_of(call) for call in trace.calls]
        for index, decision in enumerate(trace.decisions):
            if not decision.by_values:
                continue
            if decision.yes_or_no and index < _DECISIONS:
                # allowed if the other outcome makes no difference or is an error
                other = outcome(target, sizes, training=training, real=True, flipped=index)
                if isinstance(other, Exception) or [row_of(call) for call in other.calls] == rows:
                    continue
            shaped = f"{SHAPED}: {decision.op}{place_of(decision.line)}"
            why = shaped if decision.shapes else by_value(decision.line)
            raise CannotRunError(f"{target.name} cannot be derived: {why}")
        real = target.running(real=True)
        if not all(decision.by_values for decision in trace.decisions):
            check_chance(real, training=training)
        return real
    raise failure
