"""Formulas that were written down, read without running anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from attnprof.algebra.evaluation import Rules
from attnprof.algebra.expressions import expression_of, rules_of, symbol
from attnprof.algebra.parser import FormulaError, parse
from attnprof.gate.cases import Counted
from attnprof.gate.rules import IMPROVED, NEW, NOT_COMPARABLE, OK, REGRESSED
from attnprof.record import CheckRecord
from attnprof.trace.evaluation import evaluate
from attnprof.trace.request.target import hints_for

#: Powers that closed forms go up to.
_HIGHEST = 64


@cache
def formula(text: str) -> Any:
    """The sympy expression of a text over sizes; ValueError for anything but arithmetic.

    What is read may come from anywhere: nothing of it is evaluated as Python.
    """
    try:
        return expression_of(parse(text, stored=True), rules=_rules())
    except (FormulaError, TypeError, RecursionError) as error:
        raise ValueError(f"'{text[:60]}' is no formula: {error}") from error


@cache
def _rules() -> Rules:
    """What closed forms have: cases and conditions; largest and smallest stay as written."""
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


#: Exponents as one reads them.
_HIGH = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def spelled(expression: Any) -> str:
    """``+ 2·B·N²·h − 3·N``: a sum with its signs, what grows fastest with N first."""
    import sympy

    def rank(term: Any) -> tuple[Any, ...]:
        powers = term.as_powers_dict()
        return (-powers.get(symbol("N"), 0), -sum(powers.values()), str(term))

    terms = sympy.Add.make_args(sympy.expand(expression))
    return " ".join(_term(term) for term in sorted(terms, key=rank))


def _term(term: Any) -> str:
    factor, rest = term.as_coeff_Mul()
    sign, size = "−" if factor.is_negative else "+", abs(factor)
    powers = sorted(rest.as_powers_dict().items(), key=lambda pair: str(pair[0]))
    shown = [_powered(base, exponent) for base, exponent in powers if base != 1]
    if size != 1 or not shown:
        broken = f"({size})" if size.is_Rational else str(size)
        shown.insert(0, f"{int(size):,}" if size.is_Integer else broken)
    return f"{sign} {'·'.join(shown)}"


def _powered(base: Any, exponent: Any) -> str:
    text = f"({base})" if base.is_Add else str(base)
    if exponent == 1:
        return text
    if exponent.is_Integer and exponent > 0:
        return text + str(exponent).translate(_HIGH)
    return f"{text}^({exponent})"


#: What a formula counts, as one reads it.
UNITS = {
    "other": "other operations",
    "flops": "FLOPs",
    "matmul_flops": "FLOPs of matrix products",
    "bytes_moved": "bytes moved",
    "peak_bytes": "bytes at the peak",
}
#: How much longer than here a long sequence is: what grows fastest has won by then.
_LONG = 2**40


@dataclass(frozen=True)
class FormulaChange:
    """``text`` is the current side's minus the baseline's; signs are of its value.

    ``here`` at the case's sizes, ``long`` for longer and longer sequences, ``large`` for all sizes
    growing. ``branch``: the text is of the branch that is taken at the case's sizes, and empty
    where only others differ.
    """

    text: str
    here: int
    long: int
    large: int
    branch: bool

    @property
    def verdict(self) -> str:
        """Worse where it is more here or will be for longer sequences."""
        signs = {self.here, self.long}
        sign = 1 if 1 in signs else -1 if -1 in signs else self.large
        return {1: REGRESSED, -1: IMPROVED, 0: OK}[sign]

    def explanation(self, unit: str) -> str:
        """``+ 2·B·N²·h additions``, and where signs differ, that they do."""
        text = f"{self.text} {unit}" if self.text else "another branch"
        if self.branch and self.text:
            text += " in the branch of this shape"
        if self.here == self.long == self.large == 0:
            return f"{text}: the same at this shape and for larger sizes"
        if self.here == self.long == 0:
            return f"{text}: the same at this shape, {_HERE[self.large]} for larger sizes"
        if self.here == self.long:
            return text
        return f"{text}: {_HERE[self.here]} at this shape, {_HERE[self.long]} for longer sequences"


_HERE = {1: "more", 0: "the same", -1: "fewer"}


def compare_formulas(case: str, baseline: Counted, current: Counted) -> list[CheckRecord]:
    """A record for every quantity that either side has a formula for."""
    names = dict.fromkeys((*baseline.formulas, *current.formulas))
    asked = all(side.formulas or side.no_formula for side in (baseline, current))
    return [_record(case, name, baseline, current) for name in names] if asked else []


def _record(case: str, name: str, baseline: Counted, current: Counted) -> CheckRecord:
    before, now = baseline.formulas.get(name), current.formulas.get(name)
    verdict, why = OK, ""
    if now is None:
        verdict, why = NOT_COMPARABLE, f"no closed form any more: {current.no_formula}"
    elif before is None:
        verdict, why = NEW, "the baseline has no closed form of it"
    elif before != now:
        was, is_ = baseline.metrics.get(name), current.metrics.get(name)
        here = None if was is None or is_ is None else (is_ > was) - (is_ < was)
        found = difference(before, now, current.sizes or baseline.sizes, here)
        if found is not None:
            verdict, why = found.verdict, found.explanation(UNITS.get(name, name))
    return CheckRecord(
        case=case, metric=f"formula:{name}", baseline=before, current=now, verdict=verdict, why=why
    )


def difference(
    before: str, now: str, sizes: Mapping[str, int], here: int | None = None
) -> FormulaChange | None:
    """How two formulas differ; None where they are the same in other words.

    ``here`` is the sign at the case's shape, where a run has counted it.
    """
    import sympy

    old, new = formula(before), formula(now)
    at = hints_for(_names(old) | _names(new), sizes)
    branch = any(side.has(sympy.Max, sympy.Min, sympy.Piecewise) for side in (old, new))
    # one side may hold for any size, the other where a size is 1, as it is here
    ones = {symbol(name): 1 for name in _names(old) ^ _names(new) if at[name] == 1}
    apart = min(
        (
            sympy.expand(chosen(b, at) - chosen(a, at) if branch else b - a)
            for a, b in ((old, new), (old.subs(ones), new.subs(ones)))
        ),
        key=lambda found: len(sympy.Add.make_args(found)) if found else 0,
    )
    if old == new or (apart == 0 and not branch):
        return None
    large = {n: size if symbol(n) in ones else size * _LONG for n, size in at.items()}
    return FormulaChange(
        spelled(apart) if apart != 0 else "",
        _signed(old, new, at) if here is None else here,
        _signed(old, new, {**at, "N": at.get("N", 1) * _LONG}),
        _signed(old, new, large),
        branch,
    )


def chosen(expression: Any, at: Mapping[str, int], *kinds: Any) -> Any:
    """An expression with the branch that is taken at these sizes, of all kinds of branches."""
    import sympy

    def branch(node: Any) -> Any:
        if isinstance(node, sympy.Piecewise):
            return next(value for value, condition in node.args if evaluate(condition, at))
        value = evaluate(node, at)
        return next(arg for arg in node.args if evaluate(arg, at) == value)

    kinds = kinds or (sympy.Min, sympy.Max, sympy.Piecewise)
    return expression.replace(lambda node: isinstance(node, kinds), branch)


def _names(expression: Any) -> set[str]:
    return {size.name for size in expression.free_symbols}


def _signed(old: Any, new: Any, sizes: Mapping[str, int]) -> int:
    value = evaluate(new, sizes) - evaluate(old, sizes)
    return int(value > 0) - int(value < 0)
