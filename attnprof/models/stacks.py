"""Layers that repeat: choose a few models with fewer layers whose costs give the cost of all.

A model with its first k layers alone is built for several k. A cost is a sum over layers by kind,
so as many of these models as there are kinds, and one more, give the cost of the whole. Of 12
layers alike, models with 1 and 3 layers are enough: the cost is (11·cost(3) - 9·cost(1))/2.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from attnprof.algebra.expressions import symbol
from attnprof.models.costs import LayerKind
from attnprof.models.whole import WholeModel

#: The symbol for the number of layers.
LAYERS = "L"
#: Layers of each stack that a model is built with, by the stack's path.
Lengths = Mapping[str, int]
#: Repetition starts in the first quarter of the layers, else a stack does not repeat.
_ONE_BEFORE = 4


@dataclass(frozen=True)
class LayerStack:
    """A list of layers: its path in the model, and the number of each layer's kind, in order."""

    path: str
    kinds: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.kinds)

    def layer(self, number: int) -> str:
        """Return the path of a layer."""
        return f"{self.path}.{number}"

    def period(self, start: int = 0) -> int:
        """Return the period of the kinds from layer ``start`` on; 0 if they do not repeat."""
        kinds = self.kinds[start:]
        half = range(1, len(kinds) // 2 + 1)
        return next((p for p in half if kinds[p:] == kinds[:-p]), 0)

    def sample_length(self, length: int) -> int:
        """Return how many first layers, at least ``length``, to sample so that every kind is there.

        Each kind that repeats is among them between two other layers.
        """
        repeated = {kind for kind in self.kinds if self.kinds.count(kind) > 1}
        enough = (n for n in range(length, len(self)) if repeated <= {*self.kinds[1 : n - 1]})
        return next(enough, len(self))

    def ends_with_new_kind(self, length: int) -> bool:
        """Return whether the last of the first ``length`` layers is the first of its kind."""
        return 1 < length < len(self) and self.kinds[length - 1] not in self.kinds[: length - 1]

    @property
    def start(self) -> int:
        """The first layer from which on kinds repeat; the length if they never do."""
        few = range(len(self) // _ONE_BEFORE + 1)
        return next((n for n in few if self.period(n)), len(self))


def stacks_of(model: Any, kinds: Sequence[LayerKind]) -> list[LayerStack]:
    """Return the lists of layers in a model that have some layers of one kind."""
    from torch import nn

    kind_of = {path: number for number, kind in enumerate(kinds) for path in kind.layers if path}
    paths = dict.fromkeys(path.rpartition(".")[0] for path in kind_of)
    stacks = []
    for path in paths:
        module = model.get_submodule(path)
        layers = [f"{path}.{number}" for number in range(len(list(module.children())))]
        if isinstance(module, nn.ModuleList | nn.Sequential) and all(x in kind_of for x in layers):
            stack = LayerStack(path, tuple(kind_of[layer] for layer in layers))
            if 2 * len(set(stack.kinds)) <= len(stack):
                stacks.append(stack)
    return stacks


def shortened(subject: WholeModel, lengths: Lengths) -> WholeModel:
    """Return the model with only the first layers of each stack; without values built just once."""
    import torch

    from attnprof.trace.run.worlds import current_mode, emptied, outside_fake

    once = dict[Any, Any]()

    def cut() -> Any:
        model = subject.build()
        for path, length in lengths.items():
            del model.get_submodule(path)[length:]
        return model

    def build() -> Any:
        if current_mode() is None and torch.get_default_device().type != "meta":
            return cut()
        dtype = torch.get_default_dtype()
        if dtype not in once:
            with outside_fake(), torch.device("meta"):
                once[dtype] = cut()
        return emptied(once[dtype])

    return replace(subject, build=build)


@dataclass(frozen=True)
class Samples:
    """Lengths of stacks in the sampled models; the last one has the most layers.

    The model costs the sum of the samples times ``weights``. ``symbols`` are the names of numbers
    of layers in formulas, by the stack's path: one name if all stacks are equally long; empty if
    layers do not repeat. ``slopes`` are the changes of the weights by one layer more, by name.
    """

    stacks: Sequence[LayerStack]
    lengths: Sequence[Lengths]
    weights: Sequence[Any]
    symbols: Mapping[str, str]
    slopes: Mapping[str, Sequence[Any]]

    def summed(self, values: Sequence[Any], *, by_layers: bool = False) -> Any:
        """Return a quantity of the whole, given that of each sample; ``by_layers`` in symbols."""
        import sympy

        def weighted(weights: Sequence[Any]) -> Any:
            return sympy.Add(*(n * x for n, x in zip(weights, values, strict=True)))

        whole = weighted(self.weights)
        for name, slope in self.slopes.items() if by_layers else ():
            whole += (symbol(name) - self.layers[name]) * weighted(slope)
        total = sympy.expand(whole)
        return int(total) if total.is_Integer else total

    def weights_of(self, lengths: Lengths) -> list[Any]:
        """Return the weight of each sample in the cost of stacks with these lengths."""
        rows = [counts_of(self.stacks, sample) for sample in self.lengths]
        return _combination(rows, counts_of(self.stacks, lengths))

    @property
    def full(self) -> dict[str, int]:
        """The lengths of the model's own stacks."""
        return {stack.path: len(stack) for stack in self.stacks}

    @property
    def layers(self) -> dict[str, int]:
        """The model's numbers of layers, by symbol."""
        return self.numbers(self.full)

    def stacks_of(self, name: str) -> list[LayerStack]:
        """Return the stacks whose number of layers a symbol stands for."""
        return [stack for stack in self.stacks if self.symbols.get(stack.path) == name]

    def numbers(self, lengths: Lengths) -> dict[str, int]:
        """Return the value of each symbol in stacks with these lengths."""
        return {name: lengths[path] for path, name in self.symbols.items()}


def samples_of(stacks: Sequence[LayerStack]) -> Samples | None:
    """Return the samples with the fewest layers; None if they have as many as the model."""
    import sympy

    whole = {stack.path: len(stack) for stack in stacks}
    lengths: list[Lengths] = []
    rows: list[list[int]] = []
    for sample in _lengths_to_try(stacks):
        row = counts_of(stacks, sample)
        if sympy.Matrix([*rows, row]).rank() > len(rows):
            lengths.append(sample)
            rows.append(row)
        if weights := _combination(rows, counts_of(stacks, whole)):
            break
    else:
        return None
    lengths[-1] = {stack.path: stack.sample_length(lengths[-1][stack.path]) for stack in stacks}
    rows[-1] = counts_of(stacks, lengths[-1])
    weights = _combination(rows, counts_of(stacks, whole))
    if not stacks or sum(map(sum, rows)) - len(rows) > sum(whole.values()):
        return None
    symbols = _symbols(stacks)
    slopes = {name: _combination(rows, _slope(stacks, symbols, name)) for name in symbols.values()}
    if not all(slopes.values()):
        symbols, slopes = {}, {}
    return Samples(stacks, lengths, weights, symbols, slopes)


def _kinds(stacks: Sequence[LayerStack]) -> list[int]:
    return sorted({kind for stack in stacks for kind in stack.kinds})


def counts_of(stacks: Sequence[LayerStack], lengths: Lengths) -> list[int]:
    """Return 1, then the number of layers of each kind."""
    seen = [kind for stack in stacks for kind in stack.kinds[: lengths[stack.path]]]
    return [1, *map(seen.count, _kinds(stacks))]


def _lengths_to_try(stacks: Sequence[LayerStack]) -> Iterator[Lengths]:
    """Yield lengths to try: one layer of each stack, then ever more of all.

    Of stacks that are not equally long, each but the last also has one layer more. A layer of a new
    kind is never the last, as it may affect the next one.
    """
    longest = max(map(len, stacks), default=0)
    alone = stacks[:-1] if len({len(stack) for stack in stacks}) > 1 else []
    for length in range(1, longest + 1):
        for one in (None, *alone):
            lengths = {s.path: min(length + (s is one), len(s)) for s in stacks}
            if not any(stack.ends_with_new_kind(lengths[stack.path]) for stack in stacks):
                yield lengths


def _combination(rows: Sequence[Sequence[int]], wanted: Sequence[Any]) -> list[Any]:
    """Return weights with which the rows sum to ``wanted``; [] if there are none."""
    import sympy

    names = [sympy.Dummy() for _ in rows]
    system = sympy.Matrix(rows).T, sympy.Matrix(wanted)
    solutions = list(sympy.linsolve(system, *names))
    return list(solutions[0].subs(dict.fromkeys(names, 0))) if solutions else []


def _symbols(stacks: Sequence[LayerStack]) -> dict[str, str]:
    """Return the symbol for the number of layers of each stack that repeats, by its path."""
    repeated = [stack.path for stack in stacks if stack.period(stack.start)]
    if len(repeated) == len(stacks) and len({len(stack) for stack in stacks}) == 1:
        return dict.fromkeys(repeated, LAYERS)
    paths = [stack.path.split(".") for stack in stacks]
    same = next((n for n, names in enumerate(zip_longest(*paths)) if len(set(names)) > 1), 0)
    firsts = [path[same] if len(path) > same else "" for path in paths]
    names = firsts if len(set(firsts)) == len(paths) else ["_".join(path[same:]) for path in paths]
    by_path = {".".join(path): f"{LAYERS}_{name}" for path, name in zip(paths, names, strict=True)}
    return {path: by_path[path] for path in repeated}


def _slope(stacks: Sequence[LayerStack], symbols: Mapping[str, str], name: str) -> list[Any]:
    """Return how counts by kind change with one layer more in every stack of a symbol."""
    import sympy

    kinds = _kinds(stacks)
    more = [sympy.Integer(0) for _ in kinds]
    for stack in stacks:
        if symbols.get(stack.path) == name:
            period = stack.period(stack.start)
            for kind in stack.kinds[stack.start : stack.start + period]:
                more[kinds.index(kind)] += sympy.Rational(1, period)
    return [0, *more]
