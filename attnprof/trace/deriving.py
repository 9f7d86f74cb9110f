"""From a target to its formulas: symbolic first, another way where that breaks, verified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnprof.errors import CannotRunError, RequestError
from attnprof.trace.derivation import (
    COUNTED,
    INTERPOLATED,
    SYMBOLIC,
    Derivation,
    Formula,
    PhaseForms,
    told,
)
from attnprof.trace.events import QUANTITIES
from attnprof.trace.interpolation import Interpolated, interpolate
from attnprof.trace.probing import NotPolynomialError
from attnprof.trace.runs import record
from attnprof.trace.shots import OutOfBudgetError, Shots
from attnprof.trace.symbolic_run import NotSymbolicError, run_symbolically
from attnprof.trace.symbols import hints_for
from attnprof.trace.target import Target
from attnprof.trace.totals import PHASES, at_least, totals, uncounted
from attnprof.trace.verification import HELD_OUT, Runner, differences, held_out, runner


def derive_target(
    target: Target, phases: Sequence[str] = PHASES[:3], asked: Mapping[str, int] | None = None
) -> Derivation:
    """Formulas of a target for phases; ``asked`` sizes choose the branch and must be met."""
    asked = dict(asked or {})
    unknown = set(asked) - set(target.symbols)
    if unknown:
        raise RequestError(
            f"{', '.join(sorted(unknown))}: no such size; {target.name} has "
            f"{', '.join(target.symbols)}"
        )
    found: dict[str, PhaseForms] = {}
    for group in (("forward",), ("backward", "train")):
        wanted = [phase for phase in group if phase in phases]
        if wanted:
            found.update(_group(target, wanted, asked))
    if "decode" in phases:
        found["decode"] = _decoding(target, asked)
    return Derivation(target.name, target.symbols, {p: found[p] for p in phases}, asked)


def _decoding(target: Target, asked: Mapping[str, int]) -> PhaseForms:
    """One step, run like a forward pass."""
    if target.step is None:
        raise RequestError(f"{target.name} has no decoding step to derive; use --phase forward")
    found = _group(target.step, ("forward",), asked)["forward"]
    formulas = {q: replace(formula, phase="decode") for q, formula in found.formulas.items()}
    return replace(found, phase="decode", formulas=formulas)


def _group(
    target: Target, phases: Sequence[str], asked: Mapping[str, int]
) -> dict[str, PhaseForms]:
    """Phases that one run shows."""
    reasons: list[str] = []
    for hints in _branches(target, asked):
        try:
            return _symbolic(target, phases, hints, asked, reasons)
        except NotSymbolicError as error:
            free = ", ".join(name for name, hint in hints.items() if hint != 1)
            reasons.append(f"a run with {free} symbolic was refused: {error}")
    shots = Shots(target, training="forward" not in phases)
    for hints in _branches(target, asked):
        try:
            return _interpolated(target, phases, shots, hints, asked, reasons)
        except (NotPolynomialError, OutOfBudgetError) as error:
            reasons.append(f"interpolation: {error}")
    return _numbers(target, phases, asked, reasons)


def _interpolated(
    target: Target,
    phases: Sequence[str],
    shots: Shots,
    hints: Mapping[str, int],
    asked: Mapping[str, int],
    reasons: Sequence[str],
) -> dict[str, PhaseForms]:
    found = interpolate(target, shots, hints, asked, phases)
    run = runner(target, phases)
    shapes = list(found.held_out(HELD_OUT))
    if set(asked) == set(target.symbols):
        shapes.append(dict(asked))
    for shape in shapes:
        wrong = differences(found.forms, run(shape), shape)
        if wrong:
            raise NotPolynomialError(f"at {told(shape)}: {wrong[0]}")
    return {
        phase: PhaseForms(
            phase,
            INTERPOLATED,
            _formulas(found, phase, run, asked),
            found.domain,
            tuple(shapes),
            _named(found.trace, phase),
            (*reasons, *found.notes(phase), *at_least(found.trace, phase)),
            found.trace,
        )
        for phase in phases
    }


def _formulas(
    found: Interpolated, phase: str, run: Runner, asked: Mapping[str, int]
) -> dict[str, Formula]:
    forms = {q: Formula(phase, q, e) for q, e in found.forms[phase].items()}
    complete = set(asked) >= {*found.lines, *found.fixed}
    for quantity in QUANTITIES:
        if quantity not in forms:
            value = run(asked)[phase][quantity] if complete else None
            forms[quantity] = Formula(phase, quantity, None, value)
    return forms


def _branches(target: Target, asked: Mapping[str, int]) -> list[dict[str, int]]:
    """What symbols stand for: first all free (a 1 is the special case), then as asked."""
    free = hints_for(target.symbols, {k: v for k, v in asked.items() if v != 1})
    return [free] if 1 not in asked.values() else [free, hints_for(target.symbols, asked)]


def _symbolic(
    target: Target,
    phases: Sequence[str],
    hints: Mapping[str, int],
    asked: Mapping[str, int],
    reasons: list[str],
) -> dict[str, PhaseForms]:
    result = run_symbolically(target, hints, phases)
    run = runner(target, phases)
    shapes = list(held_out(hints, result.domain.holds))
    if set(asked) == set(target.symbols):
        shapes.append(dict(asked))
    for shape in shapes:
        wrong = differences(result.forms, run(shape), shape)
        if wrong:
            raise NotSymbolicError(f"at {told(shape)}: {wrong[0]}")
    ones = [f"{name} = 1" for name, hint in hints.items() if hint == 1]
    free = [name for name in target.symbols if hints[name] != 1]
    above = (f"{', '.join(free)} >= 2",) if free else ()
    domain = (*ones, *above, *result.domain.conditions)
    return {
        phase: PhaseForms(
            phase,
            SYMBOLIC,
            {q: Formula(phase, q, e) for q, e in result.forms[phase].items()},
            domain,
            tuple(shapes),
            _named(result.trace, phase),
            (*reasons, *at_least(result.trace, phase)),
            result.trace,
        )
        for phase in phases
    }


def _named(trace: Any, phase: str) -> tuple[str, ...]:
    found = uncounted(trace, phase)
    return tuple(f"{op} ×{times} ({touched} bytes)" for op, (times, touched) in found.items())


def _numbers(
    target: Target, phases: Sequence[str], asked: Mapping[str, int], reasons: list[str]
) -> dict[str, PhaseForms]:
    """Counts at the asked shape, where no formula could be found."""
    if set(asked) != set(target.symbols):
        raise CannotRunError(
            f"{target.name}: no closed form found ({'; '.join(reasons)}); give all sizes with "
            f"--at {','.join(f'{name}=…' for name in target.symbols)} for numbers at one shape"
        )
    trace = record(target, asked, training="forward" not in phases)
    return {
        phase: PhaseForms(
            phase,
            COUNTED,
            {q: Formula(phase, q, None, v) for q, v in totals(trace, phase).items()},
            (told(asked),),
            (asked,),
            _named(trace, phase),
            (*reasons, *at_least(trace, phase)),
            trace,
        )
        for phase in phases
    }
