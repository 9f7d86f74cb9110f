"""All or some claims answered, one record each, whatever happens to a check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnprof.errors import AttnprofError
from attnprof.papers.checks import READING, VERDICTS, Answer
from attnprof.papers.committed import committed
from attnprof.papers.documents import DOCUMENTS, Claim, claims, document
from attnprof.record import Report, ReproduceRecord

#: The verdict of a claim that nothing here could answer.
ERROR = "error"
NO_CHECK = "no check answers this claim"


def replay(
    ids: Iterable[str] | None = None,
    *,
    environment: Mapping[str, Any] | None = None,
    tell: Callable[[int, str], None] | None = None,
) -> Report:
    """Answer claims by id, all where none are named.

    ``tell`` hears how many are done and which one is next. A claim without a check, and a check
    that breaks, is a record with verdict ``error`` and the reason.
    """
    asked = list(claims()) if ids is None else list(ids)
    records = []
    for done, claim in enumerate(asked):
        if tell is not None:
            tell(done, claim)
        records.append(answered(claims()[claim]))
    return Report("reproduce", records, summary_of(records), environment or {})


def answered(claim: Claim) -> ReproduceRecord:
    """One claim's record."""
    its: dict[str, Any] = {
        "claim": claim.claim, "document": claim.document, "place": claim.place, "says": claim.says,
        "committed": committed(claim.document).get(claim.claim),
    }  # fmt: skip
    try:
        check = document(claim.document).checks().get(claim.claim)
        if check is None:
            return ReproduceRecord(**its, verdict=ERROR, why=NO_CHECK)
        found: Answer = check.answer()
    except AttnprofError as error:
        return ReproduceRecord(**its, verdict=ERROR, why=str(error))
    except Exception as error:  # noqa: BLE001 - one check that breaks must not hide the others
        line = str(error).split("\n", 1)[0]
        return ReproduceRecord(**its, verdict=ERROR, why=f"{type(error).__name__}: {line}")
    return ReproduceRecord(
        **its, published=found.published, ours=found.ours, verdict=found.verdict,
        basis=found.basis, why=found.why, how=found.how,
    )  # fmt: skip


def only(report: Report, verdicts: Sequence[str]) -> Report:
    """The report with the records of these verdicts; its summary still counts all."""
    kept = [r for r in report.records if getattr(r, "verdict", None) in verdicts]
    return replace(report, records=kept)


def summary_of(records: Sequence[ReproduceRecord]) -> dict[str, Any]:
    """Counts by document, and where the verdicts are not the committed ones."""
    numbers = [n for n in DOCUMENTS if any(record.document == n for record in records)]
    return {
        "documents": {
            number: _counts(number, [r for r in records if r.document == number])
            for number in numbers
        },
        "changed": [r.claim for r in records if r.committed and r.verdict != r.committed],
        "not_committed": [r.claim for r in records if not r.committed],
        "errors": [r.claim for r in records if r.verdict == ERROR],
    }


def _counts(number: str, records: Sequence[ReproduceRecord]) -> dict[str, Any]:
    verdicts = [record.verdict for record in records]
    return {
        "title": DOCUMENTS[number].title,
        "claims": len(records),
        **{verdict: verdicts.count(verdict) for verdict in (*VERDICTS, ERROR)},
        "readings": sum(record.basis == READING for record in records),
    }
