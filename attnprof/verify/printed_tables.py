"""A table of printed formulas: a CSV file with one formula a row."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnprof.algebra.parser import name_of, short
from attnprof.closed_form.cost_records import CONVENTIONS
from attnprof.errors import RequestError, closest
from attnprof.record.files import read_table
from attnprof.verify.comparison import UP_TO
from attnprof.verify.own_formulas import KINDS, Source
from attnprof.verify.verification import Printed, in_row
from attnprof.workload import SCOPES

#: What a row may say; what it leaves out is said by the flags. Those that make a target (--arg,
#: --input, --set) hold for rows about the target of the command line.
COLUMNS = (
    "place", "formula", "quantity", "phase", "target", "where", "up_to", "in", "kind", "convention",
    "scope", "causal", "arg", "input", "set",
)  # fmt: skip
PHASES = ("forward", "prefill", "backward", "train", "decode")
_CHOICES: Mapping[str, Sequence[str]] = {
    "phase": PHASES, "up_to": UP_TO, "kind": KINDS, "convention": CONVENTIONS, "scope": SCOPES,
    "causal": ("yes", "no"),
}  # fmt: skip

#: Between two meanings, not inside of one like Max(a, b).
_BETWEEN = re.compile(r"[;,](?=\s*[^\W\d]\w*\s*=|\s*$)")


def meanings(texts: Sequence[str]) -> dict[str, str]:
    """``n=N; D=h*d`` as a mapping; several texts add up.

    Raises :class:`RequestError` for what is not a name and a formula.
    """
    found = {}
    for text in (part for whole in texts for part in _BETWEEN.split(whole)):
        if not text.strip():
            continue
        name, equals, meaning = (piece.strip() for piece in text.partition("="))
        if not equals or not name_of(name) or not meaning:
            raise RequestError(
                f"--where {short(text.strip())}: type a name, '=' and sizes, like D=h*d"
            )
        found[name_of(name)] = meaning
    return found


def rows_of(path: Path, defaults: Printed) -> tuple[list[Printed], list[str]]:
    """The rows of a file, and which of its columns say nothing here.

    Raises :class:`RequestError` for a file that is none, a row without a formula or target, and
    a value that is not possible, with the row.
    """
    lines = read_table(path)
    if not lines or "formula" not in lines[0]:
        raise RequestError(
            f"--table {path}: needs a header with the column formula and at least one row; other "
            f"columns: {', '.join(name for name in COLUMNS if name != 'formula')}"
        )
    rows = [_row(line, f"{path}, row {at}: ", defaults) for at, line in enumerate(lines, start=1)]
    return rows, [name for name in lines[0] if name not in COLUMNS]


def _row(cells: Mapping[str, str], line: str, defaults: Printed) -> Printed:
    said = {name: cells[name] for name in COLUMNS if cells.get(name)}
    if "formula" not in said:
        raise RequestError(f"{line}there is no formula")
    for name, possible in _CHOICES.items():
        if said.get(name, possible[0]) not in possible:
            raise RequestError(f"{line}{name} '{said[name]}': {closest(said[name], [*possible])}")
    row = replace(
        defaults,
        formula=said["formula"],
        source=_source(said, defaults.source, line),
        where={**defaults.where, **in_row(line, lambda: meanings([said.get("where", "")]))},
        place=said.get("place", ""),
        line=line,
        quantity=said.get("quantity", defaults.quantity),
        up_to=said.get("up_to", defaults.up_to),
    )
    if "in" in said:
        row = replace(row, growing=_parts(said["in"].replace(",", ";")))
    if not row.source.target:
        raise RequestError(f"{line}say what it speaks of: a column target, or TARGET after --table")
    return with_phase(row, said.get("phase", row.phase))


def with_phase(row: Printed, phase: str) -> Printed:
    """The row with a phase; ``prefill`` is a causal forward pass."""
    if phase != "prefill":
        return replace(row, phase=phase)
    return replace(row, phase="forward", source=replace(row.source, causal=True))


def _source(said: Mapping[str, str], source: Source, line: str) -> Source:
    if said.get("target", source.target) != source.target:
        source = replace(source, args=(), inputs=(), params=())
    given: dict[str, Any] = {
        name: said[name] for name in ("target", "kind", "convention", "scope") if name in said
    }
    if "causal" in said:
        given["causal"] = said["causal"] == "yes"
    if "set" in said:
        given["params"] = _settings(said["set"], line)
    for column, name in (("arg", "args"), ("input", "inputs")):
        if column in said:
            given[name] = _parts(said[column])
    return replace(source, **given)


def _settings(text: str, line: str) -> tuple[tuple[str, str], ...]:
    pairs = [tuple(piece.strip() for piece in part.split("=")) for part in _parts(text)]
    if not all(len(pair) == 2 and all(pair) for pair in pairs):
        raise RequestError(f"{line}set '{text}': type name=value, several with ; between")
    return tuple((name, value) for name, value in pairs)


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(";") if part.strip())
