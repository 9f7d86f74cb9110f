"""Strategy "mixed": runs with symbols for some sizes, at a few numbers of the others.

Each run gives polynomials over the symbols. Their factors are fitted as polynomials in the sizes
that are numbers, or in their numbers of blocks.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import chain
from operator import getitem
from typing import Any

import sympy

from attnprof.algebra.expressions import symbol
from attnprof.algebra.maxima import maximum_of
from attnprof.trace.events import Call, Trace, unnumbered
from attnprof.trace.solve.accounts import (
    Account,
    Index,
    PeakMoments,
    Terms,
    account,
    families,
    operation_signature,
    terms,
    with_sizes,
)
from attnprof.trace.solve.lattice import Lattice, Row, SampledSizes, indices_for, rows_of
from attnprof.trace.solve.plan import FIRST, SizePlan
from attnprof.trace.solve.symbolic import SymbolicRun, block_count
from attnprof.trace.solve.verification import NoFormulaError, OutOfBudgetError

#: Most runs along one size; runs made after counts fit, in search of numbers at which peaks do.
_ALONG, _PATIENCE = 9, 2
#: Steps beyond the last number at which one more run has to fit; of numbers alone, twice as far.
_FURTHER = 5
#: Steps between the numbers of a size, in the order in which they are tried, and of other sizes.
_STEPS, _USUAL_STEPS = {"d": (1, 8, 16), "N": (1, 2, 4, 16, 64)}, (1, 2, 8)
#: Steps that are tried last where all sizes are numbers: classes by 3 or 5, and long blocks.
_RARE_STEPS = 60, 256
#: Operations of all runs up to which twice as many runs are made in search of peaks that fit.
_ENOUGH = 6_000
#: Longest period that is tried: of layers of kinds A, B, B, A, B, B it is 3.
_PERIOD = 6

#: Numbers of a size at which runs fit, and the rows of values there, by name.
Axis = tuple[SampledSizes, Mapping[Any, Row]]


@dataclass
class Mixture:
    """The runs of a plan, all with a rest of a block (``ragged``) or all without, and their fit.

    ``alike``: operations are compared one by one if all runs do the same ones. ``start`` is the
    first number of blocks; ``base`` are the first numbers of all sizes that are numbers.
    """

    plan: SizePlan
    phases: Sequence[str]
    ragged: bool
    alike: bool = True
    start: int = 1
    base: dict[str, int] = field(default_factory=dict)
    _accounts: dict[Any, Account] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.base = {name: self.plan.first(name) for name in self.plan.blocks}
        rests = {
            symbol(place.rest_name(name)): place.block
            for name, place in self.plan.block_counts(self.base, ragged=self.ragged).items()
            if place.rest
        }
        self.peak_moments = PeakMoments(rests)

    @property
    def names(self) -> list[str]:
        """The sizes that are numbers."""
        return list(self.plan.blocks)

    def run(self, counts: Mapping[str, int]) -> SymbolicRun | None:
        """Return the run at these numbers of blocks, or None if there is none."""
        run = self.plan.at(counts, self.phases, ragged=self.ragged)
        return run if isinstance(run, SymbolicRun) else None

    # -- along one size ------------------------------------------------------------------
    def fit(self, samples: SampledSizes, runs: list[SymbolicRun]) -> tuple[Axis | None, bool]:
        """Return the axis along these numbers if all counts fit, and whether peaks fit."""
        accounts = self.accounts(runs)
        rows = {
            (name, monomial): row
            for name in dict.fromkeys(chain(*(x.sizes for x in accounts)))
            for monomial, row in rows_of([x.sizes.get(name, {}) for x in accounts]).items()
        }
        counts = {row for (name, _), row in rows.items() if "times" not in name}
        if samples.steepest(counts) is None:
            return None, False
        smooth = True
        for phase in () if self.plan.by_module else self.phases:
            for moments in self.moments(accounts, phase, [(i,) for i in range(len(runs))]):
                moment_rows = {label: rows_of(values) for label, values in moments.items()}
                fit = [
                    label
                    for label, terms_rows in moment_rows.items()
                    if samples.steepest(set(terms_rows.values())) is not None
                ]
                if self.covering(accounts, phase, [moments[label] for label in fit]):
                    break
            else:
                smooth = False
            for label in fit:
                rows |= {((phase, label), x): row for x, row in moment_rows[label].items()}
        return (samples, rows), smooth

    def moments(
        self, accounts: Sequence[Account], phase: str, indices: Sequence[Index]
    ) -> Iterator[dict[Any, list[Terms]]]:
        """Yield moments that are the peak of a run, or of one at larger numbers, with their bytes.

        The first runs are those at ``indices``, in equal steps. At first moments matched by name;
        along a single size then also families of moments.
        """
        shared = frozenset.intersection(*(frozenset(x.live_bytes[phase]) for x in accounts))
        if self.plan.concrete:  # numbers do not tell which moment is the worst at other sizes
            yield {name: [x.live_bytes[phase][name] for x in accounts] for name in shared}
            return
        worst = dict.fromkeys(
            chain(*(self.peak_moments.among(x.live_bytes[phase]) for x in accounts))
        )
        first = [x.live_bytes[phase] for x in accounts[: len(indices)]]
        worst |= dict.fromkeys(self.peak_moments.leading(shared, first, indices))
        named = {
            name: [x.live_bytes[phase][name] for x in accounts] for name in worst if name in shared
        }
        yield named
        if len(self.names) == 1 and not all(isinstance(name, int) for name, *_ in worst):
            alike = families([x.live_bytes[phase] for x in accounts], self.peak_moments.among)
            yield named | {("alike", place): values for place, values in enumerate(alike)}

    def covering(
        self, accounts: Sequence[Account], phase: str, moments: Sequence[Sequence[Terms]]
    ) -> bool:
        """Return whether the peak of every run is among these moments."""
        for place, one in enumerate(accounts):
            covered = self.peak_moments.covering(values[place] for values in moments)
            if not all(map(covered, self.peak_moments.among(one.live_bytes[phase]).values())):
                return False
        return True

    def accounts(self, runs: Sequence[SymbolicRun]) -> list[Account]:
        """Return accounts of runs: by operation if all run the same ones, else by kind and line."""
        orders = [list(map(operation_signature, run.trace.calls)) for run in runs]
        aligned = self.alike and all(order == orders[0] for order in orders)
        for run in runs:
            if (id(run), aligned) not in self._accounts:
                self._accounts[id(run), aligned] = self.account(run.trace, aligned=aligned)
        return [self._accounts[id(run), aligned] for run in runs]

    def account(self, trace: Trace, *, aligned: bool) -> Account:
        """Return the account of one run for the phases of the mixture."""
        return account(trace, self.phases, aligned=aligned, by_module=self.plan.by_module)

    # -- along all sizes -----------------------------------------------------------------
    def _axes(self) -> dict[str, Axis]:
        axes = {}
        for name in self.names:
            axes[name] = axis_of(self, name)
            self.base[name] = axes[name][0].xs[0]
        return axes

    def fitted(self) -> "FittedMixture":
        """Return formulas over symbols, rests and numbers of blocks."""
        axes = self._axes()
        aligned = [any(isinstance(key, int) for (key, _), _ in rows) for _, rows in axes.values()]
        if any(aligned) and not all(aligned):  # rows along all have to have the same names
            self.alike = False
            axes = self._axes()
        self.plan.extend()
        samples = [along for along, _ in axes.values()]
        indices = indices_for(list(axes.values()))
        nodes = [axis.nodes for axis in samples]
        points = [tuple(map(getitem, nodes, index)) for index in indices]
        base = tuple(self.base.values())  # earlier axes were made before later bases were known
        for place, axis in enumerate(samples):
            along = [(*base[:place], x, *base[place + 1 :]) for x in axis.xs]
            points += [point for point in along if point not in points]
        attempted = (self.run(dict(zip(self.names, point, strict=True))) for point in points)
        if len(runs := [run for run in attempted if run is not None]) < len(points):
            raise NoFormulaError("it cannot run at all numbers of blocks")
        return FittedMixture(self, Lattice(samples, indices, points), runs)


@dataclass
class FittedMixture:
    """The runs of a mixture at a lattice's points, and the polynomials through them.

    ``examples`` are operations that only runs at whole blocks have, by key.
    """

    mixture: Mixture
    lattice: Lattice
    runs: Sequence[SymbolicRun]
    examples: dict[Any, Call] = field(default_factory=dict)

    @property
    def aligned(self) -> bool:
        """Whether all runs did the same operations."""
        return all(isinstance(key, int) for account in self.accounts for key in account.example)

    def __post_init__(self) -> None:
        self.accounts = self.mixture.accounts(self.runs)
        names = dict.fromkeys(chain(*(x.sizes for x in self.accounts)))
        columns = {name: [x.sizes.get(name, {}) for x in self.accounts] for name in names}
        self._polynomials: dict[Row, Mapping[Index, Fraction] | None] = {}
        self._fit({row for column in columns.values() for row in rows_of(column).values()})
        self.sizes = {name: self.expression(column) for name, column in columns.items()}
        unknown = [name for (_, name), x in self.sizes.items() if x is None and name != "times"]
        if unknown:
            raise NoFormulaError(f"{unknown[0]} are no polynomial in the numbers of blocks")
        self.peaks = {phase: self._peak(phase) for phase in self.mixture.phases}

    def _fit(self, rows: set[Row]) -> None:
        """Fit the rows that are new; None stands for a row that is no polynomial."""
        if new := rows - self._polynomials.keys():
            self._polynomials |= {**dict.fromkeys(new), **self.lattice.fit(new)}

    def expression(self, column: Sequence[Terms]) -> Any:
        """Return the formula with these values in the runs; None if it is no polynomial."""
        total = []
        rows = rows_of(column)
        self._fit(set(rows.values()))
        for monomial, row in rows.items():
            if (factors := self._polynomials[row]) is None:
                return None
            total += [sympy.Rational(x) * monomial * self._blocks(i) for i, x in factors.items()]
        return sympy.Add(*total)

    def _blocks(self, index: Index) -> Any:
        blocks = self.mixture.plan.blocks
        sizes = [symbol(x) if block == 1 else block_count(x) for x, block in blocks.items()]
        return sympy.Mul(*self.lattice.monomials(sizes, index))

    def _peak(self, phase: str) -> list[Any] | None:
        """Return the sides whose maximum is the peak; None if a run's peak is none of them."""
        if self.mixture.plan.by_module:
            return None
        for moments in self.mixture.moments(self.accounts, phase, self.lattice.indices):
            self._fit({row for column in moments.values() for row in rows_of(column).values()})
            expressions = {label: self.expression(column) for label, column in moments.items()}
            kept = {label: x for label, x in expressions.items() if x is not None}
            columns = [moments[label] for label in kept]
            if kept and self.mixture.covering(self.accounts, phase, columns):
                most = maximum_of(dict.fromkeys(kept.values()))
                return list(most.args) if isinstance(most, sympy.Max) else [most]
        return None

    def trace(self, spelled: Callable[[Any, Any], Any]) -> Trace:
        """Return a trace of formulas; ``spelled(name, expression)`` writes each over the sizes."""
        examples: dict[Any, Call] = {}
        for one in sorted(self.accounts, key=lambda x: -len(x.example)):
            examples |= {key: call for key, call in one.example.items() if key not in examples}
        examples = {**self.examples, **examples}
        sizes: dict[Any, dict[Any, Any]] = {key: {} for key in ("", *examples)}
        for (key, name), size in self.sizes.items():
            sizes[key][name] = None if size is None else spelled((key, name), size)
        notes = [x for x in self.runs[0].trace.notes if all(x in y.trace.notes for y in self.runs)]
        if not self.aligned and not self.mixture.plan.by_module:
            examples = {
                key: replace(call, module=unnumbered(call.module)) for key, call in examples.items()
            }
        calls = [with_sizes(call, sizes[key]) for key, call in examples.items()]
        whole = sizes[""]
        modules = {name[0]: entries for name, entries in whole.items() if "entries" in name}
        return Trace(calls, whole["parameters"], notes, modules=modules, routes=self._routes())

    def _routes(self) -> list[tuple[Any, Any]]:
        """Return rows and experts of each choice; raise NoFormulaError if runs differ in them."""
        runs = [run.trace.routes for run in self.runs]
        if all(routes == runs[0] for routes in runs):
            return runs[0]
        if self.mixture.plan.concrete and len({len(routes) for routes in runs}) == 1:
            columns = zip(*(chain(*routes) for routes in runs), strict=True)
            fit = [self.expression([*map(terms, column)]) for column in columns]
            sizes = [int(x) if x is not None and x.is_Integer else x for x in fit]
            if None not in sizes:
                return list(zip(sizes[::2], sizes[1::2], strict=True))
        raise NoFormulaError("other sizes spread other numbers of rows over the experts")


# -- numbers of one size along which the cost is a polynomial: their begin and their step --
# Four consecutive lengths may fit a polynomial by accident, as where code cuts a length into four
# parts: 4, 9, 12, 13 are -N**2 + 14*N - 36 at N = 4 to 7. So a larger number has to fit as well;
# else a later begin and larger steps are tried first.
def axis_of(mixture: Mixture, name: str) -> Axis:
    """Return the first numbers of a size from which on all counts are polynomials in it.

    Raises :class:`NoFormulaError` if there are none.
    """
    if kinds := mixture.plan.kinds.get(name):
        samples = SampledSizes.minimal(mixture.base[name], kinds)
        runs = [run for x in samples.xs if (run := mixture.run({**mixture.base, name: x}))]
        if len(runs) == len(samples.xs) and (axis := mixture.fit(samples, runs)[0]):
            return axis
    is_number = mixture.plan.blocks[name] == 1
    steps = _STEPS.get(name, _USUAL_STEPS) if is_number else (1,)
    steps += _RARE_STEPS if mixture.plan.concrete else ()
    first = next(filter(None, (_axis_by_step(mixture, name, step) for step in steps)), None)
    if first is None:
        variable = name if mixture.plan.concrete else f"blocks of {name}"
        # with a number for this size, the other sizes may be symbols
        why = f"the cost is no polynomial in {variable}"
        raise NoFormulaError(why, name if mixture.plan.concrete else "")
    checked = name in FIRST or mixture.plan.concrete
    if is_number and checked and not _fits_further(mixture, name, first[0]):
        later = first[0].xs[-1] + 1 - mixture.base[name]
        with suppress(OutOfBudgetError):
            for step, more in chain([(1, later)], ((step, 0) for step in steps[1:])):
                axis = _axis_by_step(mixture, name, step, more)
                if axis and _fits_further(mixture, name, axis[0]):
                    return axis
    return first


def _fits_further(mixture: Mixture, name: str, samples: SampledSizes) -> bool:
    """Return whether a larger number fits as well; True if the code does not run there."""
    step = samples.xs[1] - samples.xs[0]
    steps = samples.xs[0] // step if mixture.plan.concrete else 0  # a number of a class is large
    far = samples.xs[-1] + max(_FURTHER, steps) * step
    with suppress(OutOfBudgetError):
        runs = [mixture.run({**mixture.base, name: x}) for x in (*samples.xs, far)]
        completed = [run for run in runs if run is not None]
        longer = SampledSizes((*samples.xs, far), samples.kinds)
        return len(completed) < len(runs) or mixture.fit(longer, completed)[0] is not None
    return True


def _axis_by_step(mixture: Mixture, name: str, step: int, later: int = 0) -> Axis | None:
    """Return numbers a step apart that fit, from the base plus ``later`` on; None if none do."""
    best: Axis | None = None
    xs, runs = list[int](), list[SymbolicRun]()
    start = later + (mixture.start if mixture.plan.blocks[name] != 1 else mixture.base[name])
    most = _PERIOD if step == mixture.plan.blocks[name] == 1 else 1
    place = since = patience = 0
    while place < _ALONG if best is None else place - since < patience:
        x = start + place * step
        place += 1
        try:
            run = mixture.run({**mixture.base, name: x})
        except OutOfBudgetError:
            if best:
                break
            raise
        if run is None:
            if xs:
                break
            continue
        xs.append(x)
        runs.append(run)
        again, smooth = _fit_ends(mixture, xs, runs, most)
        if again and smooth:
            return again
        if best is None:
            best, since = again, place
        if best:
            patience = _PATIENCE * (1 + (mixture.plan.spent < _ENOUGH)) * len(best[0].kinds)
    return best


def _fit_ends(
    mixture: Mixture, xs: list[int], runs: list[SymbolicRun], most: int
) -> tuple[Axis | None, bool]:
    """Return the longest end of ``xs`` that fits with a period of ``most`` or less.

    Also returns whether peaks fit along it.
    """
    best = None
    for first in range(len(xs) - 2):
        for period in range(1, min(most, len(xs) - first - 3) + 1):
            axis, smooth = mixture.fit(SampledSizes.periodic(xs[first:], period), runs[first:])
            if axis and smooth:
                return axis, True
            best = best or axis
    return best, False
