"""FLOPs of a training or forward pass as sums over tokens and over pairs of tokens.

Every convention for the FLOPs of a model is a whole number for each token plus whole numbers for
each pair of a query and a key that its mask leaves, or that the convention pretends it leaves. A
:class:`Mask` counts such pairs; :data:`Count` is a sum of them, exact at every length, as sympy
expression and as plain Python. :class:`ImageShape` counts the patches of images beside the text.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import Any


@dataclass(frozen=True, order=True)
class Mask:
    """Which keys each of N queries sees.

    ``token``: one, as if each token were a pair of its own; ``full``: all N; ``causal``: itself and
    all before; ``window``: the last ``size`` of these; ``capped``: always Min(N, ``size``);
    ``chunk``: those before it in its chunk of ``size``; ``around``: ``size`` on either side of it.
    """

    kind: str
    size: int = 0

    def pairs(self, n: int) -> int:
        """Return the number of pairs of ``n`` tokens."""
        return int(n * self._keys_seen(Fraction(n), min, floor)) if n else 0

    def mean(self) -> Any:
        """Return the pairs divided by the tokens as a sympy expression in N."""
        import sympy

        from attnprof.algebra.expressions import symbol

        return self._keys_seen(symbol("N"), sympy.Min, sympy.floor)

    def _keys_seen(self, n: Any, minimum: Callable[..., Any], floor: Callable[..., Any]) -> Any:
        """Return the keys that each of n queries sees on average, for numbers and symbols."""
        kind, size = self.kind, self.size
        if kind in ("token", "full", "causal"):
            return {"token": n / n, "full": n, "causal": (n + 1) / 2}[kind]
        if kind == "capped":
            return minimum(n, size)
        if kind == "chunk":
            whole = floor(n / size)
            rest = n - size * whole
            return (whole * size * (size + 1) + rest * (rest + 1)) / (2 * n)
        if kind == "around":
            near = minimum(n - 1, size)
            return 2 * near + 1 - near * (near + 1) / n
        seen = minimum(n, size)
        return seen - seen * (seen - 1) / (2 * n)

    def python(self) -> str:
        """Return the pairs as a Python expression in ``n`` that needs no import."""
        size, kind = self.size, self.kind
        if kind in ("token", "full", "causal"):
            return {"token": "n", "full": "n * n", "causal": "n * (n + 1) // 2"}[kind]
        if kind == "capped":
            return f"n * min(n, {size})"
        if kind == "chunk":
            whole = f"(n // {size}) * {size * (size + 1) // 2}"
            return f"({whole} + (n % {size}) * (n % {size} + 1) // 2)"
        if kind == "around":
            near = f"min(n - 1, {size})"
            return f"(n * (2 * {near} + 1) - {near} * ({near} + 1))"
        seen = f"min(n, {size})"
        return f"(n * {seen} - {seen} * ({seen} - 1) // 2)"


TOKEN, FULL, CAUSAL = Mask("token"), Mask("full"), Mask("causal")
#: FLOPs by the pairs they are spent on; those of each token stand at :data:`TOKEN`.
Count = Mapping[Mask, int]


def summed(counts: Iterable[Count]) -> dict[Mask, int]:
    """Return the sum of counts, without zeros."""
    total = Counter[Mask]()
    for count in counts:
        for mask, flops in count.items():
            total[mask] += flops
    return {mask: flops for mask, flops in sorted(total.items()) if flops}


def times(count: Count, factor: Fraction | int) -> dict[Mask, int]:
    """Return a count times a factor that leaves whole numbers."""
    scaled = {mask: flops * Fraction(factor) for mask, flops in count.items()}
    assert all(value.denominator == 1 for value in scaled.values()), (count, factor)
    return {mask: value.numerator for mask, value in scaled.items() if value}


def sequence_flops(count: Count, n: int) -> int:
    """Return the FLOPs of a sequence of ``n`` tokens."""
    return sum(flops * mask.pairs(n) for mask, flops in count.items())


def per_token(flops: int, tokens: int) -> int:
    """Return FLOPs a token, rounded to the nearest whole number (half up)."""
    return (2 * flops + tokens) // (2 * tokens)


def expression(count: Count) -> Any:
    """Return the FLOPs a token as a sympy expression in N."""
    import sympy

    each = count.get(TOKEN, 0)
    terms = [flops * mask.mean() for mask, flops in count.items() if mask != TOKEN]
    plain = [term for term in terms if not term.has(sympy.Min, sympy.floor)]
    others = [term for term in terms if term.has(sympy.Min, sympy.floor)]
    return sympy.Add(sympy.expand(sympy.Add(each, *plain)), *others)


@dataclass(frozen=True)
class ImageShape:
    """A vision transformer: multiply-adds a patch before merging and of merging, layers, width.

    ``merged`` patches become one token, so merging is done once for so many.
    """

    products: int
    merging: int
    merged: int
    layers: int
    width: int

    def flops(self, lengths: Sequence[int], convention: str, phase: str) -> int:
        """Return the FLOPs of images of so many patches each, attention full within each.

        ``verl`` merges once for every patch; ``executed`` once for each token, and has the fused
        kernel's recomputation. Other conventions have no images.
        """
        executed = convention == "executed"
        if convention not in ("verl", "executed"):
            return 0
        patches, pairs = sum(lengths), sum(n * n for n in lengths)
        merges = patches // self.merged if executed else patches
        each = 6 * (self.products * patches + self.merging * merges)
        attention = (14 if executed else 12) * pairs * self.layers * self.width
        if phase == "train":
            return each + attention
        return each // 3 + 4 * pairs * self.layers * self.width
