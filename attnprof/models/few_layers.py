"""A run of all layers of a model, made from a run of the first few if one of all takes too long.

Layers that go token by token, and hundreds of layers, take minutes to run one by one. Layers that
are built alike cost the same, so that the calls of one stand for those of others.
:func:`run_by_few` checks that they do among the layers that it runs.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from attnprof.models.costs import LayerKind, place_of
from attnprof.models.parts import places
from attnprof.models.stacks import LayerStack, Lengths, samples_of, shortened, stacks_of
from attnprof.models.whole import WholeModel
from attnprof.trace.events import Call, Trace, flops_of
from attnprof.trace.request.target import Sizes, Target
from attnprof.trace.run.submodules import Submodules
from attnprof.trace.solve.count import counted

#: Types of attributes that may decide what a module computes.
_SETTINGS = (bool, int, str, type(None))


def run_by_few(
    subject: WholeModel, phase: str, sizes: Sizes, shown: Trace | None = None
) -> tuple[Trace, Target] | None:
    """Return a run of all layers at sizes, and its target, by a run of the first few of each kind.

    None if layers do not repeat, do not run one after the other, or cost something else than layers
    built like them: in this run, and in that of all layers in another phase, if it is ``shown``.
    Raises what a run raises.
    """
    import torch

    with torch.device("meta"):
        model = subject.build()
    where = places(model)
    layers = dict.fromkeys(place.layer for place in where.values() if place.layer)
    groups = defaultdict[Any, list[str]](list)
    for path in layers:
        groups[path.rpartition(".")[0], _built_like(model.get_submodule(path), path)].append(path)
    stacks = stacks_of(model, [LayerKind("", tuple(paths)) for paths in groups.values()])
    samples = samples_of(stacks)
    if samples is None or (shown and not _all_alike(shown, where, stacks)):
        return None
    lengths = {stack.path: _to_sample(stack, samples.lengths[-1][stack.path]) for stack in stacks}
    if all(lengths[stack.path] == len(stack) for stack in stacks):
        return None
    trace, ran = counted(shortened(subject, lengths).target(phase), sizes, phase, held=False)
    of = {s.layer(n): (s, n) for s in stacks for n in range(lengths[s.path])}
    calls = _all_calls(trace.calls, [of.get(place_of(c.module, where).layer) for c in trace.calls],
                    lengths)  # fmt: skip
    if calls is None:
        return None
    entries = Submodules(model).own
    inside = "module" in trace.modules  # of what decodes with it
    named = {f"module.{name}".rstrip(".") if inside else name: x for name, x in entries.items()}
    whole = replace(
        trace,
        calls=calls,
        parameters=sum(entries.values()),
        modules={"": 0, **named},
        ungraded=frozenset(_names_in_all(trace.ungraded, stacks, lengths)),
    )
    return whole, replace(ran, make=subject.target(phase).make)


def _built_like(layer: Any, path: str) -> tuple[Any, ...]:
    """Return what layers that are built alike have in common: all but their own number."""
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


def _to_sample(stack: LayerStack, length: int) -> int:
    """Return how many first layers to run: each kind is twice between the first and the last.

    The last is of the kind of the model's last layer. A kind of which there are fewer has all of
    its layers among them.
    """
    kinds, inside = stack.kinds, Counter(stack.kinds[1:-1])
    for n in range(length, len(kinds)):
        seen = Counter(kinds[1 : n - 1])
        if kinds[n - 1] == kinds[-1] and all(seen[x] >= min(2, inside[x]) for x in {*kinds}):
            return n
    return len(kinds)


def _sampled_layers(stack: LayerStack, sampled: int) -> list[int]:
    """Return for every layer of a stack the number of the sampled layer that it is run as.

    The model's last layer, which may have less to do, is run as the last sampled one.
    """
    inner = {stack.kinds[n]: n for n in (sampled - 1, *range(sampled - 1))}
    numbers = [n if n < sampled - 1 else inner[kind] for n, kind in enumerate(stack.kinds)]
    return [*numbers[:-1], sampled - 1]


def _all_calls(
    calls: Sequence[Call], at: Sequence[tuple[LayerStack, int] | None], lengths: Lengths
) -> list[Call] | None:
    """Return the calls of all layers; None if layers run in another order, or cost differently.

    ``at`` is the layer of each call. What is called between two layers belongs to the first.
    """
    placed = list[tuple[int, str]]()  # which call stands there, of which module
    numbered = list(range(len(calls)))
    for part, indices in groupby(numbered, lambda n: calls[n].part):
        in_part = list(indices)
        segments = _segments(in_part, at)
        for stack, group in groupby(segments, lambda one: one[0]):
            pieces = list(group)
            if stack is None:
                placed += [(n, calls[n].module) for _, _, inside in pieces for n in inside]
                continue
            order = list(range(lengths[stack.path]))
            numbers = [number for _, number, _ in pieces]
            by_number = {number: inside for _, number, inside in pieces}
            ran = {number: [calls[n] for n in inside] for number, inside in by_number.items()}
            turned = part == "backward"
            if numbers != (order[::-1] if turned else order) or not _alike(stack, ran):
                return None
            like = list(enumerate(_sampled_layers(stack, lengths[stack.path])))
            for number, model in reversed(like) if turned else like:
                inside, old, new = by_number[model], stack.layer(model), stack.layer(number)
                names = {
                    name: _renamed(name, old, new) for name in {calls[n].module for n in inside}
                }
                placed += [(n, names[calls[n].module]) for n in inside]
    return _in_order(calls, placed)


def _in_order(calls: Sequence[Call], places: Sequence[tuple[int, str]]) -> list[Call]:
    """Return the calls at these places, each renamed to a module, with what is freed after it.

    A call says what died before it, which may be another call's now.
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


def _segments(
    indices: Sequence[int], at: Sequence[tuple[LayerStack, int] | None]
) -> list[tuple[LayerStack | None, int, list[int]]]:
    """Return calls grouped by layer; those between two layers of a stack belong to the first."""
    last = {at[n]: n for n in indices if at[n]}
    segments: list[tuple[LayerStack | None, int, list[int]]] = [(None, 0, [])]
    following = {}
    later: tuple[LayerStack, int] | None = None
    for n in reversed(indices):
        later = at[n] or later
        following[n] = later
    for n in indices:
        stack, number, _ = segments[-1]
        here = at[n]
        if here and here != (stack, number):
            segments.append((*here, []))
        elif stack and n > last[stack, number]:
            after = following[n]
            if after is None or after[0] != stack:
                segments.append((None, 0, []))
        segments[-1][2].append(n)
    return segments


def _all_alike(trace: Trace, places: Any, stacks: Sequence[LayerStack]) -> bool:
    """Return whether all layers of a kind cost the same in a run."""
    by_layer = defaultdict[str, list[Call]](list)
    for call in trace.calls:
        by_layer[place_of(call.module, places).layer].append(call)
    return all(
        _alike(stack, {n: by_layer[stack.layer(n)] for n in range(len(stack))}) for stack in stacks
    )


def _alike(stack: LayerStack, calls: Mapping[int, Sequence[Call]]) -> bool:
    """Return whether layers of a kind cost the same, the first and the last left out."""
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
    """Yield names of parameters in all layers, by those in the first few."""
    yield from names
    for stack in stacks:
        for number, model in enumerate(_sampled_layers(stack, lengths[stack.path])):
            inside = f"{stack.layer(model)}."
            for name in names if number >= lengths[stack.path] else ():
                if name.startswith(inside):
                    yield f"{stack.layer(number)}.{name.removeprefix(inside)}"
