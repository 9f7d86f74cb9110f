"""Layers that repeat: a model with the first few of them stands for the model with all.

Layers of a kind cost the same, except perhaps the first and the last of the model. So a model in
which each kind stands between two other layers gives the cost of any number of layers: of 12 layers
alike the first 3 are enough, of which the one in the middle counts ten times.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any

from attnprof.algebra.expressions import symbol
from attnprof.models.costs import LayerKind
from attnprof.models.whole import WholeModel
from attnprof.trace.events import added

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

    @cached_property
    def start(self) -> int:
        """The first layer from which on kinds repeat; the length if they never do."""
        few = range(len(self) // _ONE_BEFORE + 1)
        return next((n for n in few if self.period(n)), len(self))

    @cached_property
    def sampled(self) -> int:
        """How many first layers are sampled: all kinds, and repeated ones between two other layers.

        A layer of a new kind is never the last of them, as it may affect the next one.
        """
        repeated = {kind for kind, times in Counter(self.kinds).items() if times > 1}
        enough = (
            n for n in range(1, len(self))
            if {*self.kinds} == {*self.kinds[: n - 1]} and repeated <= {*self.kinds[1 : n - 1]}
        )  # fmt: skip
        return next(enough, len(self))

    def inner_layers(self, sampled: int) -> dict[int, int]:
        """Return the number of a sampled layer by kind, the last layer only if it is the only."""
        return {self.kinds[n]: n for n in (sampled - 1, *range(sampled - 1))}

    def originals(self, sampled: int, length: int) -> list[int]:
        """Return the sampled layer that each of the first ``length`` layers repeats.

        The last layer, which may have less to do, repeats the last sampled one of its kind.
        """
        inner, last = self.inner_layers(sampled), sampled - 1
        numbers = [n if n < last else inner[kind] for n, kind in enumerate(self.kinds[:length])]
        return [*numbers[:-1], last] if self.kinds[last] == self.kinds[length - 1] else numbers


#: A layer: its stack and number; None stands for what is in no layer.
Layer = tuple[LayerStack, int] | None


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

    from attnprof.trace.run.worlds import emptied, has_values, on_meta

    once = dict[Any, Any]()

    def cut() -> Any:
        model = subject.build()
        for path, length in lengths.items():
            del model.get_submodule(path)[length:]
        return model

    def build() -> Any:
        if has_values():
            return cut()
        dtype = torch.get_default_dtype()
        if dtype not in once:
            with on_meta():
                once[dtype] = cut()
        return emptied(once[dtype])

    return replace(subject, build=build)


@dataclass(frozen=True)
class SampledLayers:
    """The first layers of stacks, which stand for all layers.

    ``symbols`` are the names of numbers of layers in formulas, by the path of a stack that repeats:
    one name if all stacks are equally long and repeat.
    """

    stacks: Sequence[LayerStack]
    symbols: Mapping[str, str]

    @property
    def lengths(self) -> dict[str, int]:
        """The sampled layers of each stack."""
        return {stack.path: stack.sampled for stack in self.stacks}

    @property
    def full(self) -> dict[str, int]:
        """The lengths of the model's own stacks."""
        return {stack.path: len(stack) for stack in self.stacks}

    @property
    def layers(self) -> dict[str, int]:
        """The model's numbers of layers, by symbol."""
        return self.numbers(self.full)

    def numbers(self, lengths: Lengths) -> dict[str, int]:
        """Return the value of each symbol in stacks with these lengths."""
        return {name: lengths[path] for path, name in self.symbols.items()}

    def times(self, lengths: Lengths) -> Counter[Layer]:
        """Return how often each sampled layer stands for one in stacks of these lengths.

        The last sampled layer counts once. Where the stack ends with a layer of another kind, its
        kind has one layer less between the ends: the last layer alone lacks what runs between two.
        """
        times = Counter[Layer]({None: 1})
        for stack in self.stacks:
            last = stack.sampled - 1
            originals = stack.originals(stack.sampled, lengths[stack.path])
            times.update((stack, number) for number in originals)
            if last not in originals:
                times[stack, last] += 1
                times[stack, stack.inner_layers(stack.sampled)[stack.kinds[last]]] -= 1
        return times

    def in_layers(self, each: Mapping[Layer, Any]) -> Any:
        """Return the sum of a quantity over all layers, with symbols for numbers of layers.

        ``each`` is the quantity of each sampled layer. Of 12 layers alike that hold x it is L*x.
        """
        terms = [each.get(layer, 0) * times for layer, times in self.times(self.full).items()]
        for stack in self.stacks:
            if name := self.symbols.get(stack.path):
                inner, period = stack.inner_layers(stack.sampled), stack.period(stack.start)
                repeated = stack.kinds[stack.start : stack.start + period]
                one_period = added([each.get((stack, inner[kind]), 0) for kind in repeated])
                terms.append(one_period * (symbol(name) - len(stack)) / period)
        total = added(terms)
        return int(total) if getattr(total, "is_Integer", False) else total

    def symbol_of_peak(self, stack: LayerStack) -> Any:
        """Return the symbol for a stack's number of layers in peaks, or None."""
        name = self.symbols.get(stack.path)
        return symbol(name) if name and self._min_periods(name) else None

    def _min_periods(self, name: str) -> int:
        """Return the least periods after the sampled layers: 2 if the peak is known, else 0.

        The walk to a peak goes through the first and the last of them (:mod:`.few_layers`).
        """
        return 2 if all(s.period(max(s.start, s.sampled - 1)) for s in self._stacks(name)) else 0

    def _stacks(self, name: str) -> list[LayerStack]:
        """Return the stacks whose number of layers a symbol stands for."""
        return [stack for stack in self.stacks if self.symbols.get(stack.path) == name]

    def _min_layers(self, name: str) -> int:
        """Return the smallest number of layers, by its symbol, for which formulas hold."""
        periods, numbers = self._min_periods(name), list[int]()
        for stack in self._stacks(name):
            start = max(stack.start, stack.sampled - (periods > 0))
            period = stack.period(stack.start)
            numbers.append(start + periods * period + (len(stack) - start) % period)
        return max(numbers)

    def domain(self, symbols: Iterable[str]) -> Iterator[str]:
        """Yield the conditions on numbers of layers: ``L >= 4``, ``L mod 2 = 0``."""
        for name in symbols:
            yield f"{name} >= {self._min_layers(name)}"
            stacks = self._stacks(name)
            for period in dict.fromkeys(stack.period(stack.start) for stack in stacks):
                if period > 1:
                    yield f"{name} mod {period} = {len(stacks[0]) % period}"

    @property
    def longer(self) -> Lengths | None:
        """Lengths at which formulas are verified, the least that they hold for; None without any.

        Where no number of layers has a symbol, it is one layer more than the sample has.
        """
        least = {name: self._min_layers(name) for name in {*self.symbols.values()}}
        lengths = {}
        for stack in self.stacks:
            more = stack.sampled + (not self.symbols)
            lengths[stack.path] = min(len(stack), least.get(self.symbols.get(stack.path, ""), more))
        return None if lengths in (self.full, self.lengths) else lengths


def sample_of(stacks: Sequence[LayerStack]) -> SampledLayers | None:
    """Return the sampled layers of stacks; None if these are all of them."""
    if sum(stack.sampled for stack in stacks) >= sum(map(len, stacks)):
        return None
    return SampledLayers(stacks, _symbols(stacks))


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
