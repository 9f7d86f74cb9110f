"""003's claimed orders and quoted numbers, beside counts and what can be made again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from attnprof.algebra.orders import fitted, order_value
from attnprof.closed_form.growth import LENGTHS, TOLERANCE, closed_form_growth
from attnprof.papers.approximation.checks_orders import (
    CLAIMS,
    claimed_order,
    leading,
    mechanism_id,
    subject,
)
from attnprof.papers.approximation.checks_program import (
    FAILED,
    FIGURE_Z,
    lengths_it_runs_at,
    seconds,
)
from attnprof.papers.approximation.program import CLASSES, DOCUMENT, TEST_TOKENS, derived
from attnprof.papers.regenerated import Cell, Table

TIME, MEMORY = "time: exponent of N", "memory: exponent of N"
OWN = "its class in the listing"
HERE = "on our machine (s)"


@cache
def exponents(mechanism: str) -> tuple[float, float, float]:
    """Exponents of N: claimed for the time, found in FLOPs and in peak memory."""
    flops, peak = closed_form_growth(subject(mechanism))
    order = claimed_order(mechanism)
    claim = fitted(LENGTHS, [order_value(order, n) for n in LENGTHS])
    assert flops.found_exponent is not None
    assert peak.found_exponent is not None
    return round(claim, 2), round(flops.found_exponent, 2), round(peak.found_exponent, 2)


def no_faster(claim: Any, found: Any) -> bool:
    """Whether what is found grows no faster than claimed."""
    return bool(found <= claim + TOLERANCE)


def complexities() -> Table:
    """The orders claimed in the text."""
    rows = [_complexity(row) for row in DOCUMENT.rows(CLAIMS)]
    notes = (
        (
            "ours: exponents of the closed forms of this project's mechanisms, fitted over 8,192 "
            "to 65,536 tokens, one head of 64; differs where it grows faster than claimed"
        ),
        f"{OWN}: power of N in its operations, derived by running it",
        "the document claims no orders for memory",
    )
    return Table("Orders of growth", rows, notes)


def _complexity(row: dict[str, str]) -> dict[str, Any]:
    mechanism = mechanism_id(row)
    claim, time, memory = exponents(mechanism)
    own = None
    if mechanism in CLASSES:
        own = Cell(claim, float(leading(derived(mechanism))["N"]), no_faster)
    return {
        "mechanism": mechanism, "family": row["family"], "claimed": row["time_claimed"],
        TIME: Cell(claim, time, no_faster), MEMORY: memory, OWN: own,
    }  # fmt: skip


def quoted_numbers() -> Table:
    """The numbers quoted of Figure Z and in the text."""
    rows = [
        {"model": row["model"], "quantity": row["quantity"], "value": _value(row),
         HERE: _seconds(row), "unit": row["unit"], "where": row["where"]}
        for row in DOCUMENT.rows(FIGURE_Z)
    ]  # fmt: skip
    notes = (
        f"{HERE}: measured, one sequence; the document's device is not named",
        "values without ours come from training and are not made again here",
    )
    return Table("Numbers of Figure Z", rows, notes)


def _value(row: Mapping[str, str]) -> Any:
    printed = float(row["value"])
    if printed != FAILED:
        return printed
    return Cell(printed, 1.0 if lengths_it_runs_at()[f"{TEST_TOKENS} tokens"] else FAILED)


def _seconds(row: Mapping[str, str]) -> float | None:
    return seconds()[row["model"]] if row["quantity"] == "practical_speed" else None


TABLES: dict[str, Callable[[], Table]] = {
    CLAIMS: complexities,
    FIGURE_Z: quoted_numbers,
}
