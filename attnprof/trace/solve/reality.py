"""A derivation against one run on real tensors: operation by operation, at a small shape.

Derivations, and the runs that verify them, use fake tensors. Where code does something else on
real ones, the real way is what counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from attnprof.errors import CannotRunError
from attnprof.trace.events import Call, Decision, Trace
from attnprof.trace.request.expressions import SMALL, SMALL_LENGTHS, sizes_text
from attnprof.trace.request.target import Target
from attnprof.trace.run.limits import limit
from attnprof.trace.run.runs import MOST_BYTES, record, weights
from attnprof.trace.totals import peak, totals
from attnprof.user_code import error_text

#: What a run on real tensors may take: FLOPs, operations.
MOST_FLOPS, MOST_CALLS = 4 * 10**9, 6_000
#: Decisions by values that are tried the other way round.
_DECISIONS = 12


class PartedError(Exception):
    """On real tensors the code does something else; the message says what, and where."""


def held(
    target: Target,
    training: bool,
    holds: Callable[[Mapping[str, int]], bool],
    others: Iterator[Mapping[str, int]],
) -> tuple[dict[str, int], Trace] | str:
    """The smallest shape inside the domain that could be tried, and its run on real tensors.

    A note where there is none that runs within limits. Raises :class:`PartedError` where the run
    on real tensors is not the one on fake ones.
    """
    why = "no small shape inside the domain runs"
    for sizes in [*small_shapes(target), *others]:
        if not holds(sizes):
            continue
        try:
            fake = record(target, sizes, training=training, before_each=limit(MOST_CALLS))
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            why = f"at {sizes_text(sizes)} it does not run: {error_text(error)}"
            continue
        real = _held_at(target, sizes, training, fake)
        if isinstance(real, str):
            why = real
            break
        return dict(sizes), real
    return f"{_UNHELD}: {why}"


_UNHELD = "not held against a run on real tensors"


def checked(target: Target, sizes: Mapping[str, int], training: bool, fake: Trace) -> str:
    """Hold a run against one on real tensors: at a small shape where the code does the same.

    At its own shape where there is none. A note where neither runs within limits; raises
    :class:`PartedError` as :func:`held` does. What is ours, or was real, needs no check.
    """
    if target.own or target.real:
        return ""
    operations = [call.op for call in fake.calls]
    for shape in small_shapes(target):
        try:
            small = record(target, shape, training=training, before_each=limit(MOST_CALLS))
        except Exception:  # noqa: BLE001, S112 - the user's code may raise anything
            continue
        if [call.op for call in small.calls] == operations:
            found = _held_at(target, shape, training, small)
            break
    else:
        found = _held_at(target, sizes, training, fake)
    return f"{_UNHELD}: {found}" if isinstance(found, str) else ""


def _held_at(target: Target, sizes: Mapping[str, int], training: bool, fake: Trace) -> Trace | str:
    """The run on real tensors at a shape, or why there is none; PartedError where it differs."""
    large = too_large(target, sizes, fake)
    if large:
        return large
    try:
        real = record(target, sizes, training=training, real=True)
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        return f"there it raises {error_text(error)}"
    _compare(fake, real)
    return real


def small_shapes(target: Target) -> Iterator[dict[str, int]]:
    """Shapes at which a run on real tensors is short."""
    for length in SMALL_LENGTHS:
        small = {**SMALL, "N": length}
        yield {name: small.get(name, 8) for name in target.symbols}


def too_large(target: Target, sizes: Mapping[str, int], fake: Trace | None = None) -> str:
    """Why a run on real tensors would take too much; empty where it does not."""
    needs = weights(target, sizes)
    if fake is not None:
        phase = "train" if any(call.part == "backward" for call in fake.calls) else "forward"
        needs += peak(fake, phase)
        flops = totals(fake, phase)["flops"]
        if flops > MOST_FLOPS:
            return f"at {sizes_text(sizes)} it takes {flops:.1e} FLOPs"
    return f"it takes {needs / 2**30:.1f} GiB" if needs > MOST_BYTES else ""


def _compare(fake: Trace, real: Trace) -> None:
    """PartedError at the first operation that is another one, or brings other storages."""
    for one, other in zip_longest(fake.calls, real.calls):
        if one is None or other is None or _row(one) != _row(other):
            line = (one or other).line or (other or one).line
            raise PartedError(
                f"the code does something else on real tensors{f' ({line})' if line else ''}: "
                f"{_spelled(other)}, where fake ones show {_spelled(one)}"
            )


def _row(call: Call) -> tuple[Any, ...]:
    storages = call.takes, call.gives, call.born, call.died
    return call.op, call.part, call.dtype, call.shape, storages, call.bytes_moved, call.counts


def _spelled(call: Call | None) -> str:
    if call is None:
        return "the end"
    held = f", {call.takes} B new" if call.takes else ""
    return f"{call.op} of {tuple(call.shape)}{held}"


def on_real_tensors(target: Target, *, training: bool) -> Target:
    """The target, to be run on real tensors from now on.

    Raises :class:`CannotRunError` where its path depends on the values of its inputs or weights,
    or where such a run takes too much; what the code raises where it runs nowhere.
    """
    failure: Exception = CannotRunError(f"{target.name} runs at no small shape")
    for sizes in small_shapes(target):
        large = too_large(target, sizes)
        if large:
            raise CannotRunError(
                f"{target.name} has to run on real tensors, since its path depends on values; "
                f"{large}: derive a smaller configuration of it"
            )
        try:
            trace = record(target, sizes, training=training, real=True)
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            failure = error
            continue
        for place, decision in enumerate(trace.decisions):
            if decision.by_values and not _same(target, sizes, training, trace, place):
                raise CannotRunError(f"{target.name} cannot be derived: {_depends(decision)}")
        return replace(target, real=True)
    raise failure


def _same(
    target: Target, sizes: Mapping[str, int], training: bool, trace: Trace, place: int
) -> bool:
    """Whether the other outcome of a decision makes no difference, or is an error."""
    if not trace.decisions[place].yes_or_no or place >= _DECISIONS:
        return False
    try:
        other = record(target, sizes, training=training, real=True, flipped=place)
    except Exception:  # noqa: BLE001 - the values are checked: nothing else is counted
        return True
    return [_row(call) for call in other.calls] == [_row(call) for call in trace.calls]


def _depends(decision: Decision) -> str:
    place = f" ({decision.line})" if decision.line else ""
    if decision.shapes:
        return f"the size of a result depends on the values of a tensor: {decision.op}{place}"
    return f"its path depends on the value of a tensor, as by .item() or an if on one{place}"
