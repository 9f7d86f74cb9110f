"""The record of ``derive``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from attnprof.record.base import Record, column


def _listed(title: str) -> Any:
    return field(default_factory=list, metadata={"title": title, "unit": "", "format": "text"})


@dataclass(frozen=True, kw_only=True)
class DeriveRecord(Record):
    """``derive``: one quantity of one phase as an expression in the request's symbols.

    ``expression`` is null where only the number at the asked shape could be counted (``method``
    is then ``counted``). ``domain`` lists the conditions under which it holds, ``verified_at`` the
    shapes at which a run gave the same number. What ``uncounted`` names is left out of the
    counts: they are then lower bounds, and ``bound`` says ``at least``. ``value`` is exact.
    """

    name: str = column("of")
    phase: str = column("phase")
    quantity: str = column("quantity")
    expression: str | None = column("expression")
    latex: str | None = column("LaTeX")
    bound: str = column("bound", default="exact")
    domain: list[str] = _listed("domain")
    method: str = column("method")
    verified_at: list[dict[str, int]] = _listed("verified at")
    uncounted: list[str] = _listed("uncounted")
    value: int | float | None = column("value", fmt="count")
