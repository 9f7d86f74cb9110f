"""Extend formulas to lengths of fewer blocks than the runs behind them had."""

from itertools import islice
from typing import Any

from attnprof.algebra.expressions import symbol
from attnprof.trace.request.target import Sizes
from attnprof.trace.solve.budget import OutOfBudgetError, Runs, differences
from attnprof.trace.solve.mixed import Mixed
from attnprof.trace.solve.shapes import shapes_in
from attnprof.trace.solve.symbolic import SymbolicRun

#: Shapes at which a symbolic run is compared with formulas: at most, and at least.
_DRAWN, _FEWEST = 60, 12
#: Sizes that blocks are made of, as multiples of the least, at which runs are compared.
_TIMES = 1, 2, 3


def extend_to_fewer_blocks(formulas: Mixed, runs: Runs) -> None:
    """Lower the least number of blocks, one at a time, as long as runs there give the same."""
    blocks = formulas.blocks
    if blocks is None or (blocks.block.is_Integer and not formulas.divided):
        return
    name = blocks.name
    while formulas.turns > formulas.divided:
        fewer = formulas.turns - 1
        kinds = [(fewer, False)] if formulas.divided else [(fewer, True), (formulas.turns, False)]
        try:
            alike = all(_agrees(formulas, turns, runs, ragged=ragged) for turns, ragged in kinds)
        except OutOfBudgetError:
            return
        if not alike:
            return
        formulas.turns = fewer
        if blocks.block.is_Integer:
            formulas.least[name] = fewer * int(blocks.block)


def _agrees(formulas: Mixed, turns: int, runs: Runs, *, ragged: bool) -> bool:
    """Return whether formulas give what a symbolic run of so many blocks (``turns``) gives.

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

    def placed(sizes: Sizes) -> dict[str, int]:
        one = blocks.at(sizes)
        rest = 2 + sizes[name] % max(one - 2, 1) if ragged else 0
        return {**sizes, name: turns * one + rest} | ({blocks.rest.name: rest} if ragged else {})

    def inside(sizes: Sizes) -> bool:
        return run.holds(sizes) and formulas.conditions.holds(sizes)

    shapes = (placed({**x, **numbers}) for x in shapes_in(formulas.near(), lambda _: True))
    drawn = [*islice(filter(inside, shapes), _DRAWN)]
    if len(drawn) < _FEWEST:
        return False
    wrong = {what for x in drawn for what in differences(formulas.forms, run.numbers(x), x)}
    of = [x for x in numbers if block.has(symbol(x))]
    near = [placed(formulas.near(**{x: n * formulas.least[x] for x in of})) for n in _TIMES if of]
    fit = all(formulas.fits({x: s[x] for x in plan.target.symbols}, runs) for s in near)
    if not fit or of or not formulas.divided or any(kind != "peak_bytes" for _, kind in wrong):
        return fit and not wrong
    for phase, kind in wrong:  # of few blocks another moment is the worst
        here = run.forms[phase][kind], symbol(name) <= turns * block
        formulas.forms[phase][kind] = _with_case(here, formulas.forms[phase][kind])
    return True


def _with_case(case: tuple[Any, Any], otherwise: Any) -> Any:
    """Return a piecewise formula: that of the case where its condition holds, else another one."""
    import sympy

    cases = otherwise.args if isinstance(otherwise, sympy.Piecewise) else [(otherwise, True)]
    return sympy.Piecewise(case, *cases, evaluate=False)
