"""Recompute a document's tables and figures: printed values with ours, in plain values for JSON.

Entry point: :func:`regenerate`.
"""

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from types import MappingProxyType
from typing import Any

from attnprof.papers.checks import Agree, agreement, exactly
from attnprof.papers.documents import document, not_made, number, reason

#: A statement by its name in ``figures.toml``: whether ours agrees, and values for its gaps.
Statement = tuple[str, bool, Mapping[str, Any]]
Row = Mapping[str, str]
#: How a printed text is shown: as it is, or as a number, whole numbers whole or not.
_KINDS: dict[str, Callable[[str], Any]] = {
    "text": str, "float": float, "int": int, "number": number,
}  # fmt: skip
#: What a figure is made of: rows, the document's statements on it, and facts.
Computed = tuple[Sequence[Mapping[str, Any]], Iterable[Statement], Mapping[str, Any]]


@dataclass(frozen=True)
class Cell:
    """A value of a table, as printed and as recomputed (None if it is not).

    ``bound``: ours is a bound on the printed value ("at least"), not the value itself.
    """

    printed: Any
    ours: Any
    agree: Agree = exactly
    bound: str = ""

    @property
    def differs(self) -> bool:
        """Whether the printed value and ours disagree."""
        return self.ours is not None and not self.agree(self.printed, self.ours)


@dataclass(frozen=True)
class Table:
    """A document's table: plain values (row labels, inputs) and :class:`Cell` in named columns."""

    title: str
    rows: Sequence[Mapping[str, Any]]
    notes: Sequence[str] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns: those of the first row."""
        return tuple(self.rows[0])


@dataclass(frozen=True)
class Described:
    """A statement of the document about its figure, and whether our data agrees."""

    what: str
    printed: str
    ours: str
    agrees: bool


@cache
def _texts(number: str, file: str = "figures.toml") -> dict[str, Any]:
    return tomllib.loads((document(number).path / file).read_text(encoding="utf-8"))


def tables_of(
    number: str,
    ours: Mapping[str, Mapping[str, Callable[[Row], Any]]],
    rows: Mapping[str, Callable[[], Sequence[Mapping[str, Any]]]] = MappingProxyType({}),
    gaps: Mapping[str, Callable[[], Mapping[str, Any]]] = MappingProxyType({}),
) -> dict[str, Callable[[], Table]]:
    """Return functions that make the tables of a document's ``tables.toml``.

    A table has a title, notes (in full, or by their names in ``[notes]``), and columns, each made
    of a column of the printed table ``rows``: ``{ from = "acc_pct", as = "float" }``. ``ours`` has
    functions for our values of a column. ``rows`` makes the rows of tables of another form,
    ``gaps`` values for gaps in the notes.
    """
    texts = _texts(number, "tables.toml")
    named = texts.get("notes", {})

    def table(key: str) -> Table:
        entry, values = texts[key], gaps[key]() if key in gaps else {}
        notes = (" ".join(named.get(note, note).split()) for note in entry.get("notes", ()))
        content = rows[key]() if key in rows else [
            {name: _cell_of(row, how, ours.get(key, {}).get(name))
             for name, how in entry["columns"].items()}
            for row in document(number).rows(entry["rows"])
        ]  # fmt: skip
        return Table(entry["title"], content, tuple(note.format(**values) for note in notes))

    return {key: partial(table, key) for key in texts if key != "notes"}


def _cell_of(row: Row, how: Mapping[str, Any], ours: Callable[[Row], Any] | None) -> Any:
    text = row[how["from"]]
    printed = how["words"][text] if "words" in how else _KINDS[how.get("as", "text")](text)
    if ours is None:
        return printed
    agree = agreement(how["agree"]) if "agree" in how else exactly
    return Cell(printed, ours(row), agree, "at least" if how.get("agree") == "at least" else "")


def described(number: str, statements: Iterable[Statement]) -> tuple[Described, ...]:
    """Return a document's statements about its figures, worded as in its ``figures.toml``."""
    descriptions = []
    for name, agrees, gaps in statements:
        texts = {part: " ".join(text.split()) for part, text in _texts(number)[name].items()}
        filled = {part: text.format(**gaps) for part, text in texts.items()}
        descriptions.append(Described(**filled, agrees=bool(agrees)))
    return tuple(descriptions)


@dataclass(frozen=True)
class FigureData:
    """A figure's rows (its CSV), what the document describes, and ``facts`` (marks, fits)."""

    rows: Sequence[Mapping[str, Any]]
    described: Sequence[Described] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PaperFigure:
    """A document's figure: ``data`` computes its rows; ``measured``: from a measurement.

    ``render.plots.documents.<folder>.DRAWINGS`` draws it, under the same key.
    """

    title: str
    data: Callable[[], FigureData]
    measured: bool = False


def figures_of(
    number: str, figures: Mapping[str, tuple[str, Callable[[], Computed]]], measured: str = ""
) -> dict[str, PaperFigure]:
    """Return a document's figures from their titles and the functions that compute them.

    ``measured`` has the keys of figures from measurements.
    """

    def data(compute: Callable[[], Computed]) -> FigureData:
        rows, said, facts = compute()
        return FigureData(rows, described(number, said), facts)

    return {
        key: PaperFigure(title, partial(data, compute), key in measured)
        for key, (title, compute) in figures.items()
    }


@dataclass
class Regenerated:
    """Recomputed tables and figures, and reasons for those that ``failed`` or cannot be made."""

    tables: dict[str, Table] = field(default_factory=dict)
    figures: dict[str, tuple[PaperFigure, FigureData]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    not_made: dict[str, str] = field(default_factory=dict)


def regenerate(number: str) -> Regenerated:
    """Return every table and figure of a document."""
    source, result = document(number), Regenerated(not_made=not_made(number))

    @contextmanager
    def attempt(name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a broken one must not hide the others
            result.failed[name] = reason(error)

    for name, table in source.part("TABLES").items():
        with attempt(f"table {name}"):
            result.tables[name] = table()
    for name, figure in source.part("FIGURES").items():
        with attempt(f"figure {name}"):
            result.figures[name] = (figure, figure.data())
    return result


def table_values(name: str, table: Table) -> dict[str, Any]:
    """Return a table for JSON; a recomputed cell has ``printed``, ``ours`` and ``differs``."""
    columns = list(table.columns)
    rows = [{column: _cell(row.get(column, "")) for column in columns} for row in table.rows]
    notes = list(table.notes)
    return {"name": name, "title": table.title, "columns": columns, "rows": rows, "notes": notes}


def _cell(value: Any) -> Any:
    if not isinstance(value, Cell):
        return value
    if value.ours is None:
        return value.printed
    both = {"printed": value.printed, "ours": value.ours, "differs": value.differs}
    return {**both, "bound": value.bound} if value.bound else both


def table_rows(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a table's rows for CSV; ours follow in columns named ``<column> (ours)``."""
    rows = values["rows"]
    both = {name for row in rows for name, cell in row.items() if isinstance(cell, Mapping)}
    flat: list[dict[str, Any]] = []
    for row in rows:
        flat.append({})
        for name, cell in row.items():
            columns = cell if isinstance(cell, Mapping) else {"printed": cell, "ours": ""}
            flat[-1][name] = columns["printed"]
            if name in both:
                bound, ours = columns.get("bound"), columns["ours"]
                flat[-1][f"{name} (ours)"] = f"{bound} {ours:.4g}" if bound else ours
    return flat


def figure_values(name: str, figure: PaperFigure, data: FigureData) -> dict[str, Any]:
    """Return a figure's data for JSON."""
    return {
        "name": name,
        "title": figure.title,
        "measured": figure.measured,
        "rows": [dict(row) for row in data.rows],
        "described": [asdict(statement) for statement in data.described],
        "facts": dict(data.facts),
    }
