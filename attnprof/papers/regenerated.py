"""Recompute a document's tables and figures: printed values with ours, in plain values for JSON.

Entry point: :func:`regenerate`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from attnprof.papers.checks import Agree, agreement, exactly
from attnprof.papers.documents import document, not_made, number, reason

#: A table, a figure, or a statement on a figure, as JSON has it.
Values = dict[str, Any]
#: A statement by its name in ``figures.toml``: whether ours agrees, and values for its gaps.
Statement = tuple[str, bool, Mapping[str, Any]]
Row = Mapping[str, str]
#: How a printed text is shown: as it is, or as a number, whole numbers whole or not.
_KINDS: dict[str, Callable[[str], Any]] = {
    "text": str, "float": float, "int": int, "number": number,
}  # fmt: skip
#: What a figure is made of: rows, the document's statements on it, and facts.
Computed = tuple[Sequence[Mapping[str, Any]], Iterable[Statement], Mapping[str, Any]]


def both_values(printed: Any, ours: Any, agree: Agree = exactly, bound: str = "") -> Any:
    """Return a table's cell: the printed value and ours, and whether they differ.

    It is the printed value alone if ours is None. ``bound``: ours is a bound on the printed value
    ("at least"), not the value itself.
    """
    if ours is None:
        return printed
    both = {"printed": printed, "ours": ours, "differs": not agree(printed, ours)}
    return {**both, "bound": bound} if bound else both


def tables_of(
    number: str,
    ours: Mapping[str, Mapping[str, Callable[[Row], Any]]],
    rows: Mapping[str, Callable[[], Sequence[Mapping[str, Any]]]] = MappingProxyType({}),
    gaps: Mapping[str, Callable[[], Mapping[str, Any]]] = MappingProxyType({}),
) -> dict[str, Callable[[], Values]]:
    """Return functions that make the tables of a document's ``tables.toml``, as JSON has them.

    A table has a title, notes (in full, or by their names in ``[notes]``), and columns, each made
    of a column of the printed table ``rows``: ``{ from = "acc_pct", as = "float" }``. ``ours`` has
    functions for our values of a column (:func:`both_values`). ``rows`` makes the rows of tables of
    another form, ``gaps`` values for gaps in the notes.
    """
    texts = document(number).texts("tables.toml")
    named = texts.get("notes", {})

    def table(key: str) -> Values:
        entry, values = texts[key], gaps[key]() if key in gaps else {}
        notes = (" ".join(named.get(note, note).split()) for note in entry.get("notes", ()))
        content = rows[key]() if key in rows else [
            {name: _cell_of(row, how, ours.get(key, {}).get(name))
             for name, how in entry["columns"].items()}
            for row in document(number).rows(entry["rows"])
        ]  # fmt: skip
        columns = list(content[0])
        return {
            "name": key, "title": entry["title"], "columns": columns,
            "rows": [{column: row.get(column, "") for column in columns} for row in content],
            "notes": [note.format(**values) for note in notes],
        }  # fmt: skip

    return {key: partial(table, key) for key in texts if key != "notes"}


def _cell_of(row: Row, how: Mapping[str, Any], ours: Callable[[Row], Any] | None) -> Any:
    text = row[how["from"]]
    printed = how["words"][text] if "words" in how else _KINDS[how.get("as", "text")](text)
    if ours is None:
        return printed
    agree = agreement(how["agree"]) if "agree" in how else exactly
    bound = "at least" if how.get("agree") == "at least" else ""
    return both_values(printed, ours(row), agree, bound)


def described(number: str, statements: Iterable[Statement]) -> list[Values]:
    """Return a document's statements about its figures, and whether our data agrees.

    ``what``, ``printed`` and ``ours`` are worded as in its ``figures.toml``.
    """
    descriptions, texts = [], document(number).texts("figures.toml")
    for name, agrees, gaps in statements:
        filled = {part: " ".join(x.split()).format(**gaps) for part, x in texts[name].items()}
        descriptions.append({**filled, "agrees": bool(agrees)})
    return descriptions


def figures_of(
    number: str, figures: Mapping[str, tuple[str, Callable[[], Computed]]], measured: str = ""
) -> dict[str, Callable[[], Values]]:
    """Return functions that make a document's figures, as JSON has them.

    ``figures`` have titles and functions that compute rows (the CSV), statements, and ``facts``
    (marks, fits). ``measured`` has the keys of figures from measurements.
    ``render.plots.documents.<folder>.DRAWINGS`` draws a figure, under the same key.
    """

    def figure(key: str) -> Values:
        title, compute = figures[key]
        rows, said, facts = compute()
        return {
            "name": key, "title": title, "measured": key in measured,
            "rows": [dict(row) for row in rows], "described": described(number, said),
            "facts": dict(facts),
        }  # fmt: skip

    return {key: partial(figure, key) for key in figures}


@dataclass
class Regenerated:
    """Recomputed tables and figures, and reasons for those that ``failed`` or cannot be made."""

    tables: dict[str, Values] = field(default_factory=dict)
    figures: dict[str, Values] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    not_made: dict[str, str] = field(default_factory=dict)


def regenerate(number: str) -> Regenerated:
    """Return every table and figure of a document."""
    result = Regenerated(not_made=not_made(number))
    for kind, parts in (("table", result.tables), ("figure", result.figures)):
        for name, make in document(number).part(f"{kind}s".upper()).items():
            try:
                parts[name] = make()
            except Exception as error:  # noqa: BLE001 - a broken one must not hide the others
                result.failed[f"{kind} {name}"] = reason(error)
    return result


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
