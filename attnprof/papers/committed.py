"""The verdicts that ship with the package: what a replay is compared with."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from attnprof.errors import RequestError
from attnprof.papers.checks import VERDICTS
from attnprof.papers.documents import DOCUMENTS, document
from attnprof.record import ReproduceRecord, write_whole

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
    found = {record.claim: record.verdict for record in records if record.verdict in VERDICTS}
    written = []
    for number, its in DOCUMENTS.items():
        new = {claim: verdict for claim, verdict in found.items() if claim.startswith(number)}
        if new:
            write_whole(its.path / FILE, _text({**committed(number), **new}), known=True)
            written.append(str(its.path / FILE))
    return written


def _text(verdicts: dict[str, str]) -> str:
    from attnprof.papers.documents import claims

    order = {claim: place for place, claim in enumerate(claims())}
    stream = io.StringIO()
    rows = sorted(
        (row for row in verdicts.items() if row[0] in order), key=lambda row: order[row[0]]
    )
    csv.writer(stream, lineterminator="\n").writerows([HEAD, *rows])
    return stream.getvalue()
