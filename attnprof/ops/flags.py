"""Simplify flags: expressions that are 1 or 0, as the sizes decide.

Memory that two tensors hold under conditions a and b is alive where 1 - (1 - a)*(1 - b) is 1. A
flag to any power is itself, so a sum of products has few terms. Entry point: :func:`as_flag`.
"""

from functools import lru_cache

from attnprof.costs import Number, is_symbolic


def as_flag(value: Number) -> Number:
    """Return a product or sum of flags as a sum of products without powers."""
    return _as_flag(value) if is_symbolic(value) else value


@lru_cache(maxsize=4096)
def _as_flag(value: Number) -> Number:
    import sympy

    return sympy.Add(*(factor * sympy.Mul(*flags) for flags, factor in _flags(value).items()))


@lru_cache(maxsize=4096)
def _flags(value: Number) -> dict[frozenset[Number], Number]:
    """Return the products of flags in a sum, and their factors.

    Sympy would expand (1 - a)*(1 - a*b) to four terms, and further products to hundreds before
    powers of flags meet: 1 - a*b - a + a**2*b is 1 - a here, as soon as both are multiplied.
    """
    if value.is_Number:
        return {frozenset(): value}
    is_power = value.is_Pow and value.exp.is_Integer and value.exp > 0
    if not (value.is_Add or value.is_Mul or is_power):
        plain = value.expand()
        return _flags(plain) if plain.is_Add or plain.is_Mul else {frozenset((plain,)): 1}
    # a power of a sum is multiplied out: the sum need not be a flag itself
    parts = map(_flags, [value.base] * int(value.exp) if is_power else value.args)
    total: dict[frozenset[Number], Number] = next(parts)
    for part in parts:
        pairs = (
            [*total.items(), *part.items()] if value.is_Add
            else [(a | b, x * y) for a, x in total.items() for b, y in part.items()]
        )  # fmt: skip
        total = {}
        for flags, factor in pairs:
            total[flags] = total.get(flags, 0) + factor
        total = {flags: factor for flags, factor in total.items() if factor}
    return total
