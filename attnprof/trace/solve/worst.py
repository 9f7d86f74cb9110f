"""Find the moments of a run that can be its peak, for some sizes from 2 on.

The rest of a block is between 0 and the block. Of moments that hold ``4*B*N`` and ``4*B*N + 8`` the
first is never the peak; of ``B**2`` and ``N`` either can be.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attnprof.algebra.maxima import above, covering, dominates, plus, terms_of
from attnprof.trace.solve.accounts import Terms

#: The highest power of a rest that is written in Bernstein's polynomials.
_POWER = 2


class Worst:
    """Finds moments that can be the peak; ``rests`` gives for each rest the block that it is below.

    Whole blocks are rests of 0, or of the block: moments never at the peak are not there either.
    """

    def __init__(self, rests: Mapping[Any, Any]) -> None:
        self._rests = rests
        self._seen: dict[Any, list[tuple[Any, Any]]] = {}
        self._of: dict[int, tuple[Any, dict[Any, Terms]]] = {}
        self._grown: dict[Any, tuple[Any, list[Any]]] = {}

    def of(self, moments: Mapping[Any, Terms]) -> dict[Any, Terms]:
        """Return the moments that no other one always exceeds; of equal ones, all."""
        if id(moments) not in self._of:
            self._of[id(moments)] = moments, self._undominated(moments)
        return self._of[id(moments)][1]

    def growing(
        self, before: Mapping[Any, Terms], found: Mapping[Any, Terms], shared: frozenset[Any]
    ) -> list[Any]:
        """Return the ``shared`` names of moments that may grow the most from one run to another."""
        key = id(before), id(found), shared
        if key not in self._grown:
            grown = {x: plus(held, before[x], -1) for x, held in found.items() if x in shared}
            own = self._undominated({x: found[x] for x in self._undominated(grown)})
            self._grown[key] = (before, found), [*own]
        return self._grown[key][1]

    def _undominated(self, moments: Mapping[Any, Terms]) -> dict[Any, Terms]:
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
        """Return a function that tells if a value never exceeds one of these, or a mean of two."""
        same = {frozenset(x.items()): x for x in kept}
        told = covering([self.compared(x) for x in same.values()])
        return lambda value: frozenset(value.items()) in same or told(self.compared(value))

    def compared(self, value: Terms) -> Terms:
        """Return twice a value in terms that are never negative: sizes minus 2, for instance.

        A value with no smaller factor of any term is never smaller. A rest is written in
        Bernstein's polynomials on the interval from 0 to its block.
        """
        found: dict[Any, Any] = {}
        for term, factor in value.items():
            for name, times in self._nonnegative_parts(term):
                found[name] = found.get(name, 0) + factor * times
        return {name: factor for name, factor in found.items() if factor}

    def _nonnegative_parts(self, term: Any) -> list[tuple[Any, Any]]:
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
