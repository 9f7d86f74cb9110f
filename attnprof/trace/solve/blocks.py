"""Write formulas over a length in blocks, so that they hold with a ragged last block and without.

Runs with ``N = 64*turns + rest`` give formulas in turns and rest. Written over N these are
``ceiling(N/64)`` or ``floor(N/64)``, whichever agrees with runs of whole blocks, or both, joined.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sympy

from attnprof.algebra.expressions import symbol
from attnprof.algebra.maxima import covering
from attnprof.algebra.values import evaluate
from attnprof.trace.events import Trace, totals_by_phase
from attnprof.trace.request.target import Sizes
from attnprof.trace.solve.accounts import key_of, terms
from attnprof.trace.solve.mixture import FittedMixture, Mixture, turns_of
from attnprof.trace.solve.verification import Runs


@dataclass
class Blocks:
    """A size (``name``) in blocks of another size or of a number: ``Blocks("N", 64)``."""

    name: str
    block: Any

    def at(self, sizes: Sizes) -> int:
        """Return the length of a block at a shape."""
        return int(evaluate(self.block, sizes))

    @property
    def rest(self) -> Any:
        """The symbol of the remainder after whole blocks, ``N mod 64``."""
        return symbol(f"{self.name} mod {self.block}")

    @cached_property
    def _substitutions(self) -> dict[str, Mapping[Any, Any]]:
        size = symbol(self.name)
        floor, ceiling = sympy.floor(size / self.block), sympy.ceiling(size / self.block)
        turns = turns_of(self.name)
        return {
            "ceil": {turns: ceiling - 1, self.rest: size - self.block * (ceiling - 1)},
            "floor": {turns: floor, self.rest: size - self.block * floor},
            "whole": {turns: size / self.block},
        }

    def written(self, expression: Any, way: str) -> Any:
        """Return an expression in turns and rest over the size; ``way``: ceil, floor or whole."""
        replaced = sympy.sympify(expression).xreplace(self._substitutions[way])
        if isinstance(replaced, sympy.Rel):
            return replaced.func(sympy.expand(replaced.lhs - replaced.rhs), 0)
        is_condition = isinstance(replaced, sympy.logic.boolalg.Boolean)
        return replaced if is_condition else sympy.expand(replaced)

    def inside(self, sizes: Sizes, way: str = "floor") -> dict[str, int]:
        """Return a shape with its number of blocks and rest, counted as ``written`` does.

        Sizes that were numbers in the runs are blocks of 1.
        """
        block, size = self.at(sizes), sizes[self.name]
        turns = -(-size // block) - 1 if way == "ceil" else size // block
        numbers = {turns_of(name).name: x for name, x in {**sizes, self.name: turns}.items()}
        return {**sizes, **numbers, self.rest.name: size - block * turns}

    def combined(self, between: Any, whole: Any) -> Any:
        """Return one formula of two: ``between`` at lengths with a rest, ``whole`` without one."""
        turns, floor = turns_of(self.name), sympy.floor(symbol(self.name) / self.block)
        at_whole = sympy.sympify(between).xreplace({turns: floor - 1, self.rest: self.block})
        more = sympy.sympify(whole).xreplace({turns: floor}) - at_whole
        ragged = sympy.ceiling(symbol(self.name) / self.block) - floor
        return sympy.expand(self.written(between, "ceil") + (1 - ragged) * more)


@dataclass
class Writer:
    """Writes formulas of runs with a ragged last block, so that they hold at whole blocks as well.

    Checked by runs of whole blocks at ``shapes``, which decide between the ``roundings`` of a
    length to a number of blocks.
    """

    fitted: FittedMixture
    blocks: Blocks
    runs: Runs
    shapes: Sequence[Sizes] = ()
    roundings: Sequence[str] = ("ceil", "floor")

    def __post_init__(self) -> None:
        traces = ((shape, self.runs.run_or_none(shape)) for shape in self.shapes)
        self._traces = [(shape, trace) for shape, trace in traces if trace]
        mixture, usual = self.fitted.mixture, keys_of(self.fitted.runs[0].trace)
        if self.fitted.aligned and any(keys_of(trace) != usual for _, trace in self._traces):
            mixture.alike = False  # whole blocks do other operations
            self.fitted = FittedMixture(mixture, self.fitted.lattice, self.fitted.runs)
        aligned = self.fitted.aligned
        self._accounts = [(s, mixture.account(t, aligned=aligned)) for s, t in self._traces]
        for _, account in () if aligned else self._accounts:
            self.fitted.examples |= account.example
            for name in account.sizes:
                self.fitted.sizes.setdefault(name, 0)

    @cached_property
    def whole(self) -> FittedMixture:
        """Formulas of whole blocks alone, fitted to runs that have no rest."""
        mixture = self.fitted.mixture
        alike, start = self.fitted.aligned, mixture.base[self.blocks.name] + 1
        whole = Mixture(mixture.plan, mixture.phases, ragged=False, alike=alike, start=start)
        return whole.fitted()

    @property
    def whole_from(self) -> int:
        """The number of blocks from which formulas of whole blocks hold; 0 if none were needed."""
        whole = vars(self).get("whole")
        return whole.mixture.base[self.blocks.name] if whole else 0

    def size(self, name: Any, expression: Any) -> Any:
        """Return one size of an operation as a formula over the sizes; None if there is none."""
        values = [(shape, x.sizes.get(name, {}).get(1, 0)) for shape, x in self._accounts]
        for rounding in self.roundings:
            if all(evaluate(expression, self.blocks.inside(s, rounding)) == v for s, v in values):
                return self.blocks.written(expression, rounding)
        whole = self.whole.sizes.get(name, 0)
        return None if whole is None else self.blocks.combined(expression, whole)

    def peak(self, phase: str) -> Any | None:
        """Return the peak of a phase as a formula over the sizes; None if there is none."""
        sides = self.fitted.peaks[phase]
        if sides is None:
            return None
        values = [(s, totals_by_phase(t, [phase])[phase]["peak_bytes"]) for s, t in self._traces]
        for rounding in self.roundings:
            if all(
                max(evaluate(x, self.blocks.inside(s, rounding)) for x in sides) == v
                for s, v in values
            ):
                return most(self.blocks.written(x, rounding) for x in sides)
        whole = self.whole.peaks[phase]
        if whole is None:
            return None
        divides = sympy.Eq(sympy.Mod(symbol(self.blocks.name), self.blocks.block), 0)
        return sympy.Piecewise(
            (most(self.blocks.written(x, "whole") for x in whole), divides),
            (most(self.blocks.written(x, "ceil") for x in sides), True),
            evaluate=False,
        )


def keys_of(trace: Trace) -> list[Any]:
    """Return the kind of each operation of a run, in order."""
    return [key_of(call) for call in trace.calls]


def most(sides: Any) -> Any:
    """Return the maximum of expressions, not evaluated."""
    distinct = list(dict.fromkeys(sides))
    return distinct[0] if len(distinct) == 1 else sympy.Max(*distinct, evaluate=False)


def trimmed(peak: Any, counted_bytes: int, shape: Sizes, points: Sequence[Sizes]) -> Any:
    """Return a peak without sides above the bytes that a run at a shape held (``counted_bytes``).

    Return it unchanged if such a side is the maximum at one of the ``points`` that the peak was
    fitted to.
    """
    sides = peak.args if isinstance(peak, sympy.Max) else ()
    kept = [x for x in sides if evaluate(x, shape) <= counted_bytes]
    for point in points if kept else ():
        numbers = {symbol(name): sympy.Integer(size) for name, size in point.items()}
        covered = covering([terms(x.xreplace(numbers)) for x in kept])
        if not all(x in kept or covered(terms(x.xreplace(numbers))) for x in sides):
            return peak
    return most(kept) if kept else peak
