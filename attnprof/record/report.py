"""A command's result as one value: records, summary, environment; saved and loaded as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from attnprof.arguments import file_path
from attnprof.errors import RequestError
from attnprof.record.base import KINDS, ColumnarRecords, Record
from attnprof.record.files import JOURNAL_LIMIT, read_json, write_whole
from attnprof.record.recognition import SCHEMA
from attnprof.record.schema import object_in, restored, shown

Kind = TypeVar("Kind", bound=Record)


@dataclass(frozen=True)
class Report:
    """A command's result: records, a summary, and the environment they were made in."""

    command: str
    records: Sequence[Record]
    summary: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    schema: str = SCHEMA

    def of(self, kind: type[Kind]) -> list[Kind]:
        """The records of a kind."""
        return [record for record in self.records if isinstance(record, kind)]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: NaN and infinities become null, integers stay exact."""
        return {
            "schema": self.schema,
            "command": self.command,
            "environment": _plain(self.environment),
            "summary": _plain(self.summary),
            "records": [_plain(asdict(record)) for record in self.records],
        }

    def to_json(self) -> str:
        """The JSON text, with a newline at its end."""
        if isinstance(self.records, ColumnarRecords):
            shell = replace(self, records=()).to_json()
            lines = ",\n  ".join(self.records.json_lines())
            return shell.removesuffix("[]\n}\n") + "[\n  " + lines + "\n ]\n}\n"
        return json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n"

    def save(self, path: str | Path) -> None:
        """Write the JSON; the file is whole or not there."""
        write_whole(file_path("path", path), self.to_json())

    @classmethod
    def load(cls, path: str | Path, limit: int = JOURNAL_LIMIT) -> Report:
        """Read a saved report of at most ``limit`` bytes; its records are of the command's kind.

        Raises :class:`RequestError` if the file is missing, not JSON, of another schema, or holds
        a value that is not of its field's kind.
        """
        return cls.from_json(read_json(file_path("path", path), limit), str(path))

    @classmethod
    def from_json(cls, data: Any, where: str) -> Report:
        """The report of a JSON value that was read from ``where``, each record checked."""
        told = data.get("schema") if isinstance(data, dict) else type(data).__name__
        if told != SCHEMA or not isinstance(data, dict):
            raise RequestError(f"{where} is not an {SCHEMA} report (it says: {shown(told)})")
        command, rows = data.get("command"), data.get("records")
        kind = KINDS.get(command) if isinstance(command, str) else None
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
        """The records as a pandas DataFrame, one column a field."""
        import pandas as pd

        if isinstance(self.records, ColumnarRecords):
            return pd.DataFrame({name: self.records.column(name) for name in self.records.names})
        return pd.DataFrame([asdict(record) for record in self.records])


def _plain(value: Any) -> Any:
    """JSON-ready: mappings and sequences walked, NaN and infinities to None."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    if hasattr(value, "item"):
        return _plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value)
