"""Pairs of the definition, for buckets that are filled evenly."""

from __future__ import annotations

from attnprof.costs import (
    Number,
    at_least_one,
    exact_div,
    floor_div,
    maximum,
    minimum,
)


def seen_before(rank: Number, size: int) -> Number:
    """Earlier tokens that a token of this rank in its bucket sees: own chunk and the one before."""
    return minimum(rank, size + rank - size * floor_div(rank, size))


def seen_until(ranks: Number, size: int) -> Number:
    """The same, summed over the first so many ranks."""
    first = minimum(ranks, size)
    rest = ranks - first
    whole = floor_div(rest, size)
    last = rest - whole * size
    inside = whole * exact_div(size * (size - 1), 2) + exact_div(last * (last - 1), 2)
    return exact_div(first * (first - 1), 2) + rest * size + inside


def seen_in_bucket(tokens: Number, size: int) -> Number:
    """Pairs of a bucket of so many tokens, each with itself included, nothing hidden in time."""
    whole = floor_div(tokens, size)
    last = tokens - whole * size
    before = maximum(0, whole - 1) * size * size + at_least_one(whole) * last * size
    return whole * size * size + last * last + before


def only_one(tokens: Number) -> Number:
    """1 for a bucket of one token, 0 for any other."""
    return at_least_one(tokens) - at_least_one(maximum(0, tokens - 1))
