"""Verdicts on printed formulas: match or erratum against the code's formula, and by how much.

Entry point: :func:`verified`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import Any

import sympy

from attnprof.algebra.expressions import constant_ratio, expression_text
from attnprof.algebra.parser import name_of
from attnprof.arguments import LARGEST
from attnprof.errors import RequestError, closest
from attnprof.record import VerificationRecord
from attnprof.trace.request.target import sizes_text
from attnprof.verify.comparison import EXACT, ORDER, alike, compared, ordered, value
from attnprof.verify.own_formulas import DERIVED, Formulas, Source, own_formulas, symbols_of
from attnprof.verify.printed import (
    Printed,
    check_names,
    in_row,
    names_in,
    read_formula,
    without_bound,
)

MATCH, ERRATUM = "match", "erratum"


@dataclass(frozen=True)
class _Ready:
    """A printed formula as an expression in the names of our formula."""

    printed: Printed
    expression: Any
    bound: str
    notes: tuple[str, ...]


def verified(rows: Sequence[Printed]) -> list[VerificationRecord]:
    """Return a verdict for every row; each target is derived once.

    Raises :class:`RequestError` for unreadable formulas, and for unknown names and quantities.
    """
    ready = [in_row(row.line, lambda row=row: _ready(row)) for row in rows]
    formulas: dict[Source, dict[str, Formulas]] = {}
    for source in dict.fromkeys(row.printed.source for row in ready):
        group = [row.printed for row in ready if row.printed.source == source]
        phases = list(dict.fromkeys(row.phase for row in group))
        formulas[source] = in_row(group[0].line, lambda s=source, p=phases: own_formulas(s, p))
    return [_record(row, formulas[row.printed.source][row.printed.phase]) for row in ready]


def answer(records: Sequence[VerificationRecord]) -> str:
    """Return the sentence on how many printed formulas are right, and on the wrong ones."""
    if len(records) == 1:
        verbs = {MATCH: "matches", ERRATUM: "differs from", None: "was not compared with"}
        return f"the printed formula {verbs[records[0].verdict]} the code's"
    rows = {verdict: [str(n) for n, r in enumerate(records, 1) if r.verdict == verdict]
            for verdict in (MATCH, ERRATUM, None)}  # fmt: skip
    right = "all" if len(rows[MATCH]) == len(records) else f"{len(rows[MATCH])} of"
    parts = [f"{right} {len(records)} printed formulas match the code's"]
    clauses = {ERRATUM: ("does not", "do not"), None: ("was not compared", "were not compared")}
    for verdict, words in clauses.items():
        if numbers := rows[verdict]:
            several = len(numbers) > 1
            parts.append(f"row{'s' * several} {', '.join(numbers)} {words[several]}")
    return "; ".join(parts)


def _ready(row: Printed) -> _Ready:
    """Return a formula read, with names replaced by their meanings, and sizes fixed."""
    text, bound = without_bound(row.formula)
    expression = read_formula(text)
    symbols = symbols_of(row.source)
    if unknown := set(row.at) - set(symbols):
        raise RequestError(f"--at {', '.join(sorted(unknown))}: sizes are {', '.join(symbols)}")
    meanings = {name: read_formula(meaning) for name, meaning in row.where.items()}
    for name, meaning in meanings.items():
        check_names(meaning, symbols, row.where[name])
        used = name in symbols or name in names_in(expression) or name in row.growing
        if not used and not row.line:  # for a table, --where may be for other rows
            raise RequestError(f"--where {name}={row.where[name]}: no formula here has {name}")
    expression = read_formula(text, meanings)
    check_names(expression, symbols, row.formula)
    fixed = {name: x for name, x in meanings.items() if name in symbols and x.is_number}
    for name, size in fixed.items():
        if not size.is_Integer or not 1 <= size <= LARGEST:
            raise RequestError(
                f"--where {name}={size}: {name} is a size, a whole number from 1 to 2**40"
            )
    notes = []
    if "B" in symbols and "B" not in fixed and "B" not in names_in(expression):
        fixed["B"] = 1
        notes.append("for one sequence (B = 1): the printed formula has no B")
    at = tuple(sorted(row.at.items())) if row.source.way == DERIVED else ()
    numbers = tuple(sorted((name, int(size)) for name, size in fixed.items()))
    source = replace(row.source, fixed=numbers, at=at)
    up_to, growing = row.up_to, _growing(row.growing, meanings, symbols)
    if bound:  # in O(N**2) the sizes inside grow, the others stay
        up_to, growing = ORDER, growing or tuple(sorted(names_in(expression)))
    printed = replace(row, source=source, growing=growing, up_to=up_to)
    return _Ready(printed, expression, bound or "O", tuple(notes))


def _growing(
    names: Sequence[str], meanings: Mapping[str, Any], symbols: Sequence[str]
) -> tuple[str, ...]:
    """Return the sizes that grow, in the names of our formula."""
    growing: dict[str, None] = {}
    for name in (name_of(name) or name for name in names):
        if name not in symbols and name not in meanings:
            raise RequestError(f"--in {name}: sizes are {', '.join(symbols)}")
        growing.update(dict.fromkeys(names_in(meanings[name]) if name in meanings else {name}))
    return tuple(growing)


def _record(row: _Ready, ours: Formulas) -> VerificationRecord:
    printed, source = row.printed, row.printed.source
    if printed.quantity not in ours.quantities:
        near = closest(printed.quantity, list(ours.quantities))
        raise RequestError(f"{printed.line}quantity '{printed.quantity}': {near}")
    form = ours.form(printed.quantity)
    about = VerificationRecord(
        place=printed.place, of=source.target, scope=source.layer, phase=printed.phase,
        causal=source.causal, quantity=printed.quantity, kind=source.way, up_to=printed.up_to,
        convention=source.convention, where=dict(printed.where), printed=printed.formula,
        domain=list(ours.domain), method=ours.method, verified_at=list(ours.verified_at),
        notes=[*row.notes, *ours.notes],
    )  # fmt: skip
    if form is None:
        return _counted(about, row, ours.numbers.get(printed.quantity))
    alone = {name: size for name, size in ours.pinned.items() if name not in dict(source.fixed)}
    if printed.up_to != EXACT and set(alone) & set(printed.growing or ours.symbols):
        where = sizes_text(alone)
        return replace(about, skipped=f"our formula holds for {where} alone, for no growth")
    return _compared(about, row, ours, form, {**alone, **dict(source.fixed)})


def _compared(
    about: VerificationRecord, row: _Ready, ours: Formulas, form: Any, fixed: Mapping[str, int]
) -> VerificationRecord:
    """Return the verdict from comparing both formulas, with numbers for fixed sizes."""
    printed, form = _fixed(row.expression, fixed), _fixed(form, fixed)
    shapes, at, up_to = ours.shapes(fixed), row.printed.at, row.printed.up_to
    if at:  # the asked shape comes first
        first = {**(shapes[0] if shapes else {}), **at, **fixed}
        shapes = [first, *(shape for shape in shapes if shape != first)]
    growing = row.printed.growing or tuple(name for name in ours.symbols if name not in fixed)
    if up_to == ORDER:
        answer = ordered(printed, form, row.bound, growing, shapes, ours.fits)
    else:
        answer = compared(printed, form, up_to, growing, shapes, ours.fits)
    if answer.agrees is None:
        return replace(about, ours=expression_text(form), skipped=answer.why)
    hint = ""
    if not answer.agrees and up_to == EXACT:
        hint = _hint(printed, form, about.quantity, ours, fixed, shapes)
    shown = [] if up_to == ORDER else shapes[: 1 if at else 3]  # an order of growth has no values
    lacking = f"at least: not counted are {', '.join(ours.uncounted)}" if ours.uncounted else ""
    return replace(
        about,
        ours=expression_text(form),
        verdict=MATCH if answer.agrees else ERRATUM,
        difference=answer.difference,
        why="; ".join(filter(None, (answer.why, hint, lacking))),
        leading_printed=answer.leading_printed,
        leading_ours=answer.leading_ours,
        leading_agrees=answer.leading_agrees,
        values=[
            {"sizes": dict(shape), "printed": _number(printed, shape), "ours": _number(form, shape)}
            for shape in shown
        ],
    )


def _counted(about: VerificationRecord, row: _Ready, ours: Any) -> VerificationRecord:
    """Return the verdict from comparing numbers at the asked shape: we have no formula."""
    shape = {**row.printed.at, **dict(row.printed.source.fixed)}
    what = f"no formula of {about.quantity} was found"
    if ours is None or row.printed.up_to != EXACT or names_in(row.expression) - set(shape):
        return replace(about, skipped=f"{what} to compare with; give all sizes with --at")
    printed = value(row.expression, shape)
    return replace(
        about,
        verdict=MATCH if printed == ours else ERRATUM,
        why=f"{what}: compared by a run at this shape alone",
        values=[{"sizes": shape, "printed": printed, "ours": int(ours)}],
    )


def _fixed(form: Any, fixed: Mapping[str, int]) -> Any:
    expression = sympy.sympify(form)
    values = {s: fixed[s.name] for s in expression.free_symbols if s.name in fixed}
    return expression.subs(values) if values else expression


def _number(form: Any, shape: Mapping[str, int]) -> int | float | None:
    number = value(form, shape)
    return None if isinstance(number, float) and isnan(number) else number


def _hint(
    printed: Any, form: Any, quantity: str, ours: Formulas, fixed: Mapping[str, int],
    shapes: Sequence[dict[str, int]],
) -> str:  # fmt: skip
    """Return a hint on a wrong formula: it is another quantity, a multiple, or of one head."""
    for name in ours.quantities:
        values = (ours.at(name, shape) == value(printed, shape) for shape in shapes[:2])
        if name == quantity or not all(values):
            continue  # values differ: no algebra is needed
        other = _fixed(ours.form(name), fixed)
        if other and compared(printed, other, EXACT, (), shapes).agrees:
            return f"it is the formula of {name.replace('_', ' ').replace('flops', 'FLOPs')}"
    if (ratio := constant_ratio(form, printed)) is not None:
        return f"ours is {ratio} times the printed formula"
    for symbol in sorted(form.free_symbols - printed.free_symbols, key=str):
        single = [{**shape, symbol.name: 1} for shape in shapes]
        if not all(alike(printed, form, shape) for shape in single[:2]):
            continue
        if compared(printed, form.subs(symbol, 1), EXACT, (), single).agrees:
            return f"it holds for {symbol} = 1 (--where {symbol}=1)"
    return ""
