"""The peak of a model with many layers, from the run of one with few.

The steps of a sampled layer stand for those of all alike layers. Most of these only add what they
hold between layers: the first and the last of them are walked through, and the others are one jump,
times their number. ``symbol`` makes that number a symbol, and the peak a formula in L.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from attnprof.algebra.maxima import running_maximum
from attnprof.models.stacks import LayerStack, Lengths
from attnprof.trace.events import Call, Size, Trace, added

#: Bytes allocated, and needed beside them for a moment.
Step = tuple[Size, Size, Size]


@dataclass(frozen=True)
class LongStack:
    """The layers of a stack to walk through, in order, and a jump over the others.

    ``jump`` stands before the layer at this place for ``times`` periods of ``period`` layers, each
    like those from there on: what they hold adds up, so that none of them is the worst moment.
    """

    layers: Sequence[int]
    jump: int = 0
    period: int = 0
    times: Any = 0


def walked(stack: LayerStack, sampled: int, symbol: Any = None) -> LongStack:
    """Return how to walk through a stack, whole or as long as a symbol says, by its sampled layers.

    Layers beyond the sampled ones repeat; only the first and last of them are walked through.
    """
    start = max(stack.start, sampled - 1)
    period = stack.period(start) if start < len(stack) else 0
    if not period:
        return LongStack(range(len(stack)))
    tail = (len(stack) - start) % period
    number = len(stack) if symbol is None else symbol
    times = (number - start - tail) / period - 2
    times = int(times) if symbol is None else times
    first, last = start + period, len(stack) - tail - period
    return LongStack([*range(first), *range(last, len(stack))], first, period, times)


def fewest(stack: LayerStack, sampled: int, turns: int = 2) -> int:
    """Return the smallest number of layers for which a formula in that number holds.

    After the sampled layers come at least ``turns`` periods of others: two if peaks are walked
    through, the first and the last of them. Without ``turns``, the sampled layers are enough.
    """
    start = max(stack.start, sampled - (turns > 0))
    period = stack.period(stack.start)
    return start + turns * period + (len(stack) - start) % period


def stitched_peak(
    trace: Trace,
    phase: str,
    layer_of: Callable[[str], str],
    stacks: Sequence[LayerStack],
    lengths: Lengths,
    longer: Mapping[str, LongStack],
) -> Size | None:
    """Return the most bytes that a model holds in a phase, by a run of one with fewer layers.

    ``layer_of`` returns the layer of a module. None if layers do not run one after the other,
    forward and back.
    """
    of = {s.layer(n): (s, n) for s in stacks for n in range(lengths[s.path])}
    steps, before = list[Step](), list[Size]()
    for part, calls in groupby(trace.calls, lambda call: call.part):
        pieces = _by_layer(calls, layer_of, of)
        whole = None if pieces is None else _all_steps(pieces, part == "backward", lengths, longer)
        if whole is None:
            return None
        if part == "forward" and phase == "backward":
            before += [takes for takes, _, _ in whole]
        else:
            steps += whole
    return running_maximum(added(before), steps)


@dataclass
class _Segment:
    """Consecutive steps of a layer, or of no layer, with what is freed after them."""

    stack: LayerStack | None
    number: int
    steps: list[Step]


def _by_layer(
    calls: Iterable[Call], layer_of: Callable[[str], str], of: Mapping[str, tuple[LayerStack, int]]
) -> list[_Segment] | None:
    """Return a run by layer: what happens between two layers is part of the one before."""
    calls = list(calls)
    places = [of.get(layer_of(call.module)) for call in calls]
    last = {place: n for n, place in enumerate(places) if place}
    pieces = [_Segment(None, 0, [])]
    for n, (call, place) in enumerate(zip(calls, places, strict=True)):
        pieces[-1].steps.append((-call.gives, 0, 0))
        stack, number = pieces[-1].stack, pieces[-1].number
        if place and place != (stack, number):
            pieces.append(_Segment(*place, []))
        elif stack and n > last[stack, number] and not _stack_goes_on(places, n, stack):
            pieces.append(_Segment(None, 0, []))
        pieces[-1].steps.append((call.takes, call.workspace, 0))
    seen = [(piece.stack, piece.number) for piece in pieces if piece.stack]
    shown = {stack for stack, _ in seen}  # a token is decoded without the encoder
    wanted = sum(stack in shown for stack, _ in of.values())
    return pieces if len(seen) == len(set(seen)) == wanted else None


def _stack_goes_on(places: Sequence[Any], start: int, stack: LayerStack) -> bool:
    """Return whether another layer of the stack comes next."""
    later = next((place for place in places[start:] if place), None)
    return later is not None and later[0] == stack


def _all_steps(
    pieces: Sequence[_Segment],
    backward: bool,
    lengths: Lengths,
    longer: Mapping[str, LongStack],
) -> list[Step] | None:
    """Return the steps of all layers, in order; None if layers run in another one."""
    whole = list[Step]()
    for stack, group in groupby(pieces, lambda piece: piece.stack):
        segments = list(group)
        if stack is None:
            whole += [step for piece in segments for step in piece.steps]
            continue
        order = range(lengths[stack.path])
        if [piece.number for piece in segments] != list(reversed(order) if backward else order):
            return None
        steps = {piece.number: piece.steps for piece in segments}
        whole += _steps_of_stack(stack, steps, longer[stack.path], backward=backward)
    return whole


def _steps_of_stack(
    stack: LayerStack, steps: Mapping[int, list[Step]], longer: LongStack, *, backward: bool
) -> Iterator[Step]:
    """Yield the steps of every layer that is walked through, or of one of its kind."""
    most = max(steps)
    like = {stack.kinds[n]: n for n in (most, *range(most))}  # those inside, if there are any
    model = {n: n if n < most else like[stack.kinds[n]] for n in longer.layers}
    if stack.kinds[most] == stack.kinds[-1]:
        model[len(stack) - 1] = most
    places = list(enumerate(longer.layers))
    repeated = longer.layers[longer.jump : longer.jump + longer.period]
    between = [takes for n in repeated for takes, _, _ in steps[like[stack.kinds[n]]]]
    held = added(between) * longer.times
    for place, number in reversed(places) if backward else places:
        if longer.period and not backward and place == longer.jump:
            yield held, 0, 0
        yield from steps[model[number]]
        if longer.period and backward and place == longer.jump:
            yield held, 0, 0
