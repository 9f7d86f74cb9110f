"""Counts: numbers of operations by kind, and those of one product or sum in a number format."""

from collections.abc import Mapping
from typing import Any

from attnprof.trace.events import KINDS, Size
from attnprof.trace.sizes import is_floating


class Counts(dict[str, Size]):
    """Operations by kind, added and multiplied like terms: ``(2 * M + A) * numel(x)``."""

    def __add__(self, other: Mapping[str, Size]) -> "Counts":
        # a ``Counter`` would compare expressions with zero
        sums = {kind: self[kind] + n if kind in self else n for kind, n in other.items()}
        return Counts({**self, **sums})

    def __mul__(self, times: Size) -> "Counts":
        """Return the counts times a size; times a condition, they count where it is true."""
        if isinstance(times, bool):
            return self if times else Counts()
        return Counts({kind: count * times for kind, count in self.items()})

    __rmul__ = __mul__


NOTHING = Counts()
#: Keys for how much more other views of a model count for a kernel's call: FLOPs on all pairs
#: (causal masks apart), FLOPs by definition or by a kernel instead, bytes of a copied cache.
DENSE, DENSE_CAUSAL, OTHER_FORM, COPIED = "dense", "dense causal", "other form", "copied"
#: multiplications, additions, divisions, exponentials, others, FLOPs of matrix products
M, A, D, E, OTHER, MM = (Counts({kind: 1}) for kind in KINDS)
#: A multiply-add of a matrix product.
MAC = M + A + 2 * MM


def flops_in(counts: Mapping[str, Size]) -> Size:
    """Return the FLOPs in counts."""
    return sum(counts.get(kind, 0) for kind in KINDS[:5])


def products(tensor: Any) -> Counts:
    """Return the counts of a product of two numbers of a tensor's format; none for integers."""
    return (4 * M + 2 * A if tensor.is_complex() else M) * is_floating(tensor)


def sums(tensor: Any) -> Counts:
    """Return the counts of a sum of two numbers of a tensor's format; none for integers."""
    return (2 * A if tensor.is_complex() else A) * is_floating(tensor)


def macs(tensor: Any) -> Counts:
    """Return the counts of a multiply-add in a matrix product; a complex one is four real ones."""
    return (4 * MAC if tensor.is_complex() else MAC) * is_floating(tensor)
