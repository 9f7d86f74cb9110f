"""The replayed documents: their folders, tables, figures and measurements by name.

Measurements for checks and figures are shipped as files, and made again by ``--measure``. Entry
points: :func:`document`, :func:`claims`, :func:`measured`.
"""

import csv
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from attnprof.errors import AttnprofError, CannotRunError, RequestError, closest
from attnprof.record import write_whole

if TYPE_CHECKING:
    from attnprof.papers.checks import Check
    from attnprof.papers.regenerated import Values

HERE = Path(__file__).parent
#: Documents measured in this run: a function that reports progress, and results so far.
_ANEW: dict[str, tuple[Callable[[str], None], dict[str, Any]]] = {}


@dataclass(frozen=True)
class Document:
    """A document by its number, with its folder in this room and its title."""

    number: str
    folder: str
    title: str

    @property
    def path(self) -> Path:
        """The path of the folder."""
        return HERE / self.folder

    def part(self, name: str) -> Any:
        """Return the document's ``TABLES``, ``FIGURES`` or ``MEASUREMENTS``, {} without any."""
        module = "measurements" if name == "MEASUREMENTS" else "figures"
        place = f"attnprof.papers.{self.folder}.{module}"
        return getattr(import_module(place), name) if find_spec(place) else {}

    @cache  # noqa: B019 - there are few documents
    def checks(self) -> "dict[str, Check]":
        """Return each claim's check by its id, from ``claims.toml`` and the modules ``checks*``."""
        from attnprof.papers.checks import load_checks

        names = sorted(item.name for item in iter_modules([str(self.path)]))
        folder = f"attnprof.papers.{self.folder}"
        modules = [import_module(f"{folder}.{n}") for n in names if n.startswith("checks")]
        return load_checks(self.path / "claims.toml", modules)

    @cache  # noqa: B019 - there are few documents
    def texts(self, file: str) -> dict[str, Any]:
        """Return the content of a TOML file in the folder."""
        return tomllib.loads((self.path / file).read_text(encoding="utf-8"))

    def rows(self, table: str) -> list[dict[str, str]]:
        """Return a table's printed rows ("table02_transition_points"); RequestError lists names."""
        path = self.path / "tables" / f"{table}.csv"
        if not path.is_file():
            names = sorted(item.stem for item in path.parent.glob("*.csv"))
            raise RequestError(f"table '{table}': {closest(table, names)}")
        head, *rows = _read(path)
        return [dict(zip(head, row, strict=True)) for row in rows]


DOCUMENTS = {
    document.number: document
    for document in (
        Document("000", "better_attention", "You Need to Pay Better Attention"),
        Document("001", "neural_attention", "Neural Attention"),
        Document("002", "extractors", "Attention Is Not All You Need Anymore"),
        Document("003", "approximation", "Attention Approximation"),
        Document("004", "taylorshift", "TaylorShift"),
        Document("recent", "recent", "Papers of 2024 and 2025"),
    )
}


def document(number: str) -> Document:
    """Return a document; :class:`RequestError` lists all documents."""
    if number not in DOCUMENTS:
        raise RequestError(f"document '{number}': {closest(number, list(DOCUMENTS))}")
    return DOCUMENTS[number]


@cache
def _read(path: Path) -> tuple[tuple[str, ...], ...]:
    with path.open(encoding="utf-8", newline="") as stream:
        return tuple(tuple(row) for row in csv.reader(stream))


def reason(error: Exception) -> str:
    """Return an error in one line: its message, with its type unless it is ours."""
    if isinstance(error, AttnprofError):
        return str(error)
    line = str(error).split("\n", 1)[0]
    return f"{type(error).__name__}: {line}"


def number(text: str) -> float:
    """Return a printed number; whole numbers stay whole."""
    return int(text) if text.lstrip("-").isdigit() else float(text)


@dataclass(frozen=True)
class Claim:
    """A checkable statement of a document, with its place."""

    claim: str
    document: str
    place: str
    says: str


@cache
def claims() -> dict[str, Claim]:
    """Return all claims by id, in the documents' order."""
    return {row[0]: Claim(*row) for row in _read(HERE / "claims.csv")[1:]}


def find_documents(names: Iterable[str]) -> list[Document]:
    """Return documents by number or folder, all without a name; RequestError if unknown."""
    folders = {document.folder: number for number, document in DOCUMENTS.items()}
    numbers = {name: folders.get(name.casefold(), name.zfill(3)) for name in names}
    for name, number in numbers.items():
        if number not in DOCUMENTS:
            possible = [*DOCUMENTS, *folders]
            raise RequestError(f"there is no document '{name}': {closest(name, possible)}")
    return [DOCUMENTS[number] for number in DOCUMENTS if number in numbers.values() or not numbers]


def find_claims(names: Iterable[str]) -> list[str]:
    """Return claims by id; :class:`RequestError` with the closest ids for an unknown one."""
    ids, chosen = {claim.casefold(): claim for claim in claims()}, []
    for name in names:
        if name.casefold() not in ids:
            of_document = [claim for claim in claims() if claim[:4] == name[:4]]
            hint = closest(name, of_document or list(claims()))
            hint = hint if len(hint) < 200 else "type attnprof reproduce --all to see all ids"
            raise RequestError(f"there is no claim '{name}': {hint}")
        chosen.append(ids[name.casefold()])
    return list(dict.fromkeys(chosen))


def find_part(number: str, kind: str, name: str) -> "tuple[str, Callable[[], Values]]":
    """Return the key of a ``table`` or ``figure``, and a function that recomputes it.

    Raises :class:`RequestError` with the possible names for an unknown one, and
    :class:`CannotRunError` with the reason for a figure that cannot be made again.
    """
    parts: Mapping[str, Any] = document(number).part(f"{kind}s".upper())
    for key in parts:
        if key.casefold() in (name.casefold(), name.casefold().lstrip("0")):
            return key, parts[key]
    if kind == "figure" and (why := not_made(number).get(name.lstrip("0").upper())):
        raise CannotRunError(f"{number}: figure {name} is not made again: {why}")
    raise RequestError(
        f"{number} ({document(number).title}) has no {kind} '{name}' here; its {kind}s: "
        f"{', '.join(parts) or 'none yet'}"
    )


def not_made(number: str) -> dict[str, str]:
    """Return a document's figures that cannot be made again, with the reason (``not_made.csv``)."""
    path = document(number).path / "not_made.csv"
    return {row[0]: row[1] for row in _read(path)[1:]} if path.is_file() else {}


#: A table or figure in a claim's place: ``T6 vs Eq 7``, ``Fig 3``.
_PLACES = {"table": r"(?:\bT|[Tt]able ?)0?{}(?!\d)", "figure": r"(?i:\bFig(ure)? {}\b)"}


def claims_of(number: str, kind: str, name: str) -> list[str]:
    """Return the claims about a ``table`` or ``figure``, as their place or their check says."""
    words, checks = re.compile(_PLACES[kind].format(re.escape(name))), document(number).checks()
    listed = [x for x, check in checks.items() if kind == "table" and name in check.tables]
    return [
        claim.claim for claim in claims().values()
        if claim.document == number and (words.search(claim.place) or claim.claim in listed)
    ]  # fmt: skip


def measured(number: str, name: str) -> Any:
    """Return a measurement's value: as shipped, or of this run inside :func:`fresh`.

    The file ``measured/<name>.json`` holds ``environment`` and ``value``. Raises
    :class:`CannotRunError` if there is no such file.
    """
    if number in _ANEW:
        measure = document(number).part("MEASUREMENTS").get(name)
        tell, values = _ANEW[number]
        if measure and name not in values:
            tell(f"measuring {number}: {name}")
            values[name] = json.loads(json.dumps(measure()))
        if measure:
            return values[name]
    path = document(number).path / "measured" / f"{name}.json"
    if not path.is_file():
        raise CannotRunError(
            f"{number}: '{name}' was never measured; type: attnprof reproduce {number} --measure"
        )
    return json.loads(path.read_text(encoding="utf-8"))["value"]


@contextmanager
def fresh(number: str, tell: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Make each measurement of a document once inside, at the first call of :func:`measured`.

    ``tell`` is called with the measurement's name first. Yields the values so far, by name.
    """
    _ANEW[number] = tell, {}
    try:
        yield _ANEW[number][1]
    finally:
        del _ANEW[number]


def ship(number: str, values: Mapping[str, Any], environment: Mapping[str, Any]) -> list[str]:
    """Write measurements over the shipped ones, with their environment; return the paths."""
    folder = document(number).path / "measured"
    folder.mkdir(exist_ok=True)
    written = []
    for name, value in values.items():
        whole = {"environment": environment, "value": value}
        path = folder / f"{name}.json"
        write_whole(path, json.dumps(whole, indent=1, allow_nan=False) + "\n", owned=True)
        written.append(str(path))
    return written
