"""000: what Remarks 1 to 3 save, in parameters and matrix products."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Any

import sympy

from attnprof.papers.better_attention.formulas import (
    implied_seq_len,
    products,
    symbols,
    weights,
)
from attnprof.papers.better_attention.values import EXPERIMENTS, value
from attnprof.papers.checks import Check, same_formula

HOW = "parameters without biases and products a head of Definitions 1 to 4, one less the other"


def saved(mechanism: str) -> dict[str, Any]:
    """What a mechanism has less than standard attention."""
    return {
        "parameters": str(weights("standard") - weights(mechanism)),
        "products": str(products("standard") - products(mechanism)),
    }


def _super() -> dict[str, Any]:
    """Whether d_m² is reached for all l ≤ d_m: no coefficient in the slack d_m - l is negative."""
    length, width, _ = symbols()
    slack = sympy.Symbol("slack", nonnegative=True)
    beyond = sympy.expand(weights("standard") - weights("super") - width**2)
    written = sympy.Poly(beyond.subs(width, length + slack), length, slack)
    return {**saved("super"), "d_m^2 or more while l <= d_m": bool(min(written.coeffs()) >= 0)}


def _agree(published: Any, ours: Any) -> bool:
    """Formulas as formulas, the statement as it is."""
    name = "d_m^2 or more while l <= d_m"
    parts = [{k: v for k, v in one.items() if k != name} for one in (published, ours)]
    return same_formula(*parts) and bool(published[name] == ours[name])


def _table_6() -> tuple[int, int]:
    """Parameters of standard and of Super Attention."""
    full, own = (value("6", "params", name, h="8") for name in ("standard", "super"))
    return int(full), int(own)


def _share_saved() -> str:
    full, own = _table_6()
    return str(1 - Fraction(own, full))


def _share_why(_: Any, ours: Any) -> str:
    full, own = _table_6()
    width = EXPERIMENTS["CIFAR100"].d_model
    return (
        f"{full:,} - {own:,} = {full - own:,} is {float(Fraction(ours)):.2%} of {full:,}; a "
        f"quarter is {full // 4:,}. The layer mixes {implied_seq_len(own, width)} tokens, more "
        f"than d_m = {width}, so Remark 3 does not hold for it"
    )


CHECKS = [
    Check(
        "000-REM1",
        {"parameters": "d_m**2", "products": "h"},
        partial(saved, "optimised"),
        how=HOW,
        agree=same_formula,
    ),
    Check(
        "000-REM2",
        {"parameters": "2*d_m**2", "products": "2*h"},
        partial(saved, "efficient"),
        how=HOW,
        agree=same_formula,
    ),
    Check(
        "000-REM3",
        {
            "parameters": "2*d_m**2 - l**2",
            "products": "h",
            "d_m^2 or more while l <= d_m": True,
        },
        _super,
        how=f"{HOW}; the rest over d_m^2 has no negative term in l and d_m - l",
        agree=_agree,
    ),
    Check(
        "000-REM3-CIFAR",
        "1/4",
        _share_saved,
        how="Table 6: one less Super's parameters over those of standard attention",
        agree=same_formula,
        why=_share_why,
        tables=("6",),
    ),
]
