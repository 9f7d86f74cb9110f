"""A command's result as one value (:class:`Report`), saved as JSON and shown in a notebook.

Loading checks each value by its field's type, so that a damaged file is refused with the place.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from attnprof.arguments import file_path, shown
from attnprof.errors import CannotRunError, RequestError
from attnprof.record.base import ColumnarRecords, Record, record_kinds
from attnprof.record.escapes import visible
from attnprof.record.files import JOURNAL_LIMIT, read_json, write_whole
from attnprof.record.recognition import SCHEMA
from attnprof.units import MISSING, format_value, is_numeric

Kind = TypeVar("Kind", bound=Record)


@dataclass(frozen=True)
class Report:
    """A command's result: records, a summary, and the environment they were made in.

    A notebook shows it as a table.

    >>> Report("list", [], {"what": "nothing"}).save("saved.json")
    >>> Report.load("saved.json").summary
    {'what': 'nothing'}
    """

    command: str
    records: Sequence[Record]
    summary: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    schema: str = SCHEMA

    def __getattr__(self, name: str) -> Any:
        """Return a value of the summary, as ``report.fits``."""
        if not name.startswith("_") and name in self.summary:
            return self.summary[name]
        raise AttributeError(f"a report has no {name}")

    def of(self, kind: type[Kind]) -> list[Kind]:
        """Return the records of a kind."""
        return [record for record in self.records if isinstance(record, kind)]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: NaN and infinities become null, integers stay exact."""
        return {
            "schema": self.schema, "command": self.command,
            "environment": _json_ready(self.environment), "summary": _json_ready(self.summary),
            "records": [_json_ready(asdict(record)) for record in self.records],
        }  # fmt: skip

    def to_json(self) -> str:
        """Return the JSON text, with a newline at its end."""
        if isinstance(self.records, ColumnarRecords):
            shell = replace(self, records=()).to_json()
            lines = ",\n  ".join(self.records.json_lines())
            return shell.removesuffix("[]\n}\n") + "[\n  " + lines + "\n ]\n}\n"
        return json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n"

    def save(self, path: str | Path) -> None:
        """Write the JSON; the file is whole or not there."""
        write_whole(file_path("path", path), self.to_json())

    @classmethod
    def load(cls, path: str | Path, limit: int = JOURNAL_LIMIT) -> "Report":
        """Read a saved report of at most ``limit`` bytes; its records are of the command's kind.

        Raises :class:`RequestError` if the file is missing, not JSON, of another schema, or holds
        a value that is not of its field's kind.
        """
        return cls.from_json(read_json(file_path("path", path), limit), str(path))

    @classmethod
    def from_json(cls, data: Any, where: str) -> "Report":
        """Return the report of a JSON value, each record checked; ``where`` is for messages."""
        schema = data.get("schema") if isinstance(data, dict) else type(data).__name__
        if schema != SCHEMA or not isinstance(data, dict):
            raise RequestError(f"{where} is not an {SCHEMA} report (it says: {shown(schema)})")
        command, rows = data.get("command"), data.get("records")
        kind = record_kinds().get(command) if isinstance(command, str) else None
        if kind is None or not isinstance(command, str):
            raise RequestError(
                f"{where} is a report of an unknown command, {shown(command)}; it was written by a "
                "newer attnprof, or by hand"
            )
        if not isinstance(rows, list):
            raise RequestError(f"{where}: records is {shown(rows)}, not a list")
        records = [restored(kind, row, f"{where}: records[{n}]") for n, row in enumerate(rows)]
        summary, environment = (object_in(data, name, where) for name in ("summary", "environment"))
        return cls(command, records, summary, environment, SCHEMA)

    def to_frame(self) -> Any:
        """Return the records as a pandas DataFrame, one column a field.

        Raises :class:`attnprof.errors.CannotRunError` where pandas is not installed.
        """
        if isinstance(self.records, ColumnarRecords):
            return data_frame({name: self.records.column(name) for name in self.records.names})
        return data_frame([asdict(record) for record in self.records])

    def _repr_html_(self) -> str:
        return records_html(self.command, self.records)


def by_device(reports: Sequence[Report], kind: type[Kind]) -> list[Kind]:
    """Return the records of reports; if these are of several devices, with each device's name."""
    names = [str(report.environment.get("device_name") or "") for report in reports]
    pairs = [
        (r, name) for report, name in zip(reports, names, strict=True) for r in report.of(kind)
    ]
    if len(set(names)) == 1:
        return [record for record, _ in pairs]
    return [replace(record, **({"device": name} if name else {})) for record, name in pairs]


def _json_ready(value: Any) -> Any:
    """Return a value ready for JSON: mappings and sequences copied, NaN and infinities None."""
    if isinstance(value, Mapping):
        return {str(key): _json_ready(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_ready(item) for item in value]
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    if hasattr(value, "item"):
        return _json_ready(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value)


_WORDS = {
    str: "a text", int: "a whole number", float: "a number", bool: "true or false",
    list: "a list", dict: "an object", NoneType: "null",
}  # fmt: skip
#: Fields that are at least 1, and formats of fields that are at least 0.
SIZES = ("batch_size", "seq_len", "d_model", "num_heads", "head_dim")
_COUNTED = ("count", "bytes", "time")


def restored(kind: type[Kind], row: Any, where: str) -> Kind:
    """Return a saved row as its record, without names that the kind does not have.

    :class:`RequestError` names the place, the field, its value and the type it must have.
    """
    if not isinstance(row, dict):
        raise RequestError(f"{where} is {shown(row)}, not an object")
    values = {}
    for item, hint, default in _fields(kind):  # type: ignore[arg-type] # classes are hashable
        if item.name not in row:
            if not fits(default, hint):
                raise RequestError(f"{where}: {item.name} is missing, {type_text(hint)}")
            continue
        value = row[item.name]
        if not fits(value, hint) and not (value is None and hint is float):  # NaN is saved as null
            raise RequestError(f"{where}: {item.name} is {shown(value)}, not {type_text(hint)}")
        least, meta = 1 if item.name in SIZES else 0, item.metadata
        if least or meta.get("format") in _COUNTED or meta.get("unit") == "s":
            inner = value.values() if isinstance(value, dict) else value
            for one in inner if isinstance(value, (list, dict)) else [value]:
                if isinstance(one, (int, float)) and one < least:
                    raise RequestError(f"{where}: {item.name} is {shown(one)}, below {least}")
        values[item.name] = value
    return kind(**values)


@cache
def _fields(kind: type[Record]) -> list[tuple[Field[Any], Any, Any]]:
    """Return the fields with their types and defaults."""
    hints, plain = get_type_hints(kind), kind()
    return [(item, hints[item.name], getattr(plain, item.name)) for item in fields(kind)]


def fits(value: Any, hint: Any) -> bool:
    """Return whether a JSON value is of an annotated type; true and false are no numbers."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind in (UnionType, Union):
        return any(fits(value, one) for one in inner)
    if isinstance(value, bool):
        return kind in (bool, Any)
    if kind is float:
        return isinstance(value, (int, float))
    if kind is Any or not isinstance(value, (dict, list)):
        return kind is Any or isinstance(value, kind)
    items = value.values() if isinstance(value, dict) else value
    return isinstance(value, kind) and all(fits(item, inner[-1]) for item in items)


def type_text(hint: Any) -> str:
    """Return an annotated type in words."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind in (UnionType, Union):
        return " or ".join(dict.fromkeys(type_text(one) for one in inner))
    words = _WORDS.get(kind, "a value")
    item = inner[-1] if kind in (list, dict) else Any
    return words if item is Any else f"{words} of which each is {type_text(item)}"


def object_in(data: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    """Return a member that must be an object; an empty one if it is missing."""
    member = data.get(name, {})
    if not isinstance(member, dict):
        raise RequestError(f"{where}: {name} is {shown(member)}, not an object")
    return member


#: Rows of a report that are shown, and characters of a list in a cell.
MOST, LONG = 60, 60


def html_table(
    columns: Sequence[tuple[str, str]], rows: Iterable[Iterable[Any]], title: str,
    notes: Iterable[str],
) -> str:  # fmt: skip
    """Return an HTML table with short numbers, each column by its heading and format.

    The format ``code`` is for formulas.
    """
    head = "".join(f"<th>{_safe(name)}</th>" for name, _ in columns)
    formats = [fmt for _, fmt in columns]
    body = "".join(f"<tr>{''.join(map(_cell, row, formats))}</tr>\n" for row in rows)
    below = "".join(f"<div>{_safe(note)}</div>\n" for note in notes)
    return (
        f"<table>\n<caption>{_safe(title)}</caption>\n<thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{body}</tbody>\n</table>\n{below}"
    )


def _safe(text: str) -> str:
    from html import escape

    return escape(visible(text))


def _cell(value: Any, fmt: str) -> str:
    if fmt == "code":
        return f"<td><code>{_safe(str(value))}</code></td>"
    side = "right" if is_numeric(fmt) else "left"
    return f'<td style="text-align: {side}">{_safe(format_value(value, fmt, short=True))}</td>'


def records_html(command: str, records: Sequence[Record]) -> str:
    """Return the first records as HTML; shared and long values are listed below the table."""
    shown = [records[place] for place in range(min(len(records), MOST))]
    columns, kept, shared, long = [], [], [], []
    for name, meta in type(shown[0]).columns() if shown else ():
        values, fmt = [getattr(record, name) for record in shown], meta["format"]
        texts = [format_value(value, fmt, short=True) for value in values]
        if {*texts} <= {"", MISSING}:
            continue
        if any(isinstance(value, list | dict) for value in values) and max(map(len, texts)) > LONG:
            long.append(name)
        elif len(shown) > 1 and all(value == values[0] for value in values):
            shared.append(f"{name}: {texts[0]}")
        else:
            columns.append((str(meta.get("title") or name), fmt))
            kept.append(texts)
    title = f"{command}: {len(records):,} record{'s' * (len(records) != 1)}"
    more = [f"{len(records) - MOST:,} more records"] * (len(records) > MOST)
    notes = [
        ", ".join(shared),
        f"see to_frame() for {', '.join([*more, *long])}" * bool(more or long),
    ]
    return html_table(columns, zip(*kept, strict=True), title, filter(None, notes))


def stage_row(stage: Any, live_bytes: Any) -> dict[str, Any]:
    """Return a stage of a cost table as one row."""
    counts = {name: getattr(stage.cost, name) for name in (*stage.cost.__slots__, "flops")}
    columns = ("name", "part", "shape", "allocates", "frees", "workspace")
    return {**{name: getattr(stage, name) for name in columns}, **counts, "held": live_bytes}


def stages_html(table: Any) -> str:
    """Return a cost table by stage, with its total; formulas where sizes are symbols."""
    rows = [
        (s.name, s.shape, s.cost, live_bytes)
        for s, live_bytes in zip(table, table.live(), strict=True)
    ]
    rows.append(("total", (), table.total, table.peak()))
    plain = isinstance(rows[-1][2].flops + rows[-1][3], int | float)
    count, size = ("count", "bytes") if plain else ("code", "code")
    columns = [("stage", "text"), ("shape", "text"), ("FLOPs", count), ("bytes moved", size),
               ("bytes held", size)]  # fmt: skip
    cells = (
        (name, "×".join(map(str, shape)), cost.flops, cost.bytes_moved, live_bytes)
        for name, shape, cost, live_bytes in rows
    )
    caption = f"{table.parameters:,} parameters; the total's bytes held are the peak"
    return html_table(columns, cells, "Cost by stage", [caption, *table.notes])


def data_frame(columns: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]]) -> Any:
    """Return a pandas DataFrame; :class:`CannotRunError` where pandas is missing."""
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise CannotRunError("to_frame() needs pandas: pip install pandas") from error
    return pd.DataFrame(columns)
