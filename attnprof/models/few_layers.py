"""Runs and peaks of all layers of a model, made from a run of the first few.

Hundreds of layers, or layers that go token by token, take minutes to run. Layers that are built
alike cost the same, so the calls of one layer are repeated for the others: :func:`run_by_few`
checks that the layers which it runs do cost the same.

The peak of many layers follows from a run of few, too (:func:`stitched_peak`). Of layers alike only
the first and the last are walked through. The others are one jump: the bytes that each leaves
behind, times their number. If that number is a symbol, the peak is a formula in L.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from attnprof.algebra.maxima import running_maximum
from attnprof.models.costs import LayerKind, calls_by_layer, place_of
from attnprof.models.parts import ModulePlace, layers_of, places
from attnprof.models.stacks import Layer, LayerStack, Lengths, sample_of, shortened, stacks_of
from attnprof.models.whole import WholeModel
from attnprof.trace.events import Call, Size, Trace, added, flops_of
from attnprof.trace.request.target import Sizes, Target
from attnprof.trace.run.submodules import Submodules
from attnprof.trace.solve.count import counted

#: Types of attributes that may decide what a module computes.
_SETTINGS = (bool, int, str, type(None))
#: Bytes allocated, bytes of workspace for a moment, bytes freed.
Step = tuple[Size, Size, Size]


# -- calls by layer --------------------------------------------------------------------------


@dataclass(frozen=True)
class StackCalls:
    """The calls of one stack in the forward or backward ``part`` of a run, by layer, in order.

    Calls are their numbers in the run. Calls in no stack stand at layer 0 of None.
    """

    part: str
    stack: LayerStack | None
    by_number: Mapping[int, list[int]]


def calls_by_stack(
    calls: Sequence[Call], places: Mapping[str, ModulePlace], stacks: Sequence[LayerStack],
    lengths: Lengths,
) -> list[StackCalls] | None:  # fmt: skip
    """Return the calls of a run by stack and layer, in order.

    A call between two layers of a stack belongs to the first. None if the layers of a stack do not
    run one after the other, backward from the last.
    """
    by_path = layers_by_path(stacks, lengths)
    at = [by_path.get(place_of(call.module, places).layer) for call in calls]
    pieces = []
    for part, indices in groupby(range(len(calls)), lambda n: calls[n].part):
        for stack, group in groupby(_segments(list(indices), at), lambda segment: segment[0]):
            layers = [(number, inside) for _, number, inside in group]
            order = list(range(lengths[stack.path] if stack else 1))
            if [number for number, _ in layers] != (order[::-1] if part == "backward" else order):
                return None
            pieces.append(StackCalls(part, stack, dict(layers)))
    return pieces


def layers_by_path(stacks: Sequence[LayerStack], lengths: Lengths) -> dict[str, Layer]:
    """Return the layers of stacks of these lengths by their paths."""
    return {stack.layer(n): (stack, n) for stack in stacks for n in range(lengths[stack.path])}


def _segments(
    indices: Sequence[int], at: Sequence[Layer]
) -> list[tuple[LayerStack | None, int, list[int]]]:
    """Return calls grouped by layer; calls between two layers of a stack belong to the first."""
    following, placed = dict[int, Layer](), dict[int, Layer]()
    layer: Layer = None
    for n in reversed(indices):
        layer = following[n] = at[n] or layer
    layer = None
    for n in indices:
        after = following[n]
        if at[n] or layer is None or after is None or after[0] != layer[0]:
            layer = at[n]
        placed[n] = layer
    groups = groupby(indices, placed.__getitem__)
    return [(*(layer or (None, 0)), list(inside)) for layer, inside in groups]


# -- a run -----------------------------------------------------------------------------------


def run_by_few(
    subject: WholeModel, phase: str, sizes: Sizes, other_phase: Trace | None = None
) -> tuple[Trace, Target] | None:
    """Return a run of all layers at sizes, and its target, by a run of the first few of each kind.

    None if layers do not repeat, do not run one after the other, or if layers built alike differ in
    cost: in this run, or in ``other_phase``, a run of all layers in another phase. Raises the
    errors of a run.
    """
    model = subject.on_meta
    where = places(model)
    groups = defaultdict[Any, list[str]](list)
    for path in layers_of(where):
        groups[path.rpartition(".")[0], _built_like(model.get_submodule(path), path)].append(path)
    stacks = stacks_of(model, [LayerKind("", tuple(paths)) for paths in groups.values()])
    sample = sample_of(stacks)
    if sample is None:
        return None
    if other_phase is not None:
        by_layer = calls_by_layer(other_phase.calls, where)
        for stack in stacks:
            calls_of = {n: by_layer.get(stack.layer(n), []) for n in range(len(stack))}
            if not _alike(stack, calls_of):
                return None
    lengths = {stack.path: _run_length(stack) for stack in stacks}
    if lengths == sample.full:
        return None
    trace, target = counted(
        shortened(subject, lengths).target(phase), sizes, phase, compare_real=False
    )
    pieces = calls_by_stack(trace.calls, where, stacks, lengths)
    calls = None if pieces is None else _all_calls(trace.calls, pieces)
    if calls is None:
        return None
    entries = Submodules(model).entries
    wrapped = "module" in trace.modules  # by the module that decodes
    named = {f"module.{name}".rstrip(".") if wrapped else name: x for name, x in entries.items()}
    whole = replace(
        trace,
        calls=calls,
        parameters=sum(entries.values()),
        modules={"": 0, **named},
        ungraded=frozenset(_names_in_all(trace.ungraded, stacks, lengths)),
    )
    return whole, replace(target, make=subject.target(phase).make)


def _built_like(layer: Any, path: str) -> tuple[Any, ...]:
    """Return a key of how a layer is built: modules, weights, and settings but for its number."""
    number = int(path.rpartition(".")[2])
    descriptions = []
    for name, part in layer.named_modules():
        weights = [(label, tuple(x.shape)) for label, x in part.named_parameters(recurse=False)]
        settings = [
            (label, value)
            for label, value in vars(part).items()
            if isinstance(value, _SETTINGS) and not (value == number and "idx" in label)
        ]
        descriptions.append((name, type(part), tuple(weights), tuple(settings)))
    return tuple(descriptions)


def _run_length(stack: LayerStack) -> int:
    """Return how many first layers to run: each kind is twice between the first and the last.

    The last is of the kind of the model's last layer. A rarer kind is there with all its layers.
    """
    kinds, inside = stack.kinds, Counter(stack.kinds[1:-1])
    for n in range(stack.sampled, len(kinds)):
        counts = Counter(kinds[1 : n - 1])
        if kinds[n - 1] == kinds[-1] and all(counts[x] >= min(2, inside[x]) for x in {*kinds}):
            return n
    return len(kinds)


def _all_calls(calls: Sequence[Call], pieces: Sequence[StackCalls]) -> list[Call] | None:
    """Return the calls of all layers; None if layers of a kind cost differently."""
    placed = list[tuple[int, str]]()  # the number of each call, and its module
    for piece in pieces:
        stack, by_number = piece.stack, piece.by_number
        if stack is None:
            placed += [(n, calls[n].module) for n in by_number[0]]
            continue
        layers = {number: [calls[n] for n in inside] for number, inside in by_number.items()}
        if not _alike(stack, layers):
            return None
        like = list(enumerate(stack.originals(len(by_number), len(stack))))
        for number, model in reversed(like) if piece.part == "backward" else like:
            inside, old, new = by_number[model], stack.layer(model), stack.layer(number)
            modules = {calls[n].module for n in inside}
            names = {name: _renamed(name, old, new) for name in modules}
            placed += [(n, names[calls[n].module]) for n in inside]
    return _in_order(calls, placed)


def _in_order(calls: Sequence[Call], places: Sequence[tuple[int, str]]) -> list[Call]:
    """Return the calls at these places, each with its module and the storages freed before it.

    A call records what died before it; here another call may stand before it.
    """
    freed = [*((call.gives, call.died) for call in calls[1:]), (0, ())]
    ordered, before = list[Call](), (calls[0].gives, calls[0].died) if calls else (0, ())
    for n, module in places:
        call = calls[n]
        same = (call.gives, call.died) == before and call.module == module
        gives, died = before
        ordered.append(call if same else replace(call, gives=gives, died=died, module=module))
        before = freed[n]
    return ordered


def _alike(stack: LayerStack, calls: Mapping[int, Sequence[Call]]) -> bool:
    """Return whether layers of a kind cost the same, except the first and the last."""
    costs = defaultdict[int, set[Any]](set)
    for number in range(1, len(calls) - 1):
        costs[stack.kinds[number]].add((flops_of(calls[number]), len(calls[number])))
    return all(len(kind_costs) == 1 for kind_costs in costs.values())


def _renamed(name: str, old: str, new: str) -> str:
    """Return the name of a module or parameter with the path of another layer."""
    head, inside, tail = f".{name}.".partition(f".{old}.")
    return f"{head}.{new}.{tail}"[1:-1] if inside else name


def _names_in_all(
    names: frozenset[str], stacks: Sequence[LayerStack], lengths: Lengths
) -> Iterator[str]:
    """Yield the names of parameters in all layers, given the names in the first few."""
    yield from names
    for stack in stacks:
        for number, model in enumerate(stack.originals(lengths[stack.path], len(stack))):
            inside = f"{stack.layer(model)}."
            for name in names if number >= lengths[stack.path] else ():
                if name.startswith(inside):
                    yield f"{stack.layer(number)}.{name.removeprefix(inside)}"


# -- a peak ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Jump:
    """A jump over ``times`` periods of layers, of which ``layers`` are the first.

    What they leave behind adds up, so the peak is not inside the jump.
    """

    layers: Sequence[int]
    times: Any


#: The layers of a stack to walk through, in order, and a jump over the others.
LayerWalk = Sequence[int | Jump]


def layer_walk(stack: LayerStack, symbol: Any) -> LayerWalk:
    """Return the walk through a stack of ``symbol`` layers or, if it is None, of its own length.

    Layers beyond the sampled ones repeat; only the first and last of them are walked through.
    """
    if symbol is None:
        return range(len(stack))
    start = max(stack.start, stack.sampled - 1)
    period = stack.period(start)
    tail = (len(stack) - start) % period
    first, last = start + period, len(stack) - tail - period
    jump = Jump(range(last, last + period), (symbol - start - tail) / period - 2)
    return [*range(first), jump, *range(last, len(stack))]


def stitched_peak(
    calls: Sequence[Call], pieces: Sequence[StackCalls], phase: str, walks: Mapping[str, LayerWalk]
) -> Size | None:
    """Return the most bytes that a model holds in a phase, by a run of one with fewer layers.

    None if a stack runs more than once, forward or back.
    """
    steps, before = list[Step](), list[Size]()
    for part, group in groupby(pieces, lambda piece: piece.part):
        passed = list(group)
        stacks = [piece.stack for piece in passed if piece.stack]
        if len(stacks) > len({*stacks}):
            return None
        first = min(n for piece in passed for inside in piece.by_number.values() for n in inside)
        whole: list[Step] = [(-calls[first].gives, 0, 0)]
        for piece in passed:
            by_layer = {n: list(_steps(calls, inside)) for n, inside in piece.by_number.items()}
            whole += _walk(piece, by_layer, walks) if piece.stack else by_layer[0]
        if part == "forward" and phase == "backward":
            before += [takes for takes, _, _ in whole]
        else:
            steps += whole
    return running_maximum(added(before), steps)


def _steps(calls: Sequence[Call], indices: Sequence[int]) -> Iterator[Step]:
    """Yield the bytes that each call allocates, then the bytes freed before the next call."""
    for n in indices:
        yield calls[n].takes, calls[n].workspace, 0
        if n + 1 < len(calls) and calls[n + 1].part == calls[n].part:
            yield -calls[n + 1].gives, 0, 0


def _walk(
    piece: StackCalls, steps: Mapping[int, list[Step]], walks: Mapping[str, LayerWalk]
) -> Iterator[Step]:
    """Yield the steps of the layers of a walk, taken from the sampled layers, and of the jump."""
    stack: Any = piece.stack
    walk, sampled = walks[stack.path], len(steps)
    inner, originals = stack.inner_layers(sampled), stack.originals(sampled, len(stack))
    for place in walk[::-1] if piece.part == "backward" else walk:
        if isinstance(place, Jump):
            repeated = [steps[inner[stack.kinds[n]]] for n in place.layers]
            yield added([takes for one in repeated for takes, _, _ in one]) * place.times, 0, 0
        else:
            yield from steps[originals[place]]
