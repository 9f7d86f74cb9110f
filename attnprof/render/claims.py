"""Claims and regenerated tables as people read them: what is printed, what is right."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from attnprof.record import ReproduceRecord
from attnprof.units import MISSING, format_number

#: A verdict as it is read.
WORDS = {name: name.replace("-", " ") for name in ("match", "erratum", "not-reproducible", "error")}
#: Columns of the counts of a replay: the summary's keys, and how they are called.
COUNTED = {"claims": "claims", **WORDS, "readings": "by reading"}


def count_rows(documents: Mapping[str, Any], keys: Collection[str]) -> list[list[str]]:
    """How many claims of each document came out how; of several, the sums in the last row."""
    rows = [[f"{n} {its['title']}", *(str(its[key]) for key in keys)]
            for n, its in documents.items()]  # fmt: skip
    if len(rows) > 1:
        rows.append(["all", *(str(sum(its[key] for its in documents.values())) for key in keys)])
    return rows


def value_text(value: Any, *, inside: bool = False) -> str:
    """A number, formula, list or mapping as text; those ``inside`` another one in brackets."""
    if value is None or value == "":
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return format_number(value)
    if isinstance(value, Mapping):
        text = ", ".join(f"{name}: {value_text(its, inside=True)}" for name, its in value.items())
        return f"{{{text}}}" if inside else text
    if isinstance(value, (list, tuple)):
        text = ", ".join(value_text(item, inside=True) for item in value) or "none"
        return f"[{text}]" if inside else text
    return str(value)


def printed_and_ours(record: ReproduceRecord) -> tuple[str, str]:
    """Both sides of a claim; of lists and mappings only what differs, where something does.

    A statement's own words stand for its being printed.
    """
    if record.verdict == "error":
        return record.says, MISSING
    if isinstance(record.published, bool):
        holds = "holds" if record.ours else "does not hold"
        return record.says, holds if isinstance(record.ours, bool) else value_text(record.ours)
    printed, ours = different(record.published, record.ours)
    return value_text(printed), value_text(ours)


def different(a: Any, b: Any) -> tuple[Any, Any]:
    """The two values without what they share; whole where they share all or nothing."""
    if isinstance(a, Mapping) and isinstance(b, Mapping) and set(a) == set(b) and a != b:
        pairs = {name: different(a[name], b[name]) for name in a if a[name] != b[name]}
        theirs, ours = ({name: pair[side] for name, pair in pairs.items()} for side in (0, 1))
        return theirs, ours
    return a, b


def place_text(place: str) -> str:
    """Where a claim stands; a table is named by its number, not by its file."""
    return re.sub(r"\b(\d{3}_)?table0?(\d+)(\w*\.csv)?", r"Table \2", place)


def answer_lines(record: ReproduceRecord) -> Iterator[tuple[str, str]]:
    """What there is to say of a claim: name and text."""
    yield "says", record.says
    if record.verdict != "error":
        yield "published", value_text(record.published)
        yield "ours", value_text(record.ours)
        yield "verdict", f"{WORDS[record.verdict]} ({record.basis})"
        yield "how", record.how
    if record.why:
        yield "why", record.why
    if record.committed and record.committed != record.verdict:
        yield "before", f"{WORDS[record.committed]} (the verdict that ships with attnprof)"


def title_of(values: Mapping[str, Any]) -> str:
    """What a table is called: by its number where the document numbers it."""
    title = str(values["title"])
    return f"Table {values['name']}: {title}" if values["name"].isdigit() else title


def cell_text(cell: Any) -> str:
    """What is printed, and ours in brackets where it says something else."""
    if not isinstance(cell, Mapping):
        return value_text(cell)
    printed, ours = value_text(cell["printed"]), value_text(cell["ours"])
    if bound := cell.get("bound"):
        return f"{printed} [{bound} {ours}]"
    return f"{printed} [ours {ours}]" if cell["differs"] else printed


def count_cells(values: Mapping[str, Any], *, bounds: bool = False) -> tuple[int, int]:
    """How many cells were recomputed, and how many of them differ.

    Cells beside a bound are counted apart (``bounds``): those that differ are beyond it.
    """
    cells = [
        cell for row in values["rows"] for cell in row.values()
        if isinstance(cell, Mapping) and ("bound" in cell) == bounds
    ]  # fmt: skip
    return len(cells), sum(cell["differs"] for cell in cells)


def notes(values: Mapping[str, Any]) -> Iterator[str]:
    """What is said below a table: how much of it was made again, and its own notes."""
    made, differing = count_cells(values)
    if made:
        yield f"{made} values made again, {differing or 'none'} of them different from the printed."
    bounded, beyond = count_cells(values, bounds=True)
    if bounded:
        yield f"{bounded} values beside a bound, not made again, {beyond or 'none'} beyond it."
    yield from values["notes"]
