"""Many records of one kind, kept as columns: a record is made when somebody asks for it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

from attnprof.record.base import Record


class ColumnarRecords(Sequence[Record]):
    """Reads like a list of records; a million of them cost as much as their columns.

    ``columns`` maps a field to one list (all of one length) of ints, floats and None;
    ``constants`` maps the other fields to the value all records share.
    """

    def __init__(
        self, kind: type[Record], columns: Mapping[str, list[Any]], constants: Mapping[str, Any]
    ) -> None:
        self.kind = kind
        self.names = [name for name, _ in kind.columns()]
        self._columns = columns
        self._constants = constants

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> ColumnarRecords: ...
    def __getitem__(self, index: int | slice) -> Record | ColumnarRecords:
        if isinstance(index, slice):
            part = {name: column[index] for name, column in self._columns.items()}
            return ColumnarRecords(self.kind, part, self._constants)
        row = {name: column[index] for name, column in self._columns.items()}
        return self.kind(**self._constants, **row)

    def column(self, name: str) -> list[Any]:
        """One field of every record."""
        if name in self._columns:
            return self._columns[name]
        return [self._constants[name]] * len(self)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The records as tuples, in the order of ``names``."""
        return zip(*(self.column(name) for name in self.names), strict=True)

    def json_lines(self) -> Iterator[str]:
        """Each record as a JSON object; the columns are encoded whole, which is what is fast."""
        parts, varying = [], []
        for name in self.names:
            if name in self._columns:
                parts.append(f"{json.dumps(name)}: %s")
                varying.append(json.dumps(self._columns[name], allow_nan=False)[1:-1].split(", "))
            else:
                constant = json.dumps(self._constants[name]).replace("%", "%%")
                parts.append(f"{json.dumps(name)}: {constant}")
        template = "{" + ", ".join(parts) + "}"
        return (template % row for row in zip(*varying, strict=True))
