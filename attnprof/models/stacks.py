"""Layers that repeat: which first few of a model say what all of them cost.

A model with its first k layers alone is built for several k. What it costs is a sum over layers by
kind, so that the whole follows from as many of these as there are kinds, and one more.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from attnprof.algebra.expressions import symbol
from attnprof.models.costs import LayerKind
from attnprof.models.whole import WholeModel

#: What a formula calls the number of layers.
LAYERS = "L"
#: Layers of each stack that a model is built with, by the stack's path.
Lengths = Mapping[str, int]
#: Layers that are others than those that repeat: of so many one, at most, and the first.
_BEFORE = 4


@dataclass(frozen=True)
class LayerStack:
    """A list of layers: its path in the model, and the number of each layer's kind, in order."""

    path: str
    kinds: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.kinds)

    def layer(self, number: int) -> str:
        """The path of a layer."""
        return f"{self.path}.{number}"

    def period(self, start: int = 0) -> int:
        """After how many layers their kinds repeat, from one on; 0 where they do so less twice."""
        kinds = self.kinds[start:]
        half = range(1, len(kinds) // 2 + 1)
        return next((p for p in half if kinds[p:] == kinds[:-p]), 0)

    def telling(self, length: int) -> int:
        """So many layers at least that all kinds are among them between two others."""
        repeated = {kind for kind in self.kinds if self.kinds.count(kind) > 1}
        enough = (n for n in range(length, len(self)) if repeated <= {*self.kinds[1 : n - 1]})
        return next(enough, len(self))

    def ends_new(self, length: int) -> bool:
        """Whether the last of so many layers, that is neither first nor last, is the only one."""
        return 1 < length < len(self) and self.kinds[length - 1] not in self.kinds[: length - 1]

    @property
    def start(self) -> int:
        """The first layer from which on kinds repeat; its length where they never do."""
        few = range(len(self) // _BEFORE + 1)
        return next((n for n in few if self.period(n)), len(self))


def stacks_of(model: Any, kinds: Sequence[LayerKind]) -> list[LayerStack]:
    """The lists that a model keeps layers in of which some are alike."""
    from torch import nn

    of = {path: number for number, kind in enumerate(kinds) for path in kind.layers if path}
    paths = dict.fromkeys(path.rpartition(".")[0] for path in of)
    found = []
    for path in paths:
        held = model.get_submodule(path)
        layers = [f"{path}.{number}" for number in range(sum(1 for _ in held.children()))]
        if isinstance(held, nn.ModuleList | nn.Sequential) and all(x in of for x in layers):
            stack = LayerStack(path, tuple(of[layer] for layer in layers))
            if 2 * len(set(stack.kinds)) <= len(stack):
                found.append(stack)
    return found


def shortened(subject: WholeModel, lengths: Lengths) -> WholeModel:
    """The model with the first layers of each stack alone: those that it would have, too.

    Where tensors have no values, it is built once, and copied.
    """
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
    """Lengths of stacks of which each kind of layer's cost follows; the last has the most layers.

    ``weights``: the model costs so many times what each of them does. ``symbols``: what formulas
    call the number of a stack's layers, by its path: one name where all stacks are equally long;
    none where layers do not repeat. ``slopes``: what one layer more adds, by that name.
    """

    stacks: Sequence[LayerStack]
    lengths: Sequence[Lengths]
    weights: Sequence[Any]
    symbols: Mapping[str, str]
    slopes: Mapping[str, Sequence[Any]]

    def summed(self, values: Sequence[Any], *, by_layers: bool = False) -> Any:
        """A quantity of the whole, given that of each sample; perhaps with symbols for layers."""
        import sympy

        def weighted(weights: Sequence[Any]) -> Any:
            return sympy.Add(*(n * x for n, x in zip(weights, values, strict=True)))

        whole = weighted(self.weights)
        for name, slope in self.slopes.items() if by_layers else ():
            whole += (symbol(name) - self.layers[name]) * weighted(slope)
        found = sympy.expand(whole)
        return int(found) if found.is_Integer else found

    def weights_of(self, lengths: Lengths) -> list[Any]:
        """How many times each sample is what so many layers cost."""
        rows = [counts_of(self.stacks, sample) for sample in self.lengths]
        return _combination(rows, counts_of(self.stacks, lengths))

    @property
    def layers(self) -> dict[str, int]:
        """How many layers there are, by the symbols for that."""
        return self.numbers({stack.path: len(stack) for stack in self.stacks})

    def numbers(self, lengths: Lengths) -> dict[str, int]:
        """What symbols for numbers of layers stand for in stacks of such lengths."""
        return {name: lengths[path] for path, name in self.symbols.items()}


def samples_of(stacks: Sequence[LayerStack]) -> Samples | None:
    """The lengths with fewest layers; None where they would save nothing."""
    import sympy

    whole = {stack.path: len(stack) for stack in stacks}
    lengths: list[Lengths] = []
    rows: list[list[int]] = []
    for sample in _growing(stacks):
        row = counts_of(stacks, sample)
        if sympy.Matrix([*rows, row]).rank() > len(rows):
            lengths.append(sample)
            rows.append(row)
        if weights := _combination(rows, counts_of(stacks, whole)):
            break
    else:
        return None
    lengths[-1] = {stack.path: stack.telling(lengths[-1][stack.path]) for stack in stacks}
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
    """One, and how many layers there are of each kind."""
    seen = [kind for stack in stacks for kind in stack.kinds[: lengths[stack.path]]]
    return [1, *map(seen.count, _kinds(stacks))]


def _growing(stacks: Sequence[LayerStack]) -> Iterator[Lengths]:
    """One layer of each stack, then ever more of all, as far as a stack has them.

    Of stacks that are not equally long each one but the last has one layer more for once. A kind
    that is new comes with the layer after it: what follows is seen, too.
    """
    longest = max(map(len, stacks), default=0)
    alone = stacks[:-1] if len({len(stack) for stack in stacks}) > 1 else []
    for length in range(1, longest + 1):
        for one in (None, *alone):
            found = {s.path: min(length + (s is one), len(s)) for s in stacks}
            if not any(stack.ends_new(found[stack.path]) for stack in stacks):
                yield found


def _combination(rows: Sequence[Sequence[int]], wanted: Sequence[Any]) -> list[Any]:
    """How many times each row gives what is wanted in sum; nothing where they cannot."""
    import sympy

    names = [sympy.Dummy() for _ in rows]
    system = sympy.Matrix(rows).T, sympy.Matrix(wanted)
    found = list(sympy.linsolve(system, *names))
    return list(found[0].subs(dict.fromkeys(names, 0))) if found else []


def _symbols(stacks: Sequence[LayerStack]) -> dict[str, str]:
    """What formulas call the number of layers of each stack whose layers repeat, by its path."""
    repeated = [stack.path for stack in stacks if stack.period(stack.start)]
    if len(repeated) == len(stacks) and len({len(stack) for stack in stacks}) == 1:
        return dict.fromkeys(repeated, LAYERS)
    paths = [stack.path.split(".") for stack in stacks]
    same = next((n for n, names in enumerate(zip_longest(*paths)) if len(set(names)) > 1), 0)
    firsts = [path[same] if len(path) > same else "" for path in paths]
    names = firsts if len(set(firsts)) == len(paths) else ["_".join(path[same:]) for path in paths]
    told = {".".join(path): f"{LAYERS}_{name}" for path, name in zip(paths, names, strict=True)}
    return {path: told[path] for path in repeated}


def _slope(stacks: Sequence[LayerStack], symbols: Mapping[str, str], name: str) -> list[Any]:
    """What one layer more of every stack of a symbol adds to counts by kind."""
    import sympy

    kinds = _kinds(stacks)
    more = [sympy.Integer(0) for _ in kinds]
    for stack in stacks:
        if symbols.get(stack.path) == name:
            period = stack.period(stack.start)
            for kind in stack.kinds[stack.start : stack.start + period]:
                more[kinds.index(kind)] += sympy.Rational(1, period)
    return [0, *more]
