"""Turn a plan of sizes into formulas: fit its runs, write them over sizes, extend their domain."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import sympy

from attnprof.algebra.expressions import symbol
from attnprof.algebra.maxima import terms_of
from attnprof.algebra.values import evaluate
from attnprof.trace.events import totals_by_phase
from attnprof.trace.request.target import Sizes, largest
from attnprof.trace.solve.accounts import key_of
from attnprof.trace.solve.domain import SizeConditions
from attnprof.trace.solve.mixed import Mixed, most
from attnprof.trace.solve.mixture import FittedMixture, Mixture
from attnprof.trace.solve.plan import FIRST, SizePlan
from attnprof.trace.solve.smaller_sizes import extend_to_fewer_blocks
from attnprof.trace.solve.symbolic import Blocks
from attnprof.trace.solve.verification import NoFormulaError, Runs

#: Numbers of a size that have to confirm a formula, besides those that it was fitted to.
_MORE = 2
#: Why a peak has no formula where costs of modules are asked for.
_NOT_ASKED = "loops run as often as a size says"
#: How many times the least size that was fitted is tried on real tensors.
_TIMES_REAL = 4
#: Most layers before the formulas of another case begin.
_FEW = 12


def mixed(plan: SizePlan, phases: Sequence[str], runs: Runs) -> Mixed:
    """Return the formulas of a plan; raise NoFormulaError if its runs lead to none.

    If few layers are another case, as before the first one of another kind, the formulas begin at
    more layers; likewise at lengths beyond a window.
    """
    formulas = _fit_plan(plan, phases, runs)
    hints = plan.hints if formulas.narrow else {}
    later = {
        x: n for x, n in formulas.branches.items() if n <= (hints.get(x, 0) if x in FIRST else _FEW)
    }
    # layers of the other kind may recur with a period: as many as come before the first of them
    layers = {x: (*[0] * (n - 1), 1) for x, n in later.items() if x not in FIRST and n > 2}
    for kinds in ([layers] if layers else []) + ([{}] if later else []):
        later_plan = replace(plan, base={**plan.base, **later}, kinds=kinds)
        with suppress(NoFormulaError):
            again = _fit_plan(later_plan, phases, runs)
            if all(again.ends[x] > 2 * n for x, n in later.items()):
                plan.kinds |= kinds
                plan.base = {**plan.base, **{x: later[x] for x in kinds}}
                return again
    for name in formulas.branches:
        _refuse_accident(formulas, name)
    return formulas


def _refuse_accident(formulas: Mixed, name: str) -> None:
    """Raise NoFormulaError if too few numbers of a size, before a branch, confirm its polynomial.

    Also if the costs of larger numbers would be negative.
    """
    if name not in FIRST or formulas.plan.blocks[name] != 1:
        return
    end, step = formulas.ends[name], formulas.strides.get(name, (1, 0))[0]
    numbers = range(formulas.least[name], end + 1, step)
    behind = {point[name] for point in formulas.points}
    beyond = formulas.numbers(formulas.near(**{name: 64 * end})).values()
    costs = [x.get(what, 0) for x in beyond for what in ("flops", "bytes_moved")]
    if len(numbers) < len(behind) + _MORE or min(costs) < 0:
        span = f"{name} from {numbers[0]} to {numbers[-1]} alone"
        raise NoFormulaError(f"the formulas hold for {span}: {'; '.join(formulas.borders)}", name)


def _fit_plan(plan: SizePlan, phases: Sequence[str], runs: Runs) -> Mixed:
    blocks = next((Blocks(x, block) for x, block in plan.blocks.items() if block != 1), None)
    whole_only = blocks is not None and plan.whole
    try:
        fitted = Mixture(plan, phases, ragged=blocks is not None and not whole_only).fitted()
    except NoFormulaError:
        if blocks is None or whole_only:
            raise
        fitted, whole_only = Mixture(plan, phases, ragged=False).fitted(), True
    write = Writer(fitted, blocks, runs, whole_only) if blocks else None
    fitted = write.fitted if write else fitted

    def size(name: Any, expression: Any) -> Any:
        written = sympy.sympify(write.size(name, expression) if write else expression)
        return int(written) if written is not None and written.is_Integer else written

    trace = fitted.trace(size)
    forms = totals_by_phase(trace, phases)
    for phase in phases:
        sides = fitted.peaks[phase]
        peak = write.peak(phase) if write else sides and most(sides)
        if peak is None:
            forms[phase].pop("peak_bytes")
        else:
            forms[phase]["peak_bytes"] = sympy.sympify(peak)
    base = fitted.mixture.base
    # whole blocks may begin to be alike later
    turns = max(base[blocks.name], write.whole_from - 1) if blocks and write else 1
    least = {**base}
    if blocks:
        tokens = int(blocks.block) * turns + 2 * (not whole_only) if blocks.block.is_Integer else 2
        least[blocks.name] = tokens
    axes = dict(zip(base, fitted.lattice.axes, strict=True))
    steps = {x: axis.xs[1] - axis.xs[0] for x, axis in axes.items()}
    formulas = Mixed(
        plan,
        blocks,
        forms,
        trace,
        _conditions(fitted, blocks),
        least,
        {  # on real tensors large sizes take real time
            name: _TIMES_REAL * least[name] if plan.target.mode.real else largest(name, least[name])
            for name in base
        },
        {name: (step, base[name]) for name, step in steps.items() if step > 1},
        turns,
        whole_only,
        [dict(zip(fitted.mixture.names, point, strict=True)) for point in fitted.lattice.points],
        kinds={x: axis.kinds for x, axis in axes.items()},
        withheld={phase: {"peak_bytes": _NOT_ASKED} for phase in phases if plan.by_module},
    )
    _withhold_curved_peaks(formulas)
    formulas.extend_ranges(runs)
    extend_to_fewer_blocks(formulas, runs)
    return formulas


def _withhold_curved_peaks(formulas: Mixed) -> None:
    """Withhold peaks that grow faster than a number of layers: the peak may move on."""
    for (phase, quantities), name in product(formulas.forms.items(), formulas.least):
        is_layers = name not in FIRST and not formulas.plan.is_block(name)
        if not is_layers or "peak_bytes" not in quantities:
            continue
        if _is_curved(quantities["peak_bytes"], symbol(name)):
            del quantities["peak_bytes"]
            why = f"of more {name} each holds more, and another moment becomes the worst"
            formulas.withheld.setdefault(phase, {})["peak_bytes"] = why


def _is_curved(peak: Any, size: Any) -> bool:
    """Return whether a side of a peak grows faster than a size."""
    monomials = (x for x in sympy.sympify(peak).atoms(sympy.Mul, sympy.Pow) if x.has(size))
    smooth = (sympy.expand(x.replace(sympy.floor, lambda part: part)) for x in monomials)
    return any(power.base == size for x in smooth for power in x.atoms(sympy.Pow))


def _conditions(fitted: FittedMixture, blocks: Blocks | None) -> SizeConditions:
    """Return the conditions that all runs relied on; alike ones become one, over the numbers."""
    alike: dict[Any, list[Any]] = {}
    for run in fitted.runs:
        for relation in run.guards.relations:
            compares = isinstance(relation, sympy.Rel)
            parts = terms_of(relation.lhs - relation.rhs) if compares else {}
            kind = relation.func, *sorted(map(str, parts))
            alike.setdefault(kind, []).append((relation, parts))
    conditions = []
    for (func, *_), relations in alike.items():
        joint = None
        if len(relations) == len(fitted.runs) and all(parts for _, parts in relations):
            joint = fitted.expression([parts for _, parts in relations])
        conditions += [x for x, _ in relations] if joint is None else [func(joint, 0)]
    if blocks:
        conditions = [blocks.over_size(relation, "floor") for relation in conditions]
    return SizeConditions([x for x in dict.fromkeys(conditions) if x != True])  # noqa: E712 - sympy's true


# -- formulas over a length in blocks ----------------------------------------------------
@dataclass
class Writer:
    """A writer of formulas of runs with a shorter last block that hold for whole blocks as well.

    Runs of whole blocks decide whether the number of blocks is a floor or a ceiling.
    """

    fitted: FittedMixture
    blocks: Blocks
    runs: Runs
    whole_only: bool

    def __post_init__(self) -> None:
        self._roundings = ("whole",) if self.whole_only else ("ceil", "floor")
        runs = ((shape, self.runs.run_or_none(shape)) for shape in self._shapes())
        self._traces = [(shape, trace) for shape, trace in runs if trace]
        mixture, traces = self.fitted.mixture, [trace for _, trace in self._traces]
        ragged, *whole = [[*map(key_of, x.calls)] for x in (self.fitted.runs[0].trace, *traces)]
        if self.fitted.aligned and any(keys != ragged for keys in whole):
            mixture.alike = False  # whole blocks do other operations
            self.fitted = FittedMixture(mixture, self.fitted.lattice, self.fitted.runs)
        aligned = self.fitted.aligned
        self._accounts = [(s, mixture.account(t, aligned=aligned)) for s, t in self._traces]
        for _, account in () if aligned else self._accounts:
            self.fitted.examples |= account.example
            for name in account.sizes:
                self.fitted.sizes.setdefault(name, 0)

    def _shapes(self) -> Iterator[Sizes]:
        """Yield shapes of whole blocks, if these are not the only ones."""
        hints, base = self.fitted.mixture.plan.hints, self.fitted.mixture.base
        for more in () if self.whole_only else (1, 2, 4):
            shape = {x: max(min(n, 2), n - more * (x in ("h", "B"))) for x, n in hints.items()}
            shape |= base
            turns = base[self.blocks.name] + more
            yield {**shape, self.blocks.name: self.blocks.at(shape) * turns}

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
        for rounding in self._roundings:
            if all(evaluate(expression, self.blocks.shape(s, rounding)) == v for s, v in values):
                return self.blocks.over_size(expression, rounding)
        whole = self.whole.sizes.get(name, 0)
        return None if whole is None else self.blocks.combined(expression, whole)

    def peak(self, phase: str) -> Any | None:
        """Return the peak of a phase as a formula over the sizes; None if there is none."""
        sides = self.fitted.peaks[phase]
        if sides is None:
            return None
        values = [(s, totals_by_phase(t, [phase])[phase]["peak_bytes"]) for s, t in self._traces]
        for rounding in self._roundings:
            if all(
                max(evaluate(x, self.blocks.shape(s, rounding)) for x in sides) == v
                for s, v in values
            ):
                return most(self.blocks.over_size(x, rounding) for x in sides)
        whole = self.whole.peaks[phase]
        if whole is None:
            return None
        divides = sympy.Eq(sympy.Mod(symbol(self.blocks.name), self.blocks.block), 0)
        return sympy.Piecewise(
            (most(self.blocks.over_size(x, "whole") for x in whole), divides),
            (most(self.blocks.over_size(x, "ceil") for x in sides), True),
            evaluate=False,
        )
