"""What was asked for by name (document, claim, table, figure), or the closest there is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attnprof.errors import CannotRunError, RequestError, closest
from attnprof.papers.documents import DOCUMENTS, Document, claims, document
from attnprof.papers.regenerated import Figure, Table


def find_documents(names: Iterable[str]) -> list[Document]:
    """Documents by number or folder name, in their own order; all where none is named.

    Raises :class:`RequestError` with the closest names.
    """
    folders = {its.folder: number for number, its in DOCUMENTS.items()}
    asked = [_document(name, folders) for name in names]
    return [DOCUMENTS[number] for number in DOCUMENTS if number in asked or not asked]


def _document(name: str, folders: Mapping[str, str]) -> str:
    number = folders.get(name.casefold(), name.zfill(3))
    if number in DOCUMENTS:
        return number
    possible = [*DOCUMENTS, *folders]
    raise RequestError(f"there is no document '{name}': {closest(name, possible)}")


def find_claims(names: Iterable[str]) -> list[str]:
    """Claims by id; :class:`RequestError` with the closest ids for one that is not there."""
    known, found = claims(), []
    for name in names:
        near = {claim.casefold(): claim for claim in known}.get(name.casefold())
        if near is None:
            raise RequestError(f"there is no claim '{name}': {_near(name, list(known))}")
        found.append(near)
    return list(dict.fromkeys(found))


def _near(name: str, known: list[str]) -> str:
    """The closest ids, of the same document where it is named."""
    own = [claim for claim in known if claim[:4] == name[:4]] or known
    told = closest(name, own)
    return told if len(told) < 200 else "type attnprof reproduce --all to see all ids"


def find_table(number: str, name: str) -> tuple[str, Callable[[], Table]]:
    """A table's own key and how it is made again; :class:`RequestError` lists those there are."""
    return _part(document(number), "tables", name)


def find_figure(number: str, name: str) -> tuple[str, Figure]:
    """A figure's own key and the figure; :class:`RequestError` lists those there are.

    Raises :class:`CannotRunError` with the reason for one that cannot be made again.
    """
    why = not_made(number).get(name.lstrip("0").upper())
    if why is not None:
        raise CannotRunError(f"{number}: figure {name} is not made again: {why}")
    return _part(document(number), "figures", name)


def not_made(number: str) -> dict[str, str]:
    """A document's figures that cannot be made again, with the reason."""
    found: dict[str, str] = document(number).part("figures", "NOT_MADE") or {}
    return found


def _part(its: Document, kind: str, name: str) -> tuple[str, Any]:
    there: Mapping[str, Any] = its.part(kind, kind.upper()) or {}
    by_key = {key.casefold(): key for key in there}
    key = by_key.get(name.casefold(), by_key.get(name.casefold().lstrip("0")))
    if key is None:
        one, known = kind.removesuffix("s"), ", ".join(there) or "none yet"
        raise RequestError(
            f"{its.number} ({its.title}) has no {one} '{name}' here; its {kind}: {known}"
        )
    return key, there[key]


def claims_of_table(number: str, name: str) -> list[str]:
    """The claims that are about a table, as their checks say."""
    checks = document(number).checks()
    return [claim for claim in claims() if claim in checks and name in checks[claim].tables]


def claims_of_figure(number: str, name: str) -> list[str]:
    """The claims whose place names a figure."""
    words = re.compile(rf"\bFig(ure)? {re.escape(name)}\b", re.IGNORECASE)
    return [
        claim
        for claim, its in claims().items()
        if its.document == number and words.search(its.place)
    ]
