"""What ``attnprof reproduce`` is asked: documents, claims, one table or figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnprof.cli.sizes import parse_names
from attnprof.errors import RequestError
from attnprof.papers import finding
from attnprof.papers.documents import claims


@dataclass(frozen=True)
class Asked:
    """What to replay: documents and claims; at most one table or figure of one document.

    ``by_name``: claims, a table or a figure were named; otherwise whole documents are replayed.
    """

    documents: list[str]
    claims: list[str]
    table: str | None = None
    figure: str | None = None
    by_name: bool = True


def asked_for(
    names: Sequence[str], claim: str | None, table: str | None, figure: str | None
) -> Asked:
    """The request; :class:`RequestError` with the closest names for what is not there."""
    if sum(item is not None for item in (claim, table, figure)) > 1:
        raise RequestError("ask for one of --claim, --table and --figure")
    numbers = [its.number for its in finding.find_documents(names)]
    if claim is not None:
        return _claims(numbers, finding.find_claims(parse_names(claim, "--claim")))
    if table is not None:
        number = _only(numbers, f"--table {table}")
        key, _ = finding.find_table(number, table)
        return Asked([number], finding.claims_of_table(number, key), table=key)
    if figure is not None:
        number = _only(numbers, f"--figure {figure}")
        key, _ = finding.find_figure(number, figure)
        return Asked([number], finding.claims_of_figure(number, key), figure=key)
    ids = [name for name, its in claims().items() if its.document in numbers]
    return Asked(numbers, ids, by_name=False)


def _claims(numbers: list[str], ids: list[str]) -> Asked:
    theirs = [claims()[name].document for name in ids]
    for name, number in zip(ids, theirs, strict=True):
        if number not in numbers:
            raise RequestError(f"{name} is a claim of {number}: leave {' '.join(numbers)} out")
    return Asked(sorted(set(theirs)), ids)


def _only(numbers: list[str], flag: str) -> str:
    if len(numbers) != 1:
        raise RequestError(f"{flag} of which document? type: attnprof reproduce 004 {flag}")
    return numbers[0]


def refuse_contradictions(asked: Asked, plot: Path | None, reports: Path | None) -> None:
    """Flags that do not go together; :class:`RequestError` says what to type."""
    if plot is not None and asked.figure is None:
        raise RequestError(
            f"--plot draws one figure: type attnprof reproduce 004 --figure 1 --plot {plot}"
        )
    if reports is not None and asked.by_name:
        raise RequestError("--reports writes whole documents: leave --claim, --table, --figure out")
