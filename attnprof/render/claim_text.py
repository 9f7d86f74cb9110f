"""A claim's values as people read them: what is printed, what is right."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from attnprof.record import ReproduceRecord
from attnprof.units import MISSING, format_number

#: A verdict as it is read.
WORDS = {
    "match": "match",
    "erratum": "erratum",
    "not-reproducible": "not reproducible",
    "error": "error",
}


def value_text(value: Any) -> str:
    """A number, formula, list or mapping as text."""
    if value is None or value == "":
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return format_number(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_inner(item)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(_inner(item) for item in value) or "none"
    return str(value)


def _inner(value: Any) -> str:
    text = value_text(value)
    if isinstance(value, Mapping):
        return f"{{{text}}}"
    return f"[{text}]" if isinstance(value, (list, tuple)) else text


def printed_and_ours(record: ReproduceRecord) -> tuple[str, str]:
    """Both sides of a claim; of lists and mappings only what differs, where something does.

    A statement's own words stand for its being printed.
    """
    if record.verdict == "error":
        return record.says, MISSING
    if isinstance(record.published, bool):
        return record.says, _statement(record)
    printed, ours = different(record.published, record.ours)
    return value_text(printed), value_text(ours)


def _statement(record: ReproduceRecord) -> str:
    if not isinstance(record.ours, bool):
        return value_text(record.ours)
    return "holds" if record.ours else "does not hold"


def different(a: Any, b: Any) -> tuple[Any, Any]:
    """The two values without what they share; whole where they share all or nothing."""
    if isinstance(a, Mapping) and isinstance(b, Mapping) and set(a) == set(b):
        names = [name for name in a if a[name] != b[name]]
        if names:
            pairs = {name: different(a[name], b[name]) for name in names}
            return {n: pair[0] for n, pair in pairs.items()}, {
                n: pair[1] for n, pair in pairs.items()
            }
    return a, b


def shortened(text: str, most: int) -> str:
    """A text of at most so many letters, with a mark where it was cut."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def place_text(place: str) -> str:
    """Where a claim stands; a table is named by its number, not by its file."""
    return re.sub(r"\b(\d{3}_)?table0?(\d+)(\w*\.csv)?", r"Table \2", place)
