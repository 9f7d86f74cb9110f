"""Costs of a model's run by kind of layer and part (attention, mlp, …), as numbers or formulas.

Also the weights that tokens meet, and the length from which on a part is half of the work.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnprof.algebra.values import evaluate
from attnprof.models.parts import PARTS, ModulePlace, distinct_names, layer_names, layers_of
from attnprof.trace.events import KINDS, Call, Size, Trace, added, flops_of, unnumbered
from attnprof.trace.sizes import expected_bytes

#: Relative differences in parameters within a kind of layer, and in FLOPs if the configuration
#: names its type: layers may mix the results of all layers before them.
_ENTRIES_APART, _FLOPS_APART = 0.01, 0.5


@dataclass(frozen=True)
class LayerKind:
    """Layers that cost the same: their name and paths; the path "" is all that is in no layer.

    Kinds that cost nearly the same have one name, and are shown as one.
    """

    name: str
    layers: tuple[str, ...] = ("",)


def kind_of_layer(kinds: Sequence[LayerKind]) -> dict[str, LayerKind]:
    """Return the kind of each layer, by its path."""
    return {path: kind for kind in kinds for path in kind.layers}


def by_kind(
    model: Any, places: Mapping[str, ModulePlace], traces: Iterable[Trace], types: Sequence[str]
) -> list[LayerKind]:
    """Return the kinds of layers, by costs and parameters; the first is of modules in no layer.

    Layers of transformers are named by how they mix rows, others by ``types``, one a layer, or by
    their class. With several stacks, a stack's path comes before the name. Kinds of one name but
    different costs get a suffix: the module or size in which they differ.
    """
    modules = dict(model.named_modules())
    layers = layers_of(places)
    stacks = list(dict.fromkeys(path.rpartition(".")[0] for path in layers))
    signatures = [_signatures(trace, places) for trace in traces]
    groups = defaultdict[Any, list[str]](list)
    names, typed = layer_names(model, layers, places, types), len(types) == len(layers)
    for path, kind_name in zip(layers, names, strict=True):
        name = f"{path.rpartition('.')[0]}: {kind_name}" if len(stacks) > 1 else kind_name
        groups[name, tuple(signature[path] for signature in signatures)].append(path)
    named: dict[str, dict[Any, list[str]]] = defaultdict(dict)  # layers by name, then by costs
    first_of = dict[Any, Any]()
    for (name, costs), paths in groups.items():
        near = (x for x in named[name] if _is_near(x, costs, typed=typed))
        first = first_of[name, costs] = next(near, costs)
        named[name].setdefault(first, []).extend(paths)
    titles = {name: distinct_names(modules, name, [*of.values()]) for name, of in named.items()}
    kinds = (
        LayerKind(titles[name][[*named[name]].index(first_of[name, costs])], tuple(paths))
        for (name, costs), paths in groups.items()
    )
    return [LayerKind(""), *kinds]


def _is_near(one: Sequence[Any], other: Sequence[Any], *, typed: bool) -> bool:
    """Return whether layers of one type are shown as one kind, by FLOPs and entries of each run."""
    apart = (_FLOPS_APART if typed else _ENTRIES_APART), _ENTRIES_APART
    return all(
        abs(x - y) <= limit * max(x, y)
        for ours, theirs in zip(one, other, strict=True)
        for x, y, limit in zip(ours, theirs, apart, strict=True)
    )


def _signatures(trace: Trace, places: Mapping[str, ModulePlace]) -> dict[str, tuple[Size, Size]]:
    """Return FLOPs of the forward pass and parameters by path, which differ between kinds.

    Backward, the last layer may have less to add up.
    """
    calls = calls_by_layer(trace.part("forward"), places)
    entries_at = defaultdict[str, list[Size]](list)
    for name, entries in trace.modules.items():
        entries_at[place_of(name, places).layer].append(entries)
    layers = {place.layer for place in places.values()}
    return {path: (flops_of(calls.get(path, [])), added(entries_at[path])) for path in layers}


def calls_by_layer(
    calls: Iterable[Call], places: Mapping[str, ModulePlace]
) -> dict[str, list[Call]]:
    """Return the calls in each layer, by its path."""
    by_layer = defaultdict[str, list[Call]](list)
    for call in calls:
        by_layer[place_of(call.module, places).layer].append(call)
    return by_layer


def place_of(name: str, places: Mapping[str, ModulePlace]) -> ModulePlace:
    """Return the place of a module in a run, also of one that a decoding step wraps."""
    inner = name.removeprefix("module").removeprefix(".")
    return places.get(name) or places.get(inner) or ModulePlace("other")


def all_layer_places(
    trace: Trace, places: Mapping[str, ModulePlace], kinds: Sequence[LayerKind]
) -> dict[str, ModulePlace] | None:
    """Return the places of a run's modules, and of names that stand for all layers: ``layers.*``.

    None if modules of one such name are of several parts or kinds.
    """
    of_layer = kind_of_layer(kinds)
    alike = defaultdict[str, list[ModulePlace]](list)
    for name, place in places.items():
        alike[unnumbered(name)].append(place)
    for name in {*(call.module for call in trace.calls), *trace.modules}:
        if "*" in name.split("."):
            same = alike[unnumbered(name.removeprefix("module").removeprefix("."))]
            if len({(of_layer[place.layer], place.part) for place in same}) != 1:
                return None
    named = {name: same[0] for name, same in alike.items() if "*" in name.split(".")}
    return {**places, **named}


def by_part(
    trace: Trace, phase: str, places: Mapping[str, ModulePlace], kinds: Sequence[LayerKind]
) -> dict[tuple[LayerKind, str], dict[str, Size]]:
    """Return costs and parameters of a phase by kind of layer (all layers of it) and part."""
    of_layer, calls = kind_of_layer(kinds), calls_by_part(trace, phase, places, kinds)
    entries = defaultdict[Any, list[Size]](list)
    for name, number in trace.modules.items():
        place = place_of(name, places)
        entries[of_layer[place.layer], place.part].append(number)
    return {
        key: {**_sums(calls[key]), "parameters": added(entries[key])}
        for key in ((kind, part) for kind in kinds for part in PARTS)
        if calls[key] or added(entries[key])
    }


def calls_by_part(
    trace: Trace, phase: str, places: Mapping[str, ModulePlace], kinds: Sequence[LayerKind]
) -> dict[tuple[LayerKind, str], list[Call]]:
    """Return the operations of a phase by kind of layer and part."""
    of_layer = kind_of_layer(kinds)
    calls = defaultdict[tuple[LayerKind, str], list[Call]](list)
    for call in trace.part(phase):
        place = place_of(call.module, places)
        calls[of_layer[place.layer], place.part].append(call)
    return calls


def _sums(calls: Sequence[Call]) -> dict[str, Size]:
    counts = {kind: added([call.counts.get(kind, 0) for call in calls]) for kind in KINDS}
    moved = added([call.bytes_moved for call in calls])
    return {**counts, "flops": flops_of(calls), "bytes_moved": moved}


@dataclass(frozen=True)
class HeldWeights:
    """Numbers of weights of a module: ``shared`` meet every token, ``routed`` are of experts."""

    shared: int = 0
    routed: int = 0


def held_weights(model: Any, experts: int) -> dict[str, HeldWeights]:
    """Return the weights of a model by the name of the module that reads them.

    Tables of embeddings, of which a token reads a row, are left out, unless a head shares them; not
    those in layers that have a row an expert, as Doge's.
    """
    from torch.nn import Embedding

    counted, by_name = set[int](), dict[str, HeldWeights]()
    for name, module in model.named_modules():
        is_table = isinstance(module, Embedding)
        if is_table and not (unnumbered(name) != name and module.num_embeddings == experts > 1):
            continue
        sums = [0, 0]
        for parameter, weights in module.named_parameters(recurse=False):
            if id(weights) not in counted:
                sliced = weights.ndim == 3 and weights.shape[0] == experts > 1
                routed = is_table or sliced or ".experts." in f".{name}.{parameter}"
                sums[routed] += weights.numel()
            counted.add(id(weights))
        if any(sums):
            by_name[name] = HeldWeights(*sums)
    return by_name


def weights_met(
    table: Mapping[str, HeldWeights], modules: Iterable[str], experts: int, chosen: int, tokens: int
) -> int:
    """Return how many weights of ``modules`` are multiplied with any of ``tokens`` tokens.

    Of E routed experts they meet E (1 - (1 - k/E)^tokens) on average if each chooses k evenly.
    """
    active = {unnumbered(name.removeprefix("module").removeprefix(".")) for name in modules}
    # a module that holds another may use its weights itself
    read = [
        one for name, one in table.items()
        if {unnumbered(name), unnumbered(name).rpartition(".")[0]} & active
    ]  # fmt: skip
    routed = expected_bytes(sum(one.routed for one in read), experts, chosen, tokens)
    return sum(one.shared for one in read) + int(routed)


#: Lengths tried on either side: formulas may hold for multiples of a block alone.
_NEAR = 64
#: The longest length tried, as a power of two.
_LONGEST = 40


def half_length(part: Any, whole: Any, holds: Callable[[int], bool]) -> int | None:
    """Return the first length N from which on a part is half of the whole or more.

    Both are expressions in B and N, for a batch of 1. None if there is no such length, if the
    difference has other symbols, or if formulas hold (``holds``) at no length on either side of it.
    """
    import sympy

    from attnprof.algebra.expressions import symbol

    n = symbol("N")
    difference = sympy.expand((2 * part - whole).subs(symbol("B"), 1))
    if difference.free_symbols - {n}:
        return None
    length = _last_change(lambda tokens: bool(evaluate(difference, {n.name: tokens}) >= 0))
    if length is None:
        return None
    below = range(max(1, length - _NEAR), length) if length > 1 else [1]
    holds_near = any(map(holds, below)) and any(map(holds, range(length, length + _NEAR)))
    return length if holds_near else None


def _last_change(is_half: Callable[[int], bool]) -> int | None:
    """Return where a condition on lengths turns true for the last time, by powers of two.

    The equation is not solved: with windows and chunks it has minima and roundings.
    """
    if not is_half(2**_LONGEST):
        return None
    power = next((x for x in reversed(range(_LONGEST)) if not is_half(2**x)), None)
    if power is None:
        return 1
    return bisect_left(range(2 << power), True, 1 << power, key=is_half)
