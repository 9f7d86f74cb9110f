"""Closed forms of two sides: what one has more, and where that is more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnprof.algebra.expressions import symbol
from attnprof.gate.cases import Counted
from attnprof.gate.formulas import formula, spelled
from attnprof.gate.verdicts import IMPROVED, NEW, NOT_COMPARABLE, OK, REGRESSED
from attnprof.record import CheckRecord
from attnprof.trace.symbols import hints_for

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
class Difference:
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
        if 1 in (self.here, self.long):
            return REGRESSED
        if -1 in (self.here, self.long):
            return IMPROVED
        return {1: REGRESSED, -1: IMPROVED}.get(self.large, OK)

    def why(self, unit: str) -> str:
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
        verdict = NOT_COMPARABLE
        why = f"no closed form any more: {current.no_formula}"
    elif before is None:
        verdict, why = NEW, "the baseline has no closed form of it"
    elif before != now:
        found = difference(before, now, _sizes(baseline, current), _sign(name, baseline, current))
        if found is not None:
            verdict, why = found.verdict, found.why(UNITS.get(name, name))
    return CheckRecord(
        case=case, metric=f"formula:{name}", baseline=before, current=now, verdict=verdict, why=why
    )


def _sizes(baseline: Counted, current: Counted) -> Mapping[str, int]:
    return current.sizes or baseline.sizes


def _sign(name: str, baseline: Counted, current: Counted) -> int | None:
    """Of the exact counts' difference at the case's shape."""
    before, now = baseline.metrics.get(name), current.metrics.get(name)
    return None if before is None or now is None else (now > before) - (now < before)


def difference(
    before: str, now: str, sizes: Mapping[str, int], here: int | None = None
) -> Difference | None:
    """How two formulas differ; None where they are the same in other words.

    ``here`` is the sign at the case's shape, where a run has counted it.
    """
    import sympy

    from attnprof.trace.explaining import chosen

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
    return Difference(
        spelled(apart) if apart != 0 else "",
        _signed(old, new, at) if here is None else here,
        _signed(old, new, {**at, "N": at.get("N", 1) * _LONG}),
        _signed(
            old, new, {**at, **{n: size * _LONG for n, size in at.items() if symbol(n) not in ones}}
        ),
        branch,
    )


def _names(expression: Any) -> set[str]:
    return {size.name for size in expression.free_symbols}


def _signed(old: Any, new: Any, sizes: Mapping[str, int]) -> int:
    from attnprof.trace.evaluating import evaluate

    value = evaluate(new, sizes) - evaluate(old, sizes)
    return int(value > 0) - int(value < 0)
