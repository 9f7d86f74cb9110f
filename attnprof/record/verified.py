"""The record of ``verify-formula``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from attnprof.record.base import Record, column


def _many(title: str, make: Any = list) -> Any:
    return field(default_factory=make, metadata={"title": title, "unit": "", "format": "text"})


@dataclass(frozen=True, kw_only=True)
class VerificationRecord(Record):
    """``verify-formula``: a formula somebody printed beside the one of this project.

    ``place`` is where it is printed. ``where`` says what its names stand for; ``up_to`` how far
    the two were compared: ``exact``, ``leading`` terms, or ``order`` of growth. ``verdict``:
    ``match`` or ``erratum``.
    ``difference`` is ours minus printed. ``values`` has both at a few sizes. ``domain`` and
    ``verified_at`` are those of our formula: where it holds and which runs gave the same numbers.
    """

    place: str = column("place", default="")
    of: str = column("of")
    scope: str | None = column("scope")
    phase: str = column("phase")
    causal: bool = column("causal")
    quantity: str = column("quantity")
    kind: str = column("kind")
    convention: str = column("convention")
    where: dict[str, str] = _many("where", dict)
    up_to: str = column("up to")
    printed: str = column("printed")
    ours: str | None = column("ours")
    verdict: str | None = column("verdict")
    difference: str | None = column("difference")
    why: str = column("why", default="")
    leading_printed: str | None = column("leading, printed")
    leading_ours: str | None = column("leading, ours")
    leading_agrees: bool | None = column("leading order agrees")
    values: list[dict[str, Any]] = _many("values")
    domain: list[str] = _many("domain")
    method: str | None = column("method")
    verified_at: list[dict[str, int]] = _many("verified at")
    notes: list[str] = _many("notes")
    skipped: str | None = column("skipped")
