"""Ways in which a hand-written formula may count attention: masks, backward passes, heads, widths.

A reading changes what is executed in some respects; :func:`attention_flops` counts a model by it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any

from attnprof.models.conventions import FULL, AttentionShape, Mask, ModelSizes


@dataclass(frozen=True)
class AttentionReading:
    """How somebody may have counted attention; the defaults are what is executed."""

    backward: str = ""
    windows: str = ""
    keys: str = ""
    heads: str = ""
    widths: str = ""
    layers: str = ""
    repeats: str = ""

    def changes(self) -> int:
        """Return how far it is from what is executed: its changes, a repeat as three."""
        return sum(map(bool, vars(self).values())) + 2 * bool(self.repeats)


_CHOICES: Mapping[str, tuple[str, ...]] = {
    "windows": ("", "windows counted dense"),
    "keys": ("", "causal counted full: N keys, not (N + 1)/2",
             "causal counted N/2 keys, not (N + 1)/2"),
    "backward": ("", "backward 2x, without the fused kernel's recomputation",
                 "forward pass alone", "with the backward pass, 2x",
                 "multiply-adds, not FLOPs"),
    "heads": ("", "key heads instead of query heads"),
    "widths": ("", "values as wide as keys", "hidden size / heads as the width of a head"),
    "layers": ("", "attention in every layer"),
    "repeats": ("", "attention counted twice", "attention halved once more"),
}  # fmt: skip


def attention_flops(
    sizes: ModelSizes, phase: str, reading: AttentionReading
) -> dict[Mask, Fraction]:
    """Return FLOPs by mask of attention, read in a way."""
    total = dict[Mask, Fraction]()
    several = sum(x.layers for x in sizes.attention)
    for x in sizes.attention:
        layers = Fraction(x.layers * sizes.layers, several) if reading.layers else x.layers
        key, value = x.key_dim, x.value_dim
        if reading.widths:
            key = value = key if "keys" in reading.widths else sizes.hidden // x.heads
        heads = x.kv_heads if reading.heads else x.heads
        widths = Fraction(_widths(key, value, phase, reading.backward)) * heads * layers
        mask, factor = _mask(x, reading)
        factor *= {"": 1, "attention counted twice": 2}.get(reading.repeats, Fraction(1, 2))
        total[mask] = total.get(mask, Fraction(0)) + widths * factor
    return total


def _widths(key: int, value: int, phase: str, backward: str) -> int:
    if backward == "multiply-adds, not FLOPs":
        return key + value
    if backward == "forward pass alone" or (phase == "forward" and not backward):
        return 2 * (key + value)
    return 6 * (key + value) if backward else 2 * (4 * key + 3 * value)


def _mask(shape: AttentionShape, reading: AttentionReading) -> tuple[Mask, Fraction]:
    """Return the mask, and by what its pairs are multiplied, of a layer read in a way."""
    mask = shape.mask
    if mask.kind in ("window", "chunk") and reading.windows:
        mask = Mask("causal")
    if not reading.keys or mask.kind not in ("window", "causal"):
        return mask, Fraction(1)
    full = FULL if mask.kind == "causal" else Mask("capped", mask.size)
    return full, Fraction(1) if "full" in reading.keys else Fraction(1, 2)


def mean_flops(counted: Mapping[Mask, Fraction], n: int) -> Fraction:
    """Return FLOPs a token of a sequence of ``n`` tokens."""
    return sum((flops * mask.pairs(n) for mask, flops in counted.items()), Fraction(0)) / n


def attention_readings(sizes: ModelSizes, phase: str) -> list[AttentionReading]:
    """Return all readings that differ for this model, those with the fewest changes first."""
    possible = dict(_CHOICES)
    masks = {x.mask.kind for x in sizes.attention}
    shapes = sizes.attention
    for name, matters in {
        "windows": bool(masks & {"window", "chunk"}),
        "keys": bool(masks & {"window", "causal"}),
        "heads": any(x.heads != x.kv_heads for x in shapes),
        "layers": sum(x.layers for x in shapes) != sizes.layers,
    }.items():
        possible[name] = possible[name] if matters else ("",)
    matter = {
        "": True,
        "values as wide as keys": any(x.key_dim != x.value_dim for x in shapes),
        "hidden size / heads as the width of a head": any(
            x.key_dim != sizes.hidden // x.heads for x in shapes
        ),
    }
    possible["widths"] = tuple(name for name, differs in matter.items() if differs)
    of_phase = (0, 1, 2, 4) if phase == "train" else (0, 3, 4)
    possible["backward"] = tuple(_CHOICES["backward"][i] for i in of_phase)
    every = (
        AttentionReading(**dict(zip(possible, x, strict=True))) for x in product(*possible.values())
    )
    return sorted(every, key=AttentionReading.changes)


def mean_expression(counted: Mapping[Mask, Fraction]) -> Any:
    """Return FLOPs a token as a sympy expression in N."""
    import sympy

    factors = {mask: sympy.Rational(x.numerator, x.denominator) for mask, x in counted.items()}
    return sympy.expand(sympy.Add(*(factor * mask.mean() for mask, factor in factors.items())))
