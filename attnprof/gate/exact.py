"""Compare counts and formulas exactly: any increase is worse, and each is traced to operations.

:func:`compare` returns a record a metric. Formulas are compared symbolically, as their texts stand
in the baseline (:func:`difference`); nothing is run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from operator import attrgetter
from typing import Any

from attnprof.algebra.expressions import expression_of, rules_of, symbol
from attnprof.algebra.parser import FormulaError, Rules, parse
from attnprof.algebra.values import chosen, evaluate
from attnprof.gate import rules
from attnprof.gate.changes import AMOUNTS, Change, changes
from attnprof.gate.counts import Counted
from attnprof.record import CheckRecord
from attnprof.trace.request.target import hints_for
from attnprof.units import format_count

#: How many changes an explanation names; the others are counted.
_MOST_NAMED = 3


def compare(case: str, baseline: Counted | None, current: Counted | None) -> list[CheckRecord]:
    """Return a record for every metric and formula, or one if a side has no counts."""
    if unable := _verdict_without_counts(baseline, current):
        verdict, why = unable
        return [CheckRecord(case=case, metric=rules.WHOLE, verdict=verdict, why=why)]
    assert baseline is not None
    assert current is not None
    differences = changes(baseline, current)
    names = dict.fromkeys((*baseline.metrics, *current.metrics))
    records = [_metric_record(case, name, baseline, current, differences) for name in names]
    lines = {f"formula:{record.metric}": record.place for record in records}
    with_formulas = all(side.formulas or side.no_formula for side in (baseline, current))
    for name in dict.fromkeys((*baseline.formulas, *current.formulas)) if with_formulas else ():
        record = _formula_record(case, name, baseline, current)
        changed = record.verdict in (rules.REGRESSED, rules.IMPROVED) and differences
        place = (lines.get(record.metric) or differences[0].line) if changed else ""
        records.append(replace(record, place=place))
    return records


def _verdict_without_counts(
    baseline: Counted | None, current: Counted | None
) -> tuple[str, str] | None:
    """Return the verdict and reason for a case that a side cannot count; None if both can."""
    if current is None or current.missing:
        reason = f": {current.error}" if current and current.error else ""
        return rules.MISSING, f"it is not there any more{reason}"
    if current.error is not None:
        return rules.ERROR, current.error
    if baseline is None or baseline.missing:
        return rules.NEW, "nothing to compare with yet"
    if baseline.error is not None:
        return rules.ERROR, f"nothing to compare with, the baseline failed: {baseline.error}"
    return None


def _metric_record(
    case: str, name: str, baseline: Counted, current: Counted, changes: Sequence[Change]
) -> CheckRecord:
    """Return the record of one metric: its counts, the verdict, and the changes that explain it."""
    before, now = baseline.metrics.get(name), current.metrics.get(name)
    unit = "B" if name in ("bytes_moved", "peak_bytes") else ""
    record = CheckRecord(
        case=case, metric=name, baseline=before, current=now, verdict=rules.OK, unit=unit
    )
    if before is None:
        return replace(record, verdict=rules.NEW, why="not counted in the baseline")
    if now is None:
        return replace(record, verdict=rules.MISSING, why="not counted any more")
    amount = now - before
    amount_of = AMOUNTS.get(name, attrgetter("flops"))
    causes = [change for change in changes if amount_of(change)]
    if name not in AMOUNTS and (same := [c for c in causes if c.flops == amount]):
        causes = same[:1]
    else:  # the largest first; all where none went the same way
        along = [change for change in causes if amount_of(change) * amount > 0]
        causes = sorted(along or causes, key=lambda change: -abs(amount_of(change)))
    return replace(
        record,
        ratio=now / before if before else None,
        verdict=rules.REGRESSED if amount > 0 else rules.IMPROVED if amount else rules.OK,
        place=causes[0].line if causes and amount else "",
        why=_explanation(name, amount, causes, current.sizes),
    )


def _explanation(name: str, amount: int, causes: Sequence[Change], sizes: Mapping[str, int]) -> str:
    """Return why a metric grew or shrank by an amount: the changed operations, largest first."""
    more = [f"and {len(causes) - _MOST_NAMED} more"] if len(causes) > _MOST_NAMED else []
    named = "; ".join([*(change.text(sizes) for change in causes[:_MOST_NAMED]), *more])
    if amount == 0:
        return f"as many, but others: {named}" if name == "dispatched_operations" and named else ""
    if name == "parameters":
        return f"{format_count(abs(amount))} {'more' if amount > 0 else 'fewer'}"
    if name == "peak_bytes" and not any(change.extra_bytes * amount > 0 for change in causes):
        longer = "longer" if amount > 0 else "shorter"
        return f"results are held {longer}" + (f"; changed: {named}" if named else "")
    return named


#: Highest power in a closed form.
_HIGHEST = 64


@cache
def formula(text: str) -> Any:
    """Return the sympy expression of a text; ValueError for anything but arithmetic."""
    try:
        return expression_of(parse(text, stored=True), rules=_rules())
    except (FormulaError, TypeError, RecursionError) as error:
        raise ValueError(f"'{text[:60]}' is no formula: {error}") from error


@cache
def _rules() -> Rules:
    """Return the functions and operators that a formula may have; Max and Min stay unevaluated."""
    import sympy

    return {
        **rules_of(_HIGHEST),
        "max": lambda *sides: sympy.Max(*sides, evaluate=False),
        "min": lambda *sides: sympy.Min(*sides, evaluate=False),
        "Piecewise": lambda *pairs: sympy.Piecewise(*pairs, evaluate=False),
        "tuple": lambda *pair: pair,
        "Mod": sympy.Mod, "Eq": sympy.Eq, "Ne": sympy.Ne,
        "<": sympy.StrictLessThan, "<=": sympy.LessThan,
        ">": sympy.StrictGreaterThan, ">=": sympy.GreaterThan,
        "&": sympy.And, "|": sympy.Or,
    }  # fmt: skip


#: Digits as superscripts.
_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def spelled(expression: Any) -> str:
    """Return ``+ 2·B·N²·h − 3·N``: a sum with its signs, the fastest growing term in N first."""
    import sympy

    def rank(term: Any) -> tuple[Any, ...]:
        powers = term.as_powers_dict()
        return (-powers.get(symbol("N"), 0), -sum(powers.values()), str(term))

    terms = sympy.Add.make_args(sympy.expand(expression))
    return " ".join(_term(term) for term in sorted(terms, key=rank))


def _term(term: Any) -> str:
    """Return a term of a sum with its sign: ``− 2·B·N²``."""
    factor, rest = term.as_coeff_Mul()
    sign, size = "−" if factor.is_negative else "+", abs(factor)
    powers = sorted(rest.as_powers_dict().items(), key=lambda pair: str(pair[0]))
    shown = []
    for base, exponent in powers:
        whole = exponent.is_Integer and exponent > 0
        high = str(exponent).translate(_SUPERSCRIPTS) if whole else f"^({exponent})"
        power = "" if exponent == 1 else high
        if base != 1:
            shown.append((f"({base})" if base.is_Add else str(base)) + power)
    if size != 1 or not shown:
        broken = f"({size})" if size.is_Rational else str(size)
        shown.insert(0, f"{int(size):,}" if size.is_Integer else broken)
    return f"{sign} {'·'.join(shown)}"


#: Names of the quantities of formulas, for sentences.
UNITS = {
    "other": "other operations", "flops": "FLOPs", "matmul_flops": "FLOPs of matrix products",
    "bytes_moved": "bytes moved", "peak_bytes": "bytes at the peak",
}  # fmt: skip
#: Factor from the case's length to a long one, where the fastest growing term leads.
_LONG = 2**40
_WORDS = {1: "more", 0: "the same", -1: "fewer"}


def _formula_record(case: str, name: str, baseline: Counted, current: Counted) -> CheckRecord:
    """Return the record of one closed form: its texts, their difference, the verdict."""
    before, now = baseline.formulas.get(name), current.formulas.get(name)
    verdict, why = rules.OK, ""
    if now is None:
        verdict, why = rules.NOT_COMPARABLE, f"no closed form any more: {current.no_formula}"
    elif before is None:
        verdict, why = rules.NEW, "the baseline has no closed form of it"
    elif before != now:
        was, is_ = baseline.metrics.get(name), current.metrics.get(name)
        at_shape = None if was is None or is_ is None else (is_ > was) - (is_ < was)
        sizes, unit = current.sizes or baseline.sizes, UNITS.get(name, name)
        verdict, why = difference(before, now, sizes, at_shape, unit)
    return CheckRecord(
        case=case, metric=f"formula:{name}", baseline=before, current=now, verdict=verdict, why=why
    )


def difference(
    before: str, now: str, sizes: Mapping[str, int], at_shape: int | None, unit: str
) -> tuple[str, str]:
    """Return the verdict on two formulas and their difference: ``+ 2·B·N²·h additions``.

    ``at_shape`` is the sign of the change that a run counted at these sizes, if any. The new
    formula is worse if it is more at these sizes or for longer sequences; if these are equal, if it
    is more for larger sizes.
    """
    import sympy

    old, new = formula(before), formula(now)
    at = hints_for(_names(old) | _names(new), sizes)
    branch = any(side.has(sympy.Max, sympy.Min, sympy.Piecewise) for side in (old, new))
    # one formula may be for any size, the other for a size of 1, which the case has
    ones = {symbol(name): 1 for name in _names(old) ^ _names(new) if at[name] == 1}
    apart = min(
        (
            sympy.expand(chosen(b, at) - chosen(a, at) if branch else b - a)
            for a, b in ((old, new), (old.subs(ones), new.subs(ones)))
        ),
        key=lambda difference: len(sympy.Add.make_args(difference)) if difference else 0,
    )
    if old == new or (apart == 0 and not branch):
        return rules.OK, ""
    grown = {n: size if symbol(n) in ones else size * _LONG for n, size in at.items()}
    at_shape = _sign_of_change(old, new, at) if at_shape is None else at_shape
    long = _sign_of_change(old, new, {**at, "N": at.get("N", 1) * _LONG})
    large = _sign_of_change(old, new, grown)
    where = " in the branch of this shape" if branch else ""
    text = f"{spelled(apart)} {unit}{where}" if apart != 0 else "another branch"
    if at_shape == long == large == 0:
        text += ": the same at this shape and for larger sizes"
    elif at_shape == long == 0:
        text += f": the same at this shape, {_WORDS[large]} for larger sizes"
    elif at_shape != long:
        text += f": {_WORDS[at_shape]} at this shape, {_WORDS[long]} for longer sequences"
    sign = 1 if 1 in (at_shape, long) else min(at_shape, long) or large
    return {1: rules.REGRESSED, -1: rules.IMPROVED, 0: rules.OK}[sign], text


def _names(expression: Any) -> set[str]:
    return {size.name for size in expression.free_symbols}


def _sign_of_change(old: Any, new: Any, sizes: Mapping[str, int]) -> int:
    value = evaluate(new, sizes) - evaluate(old, sizes)
    return int(value > 0) - int(value < 0)
