"""The record of ``reproduce``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attnprof.record.base import Record, column


@dataclass(frozen=True, kw_only=True)
class ReproduceRecord(Record):
    """``reproduce``: one claim of a document, what is printed, what comes out here.

    ``published`` and ``ours`` are numbers, formulas as text, a bool for a statement, or lists and
    dicts of these. ``verdict``: ``match``, ``erratum``, ``not-reproducible``; ``error`` where no
    check answers the claim or its check could not run, with the reason in ``why``. ``basis``:
    ``computed``, ``measured``, ``reading``. ``committed`` is the verdict that ships with the
    package, which a changed verdict is told by.
    """

    claim: str = column("claim")
    document: str = column("document")
    place: str = column("place")
    says: str = column("says")
    published: Any = column("published")
    ours: Any = column("ours")
    verdict: str = column("verdict")
    basis: str | None = column("basis")
    why: str = column("why", default="")
    how: str = column("how", default="")
    committed: str | None = column("committed")
