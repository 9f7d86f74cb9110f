"""A difference of two costs as polynomials over ranges of lengths, checked against integers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from attnprof.algebra.polynomials import (
    Branches,
    NotPiecewisePolynomialError,
    Polynomial,
    at_width,
    terms_of,
    value_of,
)
from attnprof.algebra.roots import Root, exactly, positive_roots

#: CostDifference of two costs at (seq_len, head_dim); ints and polynomials alike.
CostDifference = Callable[[Any, Any], Any]
MOST_PIECES = 300


@dataclass(frozen=True)
class Piece:
    """One polynomial, valid for every length from ``first`` to ``end`` (None: for ever).

    ``coefficients`` are those in the length, lowest first, scaled to integers; ``terms`` hold
    powers of the head width too where the cost could be run on a symbolic one (``general``).
    """

    first: int
    end: Root | None
    coefficients: tuple[int, ...]
    terms: Polynomial
    general: bool


def pieces(difference: CostDifference, head_dim: int, start: int = 1) -> list[Piece]:
    """The whole difference from a length on, for one head width.

    Raises :class:`NotPiecewisePolynomialError` where it is none (floors, ceilings), or where its
    polynomials do not give what integers give.
    """
    try:
        found = _traced(difference, head_dim, start, symbolic_width=True)
    except NotPiecewisePolynomialError:
        found = _traced(difference, head_dim, start, symbolic_width=False)
    return _checked(found, difference, head_dim)


def _traced(
    difference: CostDifference, head_dim: int, start: int, *, symbolic_width: bool
) -> list[Piece]:
    found: list[Piece] = []
    first: int | None = start
    while first is not None:
        if len(found) == MOST_PIECES:
            raise NotPiecewisePolynomialError(f"more than {MOST_PIECES} pieces")
        branches = Branches((first, head_dim))
        n = branches.size(0)
        d = branches.size(1) if symbolic_width else head_dim
        terms = terms_of(lambda n=n, d=d: difference(n, d))  # type: ignore[misc]
        end = _end(branches.decided, head_dim, first)
        found.append(Piece(first, end, at_width(terms, head_dim), terms, symbolic_width))
        first = None if end is None else max(end.ceiling, first + 1)
    return found


def _end(decided: list[Polynomial], head_dim: int, first: int) -> Root | None:
    """Where the first comparison may change its answer, from ``first`` on."""
    asked = {at_width(terms, head_dim) for terms in decided}
    after = [root for one in asked for root in positive_roots(one) if root.at >= first]
    return min(after, default=None)


def _checked(found: list[Piece], difference: CostDifference, head_dim: int) -> list[Piece]:
    """Each piece against integers at its first length.

    At length 1 tensors broadcast instead of being summed, and a cost may take another path: the
    length then is a piece of its own.
    """
    start = found[0]
    if start.first == 1 and not _agrees(start, difference, head_dim):
        longer = start.end is None or start.end.at >= 2
        one = _alone(1, difference(1, head_dim), head_dim)
        found = [one, *([replace(start, first=2)] if longer else []), *found[1:]]
    found = [_jump(piece, after, head_dim) for piece, after in pairwise(found)] + found[-1:]
    for piece in found:
        if not _agrees(piece, difference, head_dim):
            raise NotPiecewisePolynomialError(f"integers disagree at length {piece.first}")
    return found


def _alone(length: int, value: int, head_dim: int) -> Piece:
    """A length of its own: it keeps its value until the next one."""
    terms: Polynomial = {(0, 0): value} if value else {}
    return Piece(length, exactly(length + 1), at_width(terms, head_dim), terms, general=False)


def _jump(piece: Piece, after: Piece, head_dim: int) -> Piece:
    """The piece; where it is a single length and what follows does not pass through it, alone."""
    single = piece.end is not None and piece.end.at == piece.first
    value = value_of(piece.terms, piece.first, head_dim)
    if single and value != value_of(after.terms, piece.first, head_dim):
        return _alone(piece.first, value, head_dim)
    return piece


def _agrees(piece: Piece, difference: CostDifference, head_dim: int) -> bool:
    return bool(value_of(piece.terms, piece.first, head_dim) == difference(piece.first, head_dim))
