"""Which moments of a run can be the worst, of sizes from 2 on and rests between 0 and blocks."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attnprof.algebra.maxima import above, covering, dominates, plus, terms_of
from attnprof.trace.solve.accounts import Terms

#: The highest power of a rest that is written by the ends of its interval.
_POWER = 2


class Worst:
    """Which moments can be the worst; ``rests`` are sizes that others, by symbol, are larger than.

    Whole blocks are rests of 0, or of the block: what is never the worst is not at those either.
    """

    def __init__(self, rests: Mapping[Any, Any]) -> None:
        self._rests = rests
        self._seen: dict[Any, list[tuple[Any, Any]]] = {}
        self._of: dict[int, tuple[Any, dict[Any, Terms]]] = {}
        self._grown: dict[Any, tuple[Any, list[Any]]] = {}

    def of(self, moments: Mapping[Any, Terms]) -> dict[Any, Terms]:
        """Those that no other one is always larger than; equal ones all stay."""
        if id(moments) not in self._of:
            self._of[id(moments)] = moments, self._outermost(moments)
        return self._of[id(moments)][1]

    def growing(
        self, before: Mapping[Any, Terms], found: Mapping[Any, Terms], shared: frozenset[Any]
    ) -> list[Any]:
        """Names among ``shared`` ones of moments that may grow the most from one run to another."""
        key = id(before), id(found), shared
        if key not in self._grown:
            grown = {x: plus(held, before[x], -1) for x, held in found.items() if x in shared}
            own = self._outermost({x: found[x] for x in self._outermost(grown)})
            self._grown[key] = (before, found), [*own]
        return self._grown[key][1]

    def _outermost(self, moments: Mapping[Any, Terms]) -> dict[Any, Terms]:
        kept: dict[Any, tuple[Terms, list[Any]]] = {}
        seen: dict[Any, list[Any]] = {}
        for name, value in moments.items():
            seen.setdefault(frozenset(value.items()), []).append(name)
        for value, names in seen.items():
            own = self.compared(dict(value))
            if any(dominates(other, own) for other, _ in kept.values()):
                continue
            kept = {k: v for k, v in kept.items() if not dominates(own, v[0])}
            kept[value] = own, names
        return {name: moments[name] for _, names in kept.values() for name in names}

    def covering(self, kept: Iterable[Terms]) -> Callable[[Terms], bool]:
        """What tells of a value whether it is never larger than all of these, or than a mean."""
        same = {frozenset(x.items()): x for x in kept}
        told = covering([self.compared(x) for x in same.values()])
        return lambda value: frozenset(value.items()) in same or told(self.compared(value))

    def compared(self, value: Terms) -> Terms:
        """Twice the same in what is never negative: what is nowhere smaller in it is never smaller.

        That is what sizes have above 2, and Bernstein's polynomials of a rest on its interval.
        """
        found: dict[Any, Any] = {}
        for term, factor in value.items():
            for name, times in self._parts(term):
                found[name] = found.get(name, 0) + factor * times
        return {name: factor for name, factor in found.items() if factor}

    def _parts(self, term: Any) -> list[tuple[Any, Any]]:
        if term not in self._seen:
            import sympy

            parts = [2 * sympy.sympify(term)]
            for rest, block in self._rests.items():
                made = []
                for part in parts:
                    others, power = sympy.sympify(part).as_coeff_exponent(rest)
                    ends = [part] * (_POWER + 1)  # of a higher power, which is not negative either
                    if power == 1:
                        ends = [0, others * block / 2, others * block]
                    elif power == _POWER:
                        ends = [0, 0, others * block**2]
                    made += ends
                parts = made
            self._seen[term] = [
                ((place, name), factor * times)
                for place, part in enumerate(parts)
                for product, factor in terms_of(sympy.sympify(part)).items()
                for name, times in above(product, 2).items()
            ]
        return self._seen[term]
