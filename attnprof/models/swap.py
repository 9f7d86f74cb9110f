"""Parse ``--swap``: another mechanism in some layers of a model, ``linear@even``."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnprof import registry
from attnprof.errors import RequestError
from attnprof.models.config import Attention, ModelConfig
from attnprof.workload import Workload

HOW = (
    "type NAME for all layers, or NAME@LAYERS: @0, @0,3, @2-5, @even, @odd, @pattern=3:1 (three of "
    "four) or @ a kind of layer"
)
#: Other names of mechanisms.
_SPOKEN = {"sliding": "sliding-window"}
#: Layers with a mechanism and without it, in turns: ``pattern=3:1``.
_PATTERN = "pattern="
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
#: A workload at which a layer that lends its picked tokens keeps some.
_ANY = Workload(1, 1, 1)


@dataclass(frozen=True)
class Swap:
    """A mechanism, and the layers that get it; "" is all of them."""

    attention: Attention
    layers: str = ""

    @property
    def text(self) -> str:
        """The swap as it is typed."""
        return f"{self.attention.name}@{self.layers}" if self.layers else self.attention.name

    def chosen(self, kinds: Sequence[str], types: Sequence[str] = ()) -> list[int]:
        """Return the numbers of the swap's layers in a model with these kinds of layers.

        ``types`` are other names of layers, by a configuration. RequestError if there is no such
        layer.
        """
        everyone = range(len(kinds))
        if self.layers in ("", "all"):
            return list(everyone)
        if self.layers in ("even", "odd"):
            return list(everyone[self.layers == "odd" :: 2])
        if self.layers.startswith(_PATTERN):
            return self._in_turns(len(kinds))
        named = [n for n in everyone if self.layers in (kinds[n], *types[n : n + 1])]
        return named or self._numbered(kinds)

    def _in_turns(self, count: int) -> list[int]:
        """Return the layers of ``pattern=3:1``: three get it, one is left, and so on."""
        turns = self.layers.removeprefix(_PATTERN).split(":")
        if len(turns) != 2 or not all(x.isdecimal() and int(x) for x in turns):
            raise RequestError(f"--swap {self.text}: type layers with and without it: pattern=3:1")
        swapped, left = map(int, turns)
        return [number for number in range(count) if number % (swapped + left) < swapped]

    def _numbered(self, kinds: Sequence[str]) -> list[int]:
        """Return the layers of a list like ``0,3,5-7``."""
        numbers = list[int]()
        for part in self.layers.split(","):
            ends = _RANGE.fullmatch(part.strip())
            if ends is None:
                names = ", ".join(dict.fromkeys(kinds))
                raise RequestError(f"--swap {self.text}: no such layers; {HOW} ({names})")
            first, last = int(ends[1]), int(ends[2] or ends[1])
            if not first <= last < len(kinds):
                raise RequestError(
                    f"--swap {self.text}: the layers are 0 to {len(kinds) - 1}, not {part.strip()}"
                )
            numbers += range(first, last + 1)
        return sorted(set(numbers))


def swaps_of(texts: Sequence[str], values: Mapping[str, Any]) -> list[Swap]:
    """Return swaps from typed texts, with values of the mechanisms' parameters."""
    pairs = [text.partition("@") for text in texts]
    pairs = [(_SPOKEN.get(name.strip(), name.strip()), at, layers) for name, at, layers in pairs]
    for text, (name, at, layers) in zip(texts, pairs, strict=True):
        if not name or (at and not layers):
            raise RequestError(f"--swap {text}: {HOW}")
    if values and not pairs:
        raise RequestError("--set is for the mechanisms of --swap; name one, like --swap linear")
    mechanisms = registry.configured([name for name, _, _ in pairs], values)
    for mechanism in mechanisms:
        if mechanism.continues or mechanism.lent_bytes(_ANY):
            raise RequestError(
                f"--swap {mechanism.name}: in a model no layer takes what another picked: type "
                f"--set index=own; what sharing saves, attnprof cost -a {mechanism.name}@index=lent"
                f"+{mechanism.name}@index=shared@3 says"
            )
    return [
        Swap(Attention.of({"name": name, **mechanism.params}), layers.strip())
        for (name, _, layers), mechanism in zip(pairs, mechanisms, strict=True)
    ]


def notes_on(swaps: Iterable[Swap]) -> list[str]:
    """Return notes on parameters with another meaning in mechanisms than in configurations."""
    notes = dict[str, None]()
    for swap in swaps:
        mechanism = swap.attention.mechanism
        for name, meaning in mechanism.counted.items():
            value = mechanism.params[name]
            notes[f"{mechanism.name}'s {name}={value} is {value} {meaning}"] = None
    return list(notes)


def by_layer(
    swaps: Sequence[Swap], kinds: Sequence[str], types: Sequence[str] = ()
) -> dict[int, Attention]:
    """Return the mechanism of every layer that gets one; of several swaps the last counts."""
    return {number: swap.attention for swap in swaps for number in swap.chosen(kinds, types)}


def swapped_config(config: ModelConfig, swaps: Sequence[Swap]) -> ModelConfig:
    """Return a model of ours with other mechanisms; an encoder's layers before a decoder's."""
    first, second = config.mechanisms
    kinds = ["encoder" if second else config.kind] * len(first) + ["decoder"] * len(second)
    chosen = by_layer(swaps, kinds)
    after = [chosen.get(n, choice) for n, choice in enumerate([*first, *second])]
    result = config.with_(attention=tuple(after[: len(first)]))
    return result.with_(decoder_attention=tuple(after[len(first) :])) if second else result
