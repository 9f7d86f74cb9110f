"""Claims answered, one record each whatever happens to a check, beside the verdicts that ship."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnprof.errors import RequestError
from attnprof.papers.checks import READING, VERDICTS
from attnprof.papers.documents import DOCUMENTS, Claim, claims, document, reason
from attnprof.processes.progress import tell
from attnprof.record import Report, ReproduceRecord, write_whole

HEAD = ["claim", "verdict"]
FILE = "verdicts.csv"


def committed(number: str) -> dict[str, str]:
    """A document's verdicts by claim; empty where none were ever accepted."""
    path = document(number).path / FILE
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as stream:
        head, *rows = csv.reader(stream)
    if head != HEAD or any(len(row) != 2 for row in rows):
        raise RequestError(f"{path}: its columns must be claim,verdict; restore it or --accept")
    return dict(rows)


def accept(records: Iterable[ReproduceRecord]) -> list[str]:
    """Write the verdicts of these records over the committed ones; gives what was written.

    Claims that were not replayed keep theirs; an error is no verdict and is never accepted.
    """
    verdicts = {record.claim: record.verdict for record in records if record.verdict in VERDICTS}
    written = []
    for number, its in DOCUMENTS.items():
        new = {claim: verdict for claim, verdict in verdicts.items() if claim.startswith(number)}
        if new:
            whole, stream = {**committed(number), **new}, io.StringIO()
            rows = [(claim, whole[claim]) for claim in claims() if claim in whole]
            csv.writer(stream, lineterminator="\n").writerows([HEAD, *rows])
            write_whole(its.path / FILE, stream.getvalue(), known=True)
            written.append(str(its.path / FILE))
    return written


#: The verdict of a claim that nothing here could answer.
ERROR = "error"
NO_CHECK = "no check answers this claim"


def replay(
    ids: Iterable[str] | None = None,
    *,
    environment: Mapping[str, Any] | None = None,
) -> Report:
    """Answer claims by id, all where none are named.

    A claim without a check, and a check
    that breaks, is a record with verdict ``error`` and the reason.
    """
    asked = list(claims()) if ids is None else list(ids)
    records = []
    for done, claim in enumerate(asked):
        tell(f"replaying {claim}", done, len(asked))
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
        return replace(check.answer(), **its)
    except Exception as error:  # noqa: BLE001 - one check that breaks must not hide the others
        return ReproduceRecord(**its, verdict=ERROR, why=reason(error))


def only(report: Report, verdicts: Sequence[str]) -> Report:
    """The report with the records of these verdicts; its summary still counts all."""
    kept = [r for r in report.records if getattr(r, "verdict", None) in verdicts]
    return replace(report, records=kept)


def answer(verdicts: Sequence[str]) -> str:
    """How claims came out, in a sentence."""
    words = {"match": ("matches", "match"), "erratum": ("is an erratum", "are errata"),
             "not-reproducible": ("cannot be reproduced",) * 2, ERROR: ("has no verdict",
             "have no verdict")}  # fmt: skip
    counts = {verdict: verdicts.count(verdict) for verdict in words}
    phrases = (f"{n} {words[verdict][n > 1]}" for verdict, n in counts.items() if n)
    return f"{len(verdicts)} claim{'s' * (len(verdicts) > 1)}: {', '.join(phrases)}"


def summary_of(records: Sequence[ReproduceRecord]) -> dict[str, Any]:
    """Counts by document, and where the verdicts are not the committed ones."""
    counts: dict[str, Any] = {}
    for number, its in DOCUMENTS.items():
        of_document = [record for record in records if record.document == number]
        verdicts = [record.verdict for record in of_document]
        if of_document:
            counts[number] = {
                "title": its.title,
                "claims": len(of_document),
                **{verdict: verdicts.count(verdict) for verdict in (*VERDICTS, ERROR)},
                "readings": sum(record.basis == READING for record in of_document),
            }
    return {
        "answer": answer([record.verdict for record in records]),
        "documents": counts,
        "changed": [r.claim for r in records if r.committed and r.verdict != r.committed],
        "not_committed": [r.claim for r in records if not r.committed],
        "errors": [r.claim for r in records if r.verdict == ERROR],
    }
