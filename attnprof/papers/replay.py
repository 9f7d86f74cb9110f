"""Answer a document's claims, a record each, and compare the verdicts with the committed ones.

Errata have a severity, so that a reader sees the important ones first: the ratio of both numbers,
or of both formulas' values at a point; a false statement counts as a factor of 2. Entry point:
:func:`replay`.
"""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnprof.errors import RequestError
from attnprof.papers.checks import ERRATUM, READING, VERDICTS, formula
from attnprof.papers.documents import DOCUMENTS, Claim, claims, document, reason
from attnprof.processes.progress import tell
from attnprof.record import Report, ReproduceRecord, write_whole

HEAD = ["claim", "verdict"]
FILE = "verdicts.csv"
#: The verdict of a claim whose check is missing or breaks.
ERROR = "error"


def committed(number: str) -> dict[str, str]:
    """Return a document's verdicts by claim; empty where none were ever accepted."""
    path = document(number).path / FILE
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as stream:
        head, *rows = csv.reader(stream)
    if head != HEAD or any(len(row) != 2 for row in rows):
        raise RequestError(f"{path}: its columns must be claim,verdict; restore it or --accept")
    return dict(rows)


def accept(records: Iterable[ReproduceRecord]) -> list[str]:
    """Write the verdicts of these records over the committed ones; return the paths of files.

    Claims that were not replayed keep theirs; an error is no verdict and is never accepted.
    """
    verdicts = {record.claim: record.verdict for record in records if record.verdict in VERDICTS}
    written = []
    for number, source in DOCUMENTS.items():
        new = {claim: verdict for claim, verdict in verdicts.items() if claim.startswith(number)}
        if new:
            whole, stream = {**committed(number), **new}, io.StringIO()
            rows = [(claim, whole[claim]) for claim in claims() if claim in whole]
            csv.writer(stream, lineterminator="\n").writerows([HEAD, *rows])
            write_whole(source.path / FILE, stream.getvalue(), owned=True)
            written.append(str(source.path / FILE))
    return written


def replay(
    ids: Iterable[str] | None = None, *, environment: Mapping[str, Any] | None = None
) -> Report:
    """Return the report on claims by id, on all by default.

    A claim whose check is missing or breaks has the verdict ``error`` and the reason.
    """
    claim_ids = list(claims()) if ids is None else list(ids)
    records = []
    for done, claim in enumerate(claim_ids):
        tell(f"replaying {claim}", done, len(claim_ids))
        records.append(answered(claims()[claim]))
    return Report("reproduce", records, summary_of(records), environment or {})


def answered(claim: Claim) -> ReproduceRecord:
    """Return one claim's record."""
    about: dict[str, Any] = {
        "claim": claim.claim, "document": claim.document, "place": claim.place, "says": claim.says,
        "committed": committed(claim.document).get(claim.claim),
    }  # fmt: skip
    try:
        check = document(claim.document).checks().get(claim.claim)
        if check is None:
            return ReproduceRecord(**about, verdict=ERROR, why="no check answers this claim")
        return replace(check.answer(), **about)
    except Exception as error:  # noqa: BLE001 - a broken check must not hide the others
        return ReproduceRecord(**about, verdict=ERROR, why=reason(error))


def only(report: Report, verdicts: Sequence[str]) -> Report:
    """Return the report with the records of these verdicts; its summary still counts all."""
    kept = [r for r in report.records if getattr(r, "verdict", None) in verdicts]
    return replace(report, records=kept)


def answer(verdicts: Sequence[str]) -> str:
    """Return the sentence on the number of claims with each verdict."""
    words = {"match": ("matches", "match"), "erratum": ("is an erratum", "are errata"),
             "not-reproducible": ("cannot be reproduced",) * 2, ERROR: ("has no verdict",
             "have no verdict")}  # fmt: skip
    counts = {verdict: verdicts.count(verdict) for verdict in words}
    phrases = (f"{n} {words[verdict][n > 1]}" for verdict, n in counts.items() if n)
    return f"{len(verdicts)} claim{'s' * (len(verdicts) > 1)}: {', '.join(phrases)}"


def summary_of(records: Sequence[ReproduceRecord]) -> dict[str, Any]:
    """Return counts by document, and the claims whose verdicts differ from the committed ones."""
    counts: dict[str, Any] = {}
    for number, source in DOCUMENTS.items():
        of_document = [record for record in records if record.document == number]
        verdicts = [record.verdict for record in of_document]
        if of_document:
            counts[number] = {
                "title": source.title,
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


# -- severity ---------------------------------------------------------------------------
#: The distance of a statement that does not hold, of another word, and of another sign.
STATEMENT = math.log(2)
#: Each severity with the least ratio of both values.
SEVERITIES = {"major": 1.1, "moderate": 1.01, "minor": 0.0}
#: The most errata of a document that are shown before all other claims.
MOST = 5


def distance(printed: Any, ours: Any) -> float:
    """Return ``|ln(ours / printed)|``, the largest of all pairs of entries; 0 for equal values.

    >>> round(distance({"a": 100, "b": 5}, {"a": 110, "b": 5}), 4)
    0.0953
    >>> distance("2*N*d", "4*N*d") == distance(True, False)
    True
    """
    if isinstance(printed, Mapping) and isinstance(ours, Mapping):
        names = {*printed, *ours}
        return max((distance(printed.get(name), ours.get(name)) for name in names), default=0.0)
    if isinstance(printed, list | tuple) and isinstance(ours, list | tuple):
        if len(printed) == len(ours):
            return max(map(distance, printed, ours), default=0.0)
        return STATEMENT
    if printed == ours:
        return 0.0
    a, b = _number(printed, ours), _number(ours, printed)
    return abs(math.log(b / a)) if a and b and a * b > 0 else STATEMENT


def _number(value: Any, other: Any) -> float | None:
    """Return a number, or a formula's value where its n-th name is 2**(5 + n); else None."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        both = formula(value).free_symbols | formula(other).free_symbols
        point = {name: 2 ** (5 + n) for n, name in enumerate(sorted(both, key=str), start=1)}
        return float(formula(value).subs(point))
    except (ArithmeticError, AttributeError, TypeError, ValueError):  # no formula
        return None


def severity(record: ReproduceRecord) -> str:
    """Return an erratum's severity, a key of ``SEVERITIES``; "" for another verdict."""
    if record.verdict != ERRATUM:
        return ""
    ratio = math.exp(distance(record.published, record.ours))
    return next(name for name, least in SEVERITIES.items() if ratio >= least)


def surprises(records: Sequence[ReproduceRecord]) -> list[ReproduceRecord]:
    """Return the errata with the largest distances, ``MOST`` at most; equal ones in order."""
    errata = [record for record in records if record.verdict == ERRATUM]
    return sorted(errata, key=lambda r: -distance(r.published, r.ours))[:MOST]
