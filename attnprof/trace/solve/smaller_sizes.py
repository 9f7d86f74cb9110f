"""Extend domains to smaller sizes than those of the runs behind formulas, and to fewer blocks.

A symbolic run excludes sizes at which a dimension is 1: :func:`include_single_sizes` adds them.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import sympy

from attnprof.algebra.expressions import symbol
from attnprof.algebra.values import evaluate
from attnprof.trace.events import Call, Trace, totals_by_phase
from attnprof.trace.request.target import Sizes
from attnprof.trace.solve.domain import SizeConditions, shapes_in
from attnprof.trace.solve.symbolic import Blocks, SymbolicRun
from attnprof.trace.solve.turns import differs
from attnprof.trace.solve.verification import OutOfBudgetError, Runs, differences

if TYPE_CHECKING:
    from attnprof.trace.solve.mixed import Mixed

#: Shapes at which a symbolic run is compared with formulas: at most, and at least.
_DRAWN, _FEWEST = 60, 12
#: Sizes that blocks are made of, as multiples of the least, at which runs are compared.
_TIMES = 1, 2, 3
#: A number far above small ones.
_FAR = 9
#: Operations of a run above which nothing is tried; the largest size that may be excluded.
_LONG, _LARGEST = 400, 600
#: Shapes at which an excluded size is run; shapes of other sizes that must be inside the domain.
_TRIED, _NEIGHBOURS = 4, 120


# -- smaller numbers ---------------------------------------------------------------------
def extend_downwards(formulas: "Mixed", name: str, runs: Runs) -> None:
    """Lower the least number of a size as far as the formulas hold."""
    stride, rest = formulas.strides.get(name, (1, 0))
    blocks = formulas.blocks
    if blocks and name == blocks.name and (formulas.whole_only or not blocks.block.is_Integer):
        return
    least = formulas.least[name]
    near = {*range(least - 1, 1, -1)[:4], *(least // k for k in (2, 4, 16)), 3, 2}
    near = {x + (rest - x) % stride for x in near}
    below = sorted((x for x in near if 1 < x < least), reverse=True)
    if formulas.is_long:  # the code branches before some sizes: these are few, and not tried twice
        shapes = ((x, formulas.near(**{name: x})) for x in below[::-1])
        shortest = next((x for x, shape in shapes if formulas.fits(shape, runs)), 0)
        below = [x for x in (least - 1, shortest) if 0 < x < least]
    if below and _holds_from(formulas, name, below[-1], runs):
        between = (formulas.near(**{name: size}) for size in below[:-1])
        if all(formulas.fits(x, runs) for x in between if formulas.conditions.holds(x)):
            formulas.least[name] = below[-1]
            return
    for size in below[:-1]:
        if not _holds_from(formulas, name, size, runs):
            break
        formulas.least[name] = size


def _holds_from(formulas: "Mixed", name: str, size: int, runs: Runs) -> bool:
    """Return whether the formulas hold at a smaller size, whatever the other sizes are."""
    before = {phase: dict(forms) for phase, forms in formulas.forms.items()}
    if _holds_at(formulas, name, size, runs) and _holds_beyond(formulas, name, size, runs):
        return True
    formulas.forms.update(before)  # of peaks a moment may be gone
    return False


def _holds_at(formulas: "Mixed", name: str, size: int, runs: Runs) -> bool:
    """Return whether runs confirm formulas at a smaller size: symbolic ones if they were made."""
    shapes = [formulas.near(**x, **{name: size}) for x in formulas.others]
    blocks = formulas.blocks
    whole = blocks if blocks and formulas.whole_only and name != blocks.name else None
    counts = {**formulas.least, name: size} | ({whole.name: formulas.turns} if whole else {})
    if run := formulas.plan.run_of_whole_blocks(counts, runs.phases, whole=bool(whole)):
        shapes += [{**x, **counts} for x in islice(shapes_in(shapes[0], run.holds), _DRAWN)]
        shapes = [_in_blocks(whole, shape, formulas.turns) for shape in shapes]
        fits = not whole or formulas.fits(formulas.near(**{name: size}), runs)
        return fits and not any(_contradicted(formulas, run, shapes))
    free = [x for x in formulas.plan.target.symbols if x not in formulas.plan.blocks]
    for wide in free:  # one other size is far larger
        shapes.append(formulas.near(**{**dict.fromkeys(free, 2), name: size, wide: 96}))
        if blocks and name != blocks.name:
            shapes.append({**shapes[-1], blocks.name: _FAR * blocks.at(shapes[-1])})
    inside = [x for x in shapes if formulas.conditions.holds(x)]
    return bool(inside) and all(formulas.fits(x, runs) for x in inside)


def _holds_beyond(formulas: "Mixed", name: str, size: int, runs: Runs) -> bool:
    """Return whether formulas hold at a smaller size also if another number is far larger.

    They are compared with a symbolic run there; where there is none, they are taken to hold.
    """
    blocks = formulas.blocks
    base = {**formulas.least, name: size}
    if blocks:
        base[blocks.name] = formulas.turns + (not formulas.whole_only)
    for other in (x for x in base if x != name):
        number, step = base[other], formulas.strides.get(other, (1, 0))[0]
        counts = {**base, other: number + -(-max(number + 1, _FAR - number) // step) * step}
        with suppress(OutOfBudgetError):
            run = formulas.plan.at(counts, runs.phases, ragged=False)
            if isinstance(run, SymbolicRun):
                turns = counts.pop(blocks.name) if blocks else 0
                if any(_contradicted(formulas, run, _shapes_at(formulas, run, counts, turns))):
                    return False
    return True


def _shapes_at(
    formulas: "Mixed", run: SymbolicRun, numbers: Sizes, turns: int, *, ragged: bool = False
) -> list[dict[str, int]]:
    """Return shapes with these numbers and blocks at which the run's and other formulas hold."""
    shapes = ({**x, **numbers} for x in shapes_in(formulas.near(**numbers), lambda _: True))
    placed = (_in_blocks(formulas.blocks, shape, turns, ragged=ragged) for shape in shapes)
    return [*islice((x for x in placed if run.holds(x) and formulas.conditions.holds(x)), _DRAWN)]


def _in_blocks(
    blocks: Blocks | None, sizes: Sizes, turns: int, *, ragged: bool = False
) -> dict[str, int]:
    """Return a shape whose length has so many blocks, and if ``ragged`` a rest."""
    if blocks is None:
        return {**sizes}
    one = blocks.at(sizes)
    rest = {blocks.rest.name: 2 + sizes[blocks.name] % max(one - 2, 1)} if ragged else {}
    return {**sizes, blocks.name: turns * one + sum(rest.values()), **rest}


def _contradicted(
    formulas: "Mixed", run: SymbolicRun, shapes: Iterable[Sizes]
) -> Iterator[tuple[str, str]]:
    """Yield phase and quantity of each formula that differs from a symbolic run's at a shape."""
    for shape in shapes:
        yield from differences(formulas.forms, run.numbers(shape), shape)


# -- fewer blocks ------------------------------------------------------------------------
def extend_to_fewer_blocks(formulas: "Mixed", runs: Runs) -> None:
    """Lower the least number of blocks, one at a time, as long as runs confirm the formulas."""
    blocks = formulas.blocks
    if blocks is None or (blocks.block.is_Integer and not formulas.whole_only):
        return
    name = blocks.name
    while formulas.turns > formulas.whole_only:
        fewer = formulas.turns - 1
        with_rests = [(fewer, True), (formulas.turns, False)]
        kinds = [(fewer, False)] if formulas.whole_only else with_rests
        try:
            alike = all(
                _agrees_in_blocks(formulas, turns, runs, ragged=ragged) for turns, ragged in kinds
            )
        except OutOfBudgetError:
            return
        if not alike:
            return
        formulas.turns = fewer
        if blocks.block.is_Integer:
            formulas.least[name] = fewer * int(blocks.block)


def _agrees_in_blocks(formulas: "Mixed", turns: int, runs: Runs, *, ragged: bool) -> bool:
    """Return whether a symbolic run of so many blocks (``turns``) confirms the formulas.

    If only peaks differ, the peak of that run becomes a case of the formula. If the block length is
    a number in the run, formulas are compared with concrete runs of other block lengths, too.
    """
    plan, blocks = formulas.plan, formulas.blocks
    if blocks is None:
        return False
    name, block = blocks.name, blocks.block
    numbers = {x: plan.first(x) for x in plan.blocks if x != name}
    run = plan.at({**numbers, name: turns}, runs.phases, ragged=ragged)
    if not isinstance(run, SymbolicRun):
        return False
    drawn = _shapes_at(formulas, run, numbers, turns, ragged=ragged)
    if len(drawn) < _FEWEST:
        return False
    wrong = {*_contradicted(formulas, run, drawn)}
    lengths = [x for x in numbers if block.has(symbol(x))]
    others = [{x: n * formulas.least[x] for x in lengths} for n in _TIMES if lengths]
    near = (_in_blocks(blocks, formulas.near(**x), turns, ragged=ragged) for x in others)
    fit = all(formulas.fits({x: s[x] for x in plan.target.symbols}, runs) for s in near)
    only_peaks = all(kind == "peak_bytes" for _, kind in wrong)
    if not (fit and formulas.whole_only and only_peaks) or lengths:
        return fit and not wrong
    for phase, kind in wrong:  # of few blocks another moment is the worst
        case = run.forms[phase][kind], symbol(name) <= turns * block
        usual = formulas.forms[phase][kind]
        cases = usual.args if isinstance(usual, sympy.Piecewise) else [(usual, True)]
        formulas.forms[phase][kind] = sympy.Piecewise(case, *cases, evaluate=False)
    return True


# -- single sizes ------------------------------------------------------------------------
# A dimension of 1 is another case for torch: a run with d/64 blocks holds for ``d != 64`` alone.
def include_single_sizes(symbolic: SymbolicRun, runs: Runs, hints: Sizes) -> SymbolicRun:
    """Return the run with a domain that has the sizes excluded for a single entry.

    Only if runs at these sizes do the same operations, and hold the same bytes during each.
    """
    if len(symbolic.trace.calls) > _LONG:
        return symbolic
    unequal = [x for x in symbolic.guards.relations if isinstance(x, sympy.Ne)]
    for condition in [x for x in unequal if len(x.free_symbols) == 1]:
        (name,) = (size.name for size in condition.free_symbols)
        for size in range(2, _LARGEST):
            if evaluate(condition, {name: size}):
                continue
            kept = [x for x in symbolic.guards.relations if evaluate(x, {**hints, name: size})]
            wider = replace(symbolic, guards=SizeConditions(kept))
            inside = ({**shape, name: size} for shape in shapes_in(hints, symbolic.holds))
            shapes = list(islice(filter(wider.holds, inside), _TRIED))
            near = ({**hints, name: other} for other in range(2, 4 * size))
            neighbours = chain(near, islice(shapes_in(hints, wider.holds), _NEIGHBOURS))
            only = all(symbolic.holds(x) for x in neighbours if x[name] != size and wider.holds(x))
            same = (_does_the_same(symbolic, runs.run_or_none(x), x, runs.phases) for x in shapes)
            alone = len(shapes) == _TRIED and only
            if alone and all(same):
                symbolic = wider
                break
    return symbolic


def _does_the_same(
    symbolic: SymbolicRun, trace: Trace | None, sizes: Sizes, phases: Sequence[str]
) -> bool:
    if trace is None or len(trace.calls) != len(symbolic.trace.calls):
        return False

    def counts(call: Call) -> tuple[Any, ...]:
        return call.op, *(evaluate(x, sizes) for x in (call.takes, call.gives, call.workspace))

    pairs = zip(trace.calls, symbolic.trace.calls, strict=True)
    return all(counts(a) == counts(b) for a, b in pairs) and not differs(
        symbolic, totals_by_phase(trace, phases), sizes
    )
