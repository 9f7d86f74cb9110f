"""Which documents are replayed, and where each one's folder is."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from attnprof.errors import RequestError, closest

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Document:
    """A document by its number, with its folder in this room and its title."""

    number: str
    folder: str
    title: str

    @property
    def path(self) -> Path:
        """The folder."""
        return HERE / self.folder

    def part(self, module: str, name: str) -> Any:
        """What one of its modules calls ``name``; None where there is none of either."""
        place = f"attnprof.papers.{self.folder}.{module}"
        spec = find_spec(place)
        # a folder of data beside it, as tables/ is, has no origin
        return getattr(import_module(place), name, None) if spec and spec.origin else None

    def checks(self) -> dict[str, Any]:
        """How each claim is answered, by its id: ``CHECKS`` of all modules ``checks*``."""
        found: dict[str, Any] = {}
        for module in sorted(item.name for item in iter_modules([str(self.path)])):
            if module.startswith("checks"):
                found.update({check.claim: check for check in self.part(module, "CHECKS")})
        return found

    def rows(self, table: str) -> list[dict[str, str]]:
        """A published table as the document prints it: ``rows("table02_transition_points")``.

        Raises :class:`RequestError` naming the tables there are.
        """
        return _rows(self.path / "tables", table)


DOCUMENTS = {
    document.number: document
    for document in (
        Document("000", "better_attention", "You Need to Pay Better Attention"),
        Document("001", "neural_attention", "Neural Attention"),
        Document("002", "extractors", "Attention Is Not All You Need Anymore"),
        Document("003", "approximation", "Attention Approximation"),
        Document("004", "taylorshift", "TaylorShift"),
    )
}


def document(number: str) -> Document:
    """A document; :class:`RequestError` lists those there are."""
    if number not in DOCUMENTS:
        raise RequestError(f"document '{number}': {closest(number, list(DOCUMENTS))}")
    return DOCUMENTS[number]


@cache
def _read(path: Path) -> tuple[tuple[str, ...], ...]:
    with path.open(encoding="utf-8", newline="") as stream:
        return tuple(tuple(row) for row in csv.reader(stream))


def _rows(folder: Path, table: str) -> list[dict[str, str]]:
    path = folder / f"{table}.csv"
    if not path.is_file():
        names = sorted(item.stem for item in folder.glob("*.csv"))
        raise RequestError(f"table '{table}': {closest(table, names)}")
    head, *rows = _read(path)
    return [dict(zip(head, row, strict=True)) for row in rows]


@dataclass(frozen=True)
class Claim:
    """One checkable thing a document says, and where."""

    claim: str
    document: str
    place: str
    says: str


@cache
def claims() -> dict[str, Claim]:
    """All claims by id, in the documents' order."""
    head, *rows = _read(HERE / "claims.csv")
    assert head == ("claim", "document", "where", "says")
    return {row[0]: Claim(*row) for row in rows}
