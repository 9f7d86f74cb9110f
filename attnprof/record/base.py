"""The base of every record: a dataclass whose fields are JSON keys and table columns."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import Any


def column(title: str, unit: str = "", fmt: str = "text", default: Any = None) -> Any:
    """Return a record's field with a renderer's settings; ``default`` may be list or dict."""
    metadata = {"title": title, "unit": unit, "format": fmt}
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


#: The class of record by command, for modules imported so far.
_KINDS: "dict[str, type[Record]]" = {}


def record_kinds() -> "Mapping[str, type[Record]]":
    """Return the class of record of each command: ``{"cost": CostRecord, …}``."""
    for name in ("crossovers", "kinds", "measured"):
        import_module(f"attnprof.record.{name}")
    return _KINDS


@dataclass(frozen=True, kw_only=True)
class Record:
    """Base of every record. ``skipped`` is the reason why a point has no numbers."""

    def __init_subclass__(cls, commands: Sequence[str] = ()) -> None:
        """Register a class of record for ``commands``."""
        _KINDS.update(dict.fromkeys(commands, cls))

    @classmethod
    def columns(cls) -> list[tuple[str, Mapping[str, Any]]]:
        """Return names and metadata of the fields, in order."""
        return [(item.name, item.metadata) for item in fields(cls)]


def heading(name: str, meta: Mapping[str, Any]) -> str:
    """Return a column's heading in text: its title, with the unit where it has one."""
    title = str(meta.get("title") or name)
    return f"{title} ({meta['unit']})" if meta.get("unit") else title


class ColumnarRecords(Sequence[Record]):
    """A sequence of records stored as columns, for a million cells of a heatmap.

    ``columns`` maps fields to lists of numbers and None, ``constants`` the other fields to the one
    value that all records share.
    """

    def __init__(
        self, kind: type[Record], columns: Mapping[str, list[Any]], constants: Mapping[str, Any]
    ) -> None:
        self.kind, self.names = kind, [name for name, _ in kind.columns()]
        self._columns = columns
        self._constants = constants

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, index: Any) -> Any:
        row = {name: column[index] for name, column in self._columns.items()}
        return self.kind(**self._constants, **row)

    def column(self, name: str) -> list[Any]:
        """Return one field of every record."""
        if name in self._columns:
            return self._columns[name]
        return [self._constants[name]] * len(self)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Return the records as tuples, in the order of ``names``."""
        return zip(*(self.column(name) for name in self.names), strict=True)

    def json_lines(self) -> Iterator[str]:
        """Return each record as JSON; fast, since columns are encoded whole."""
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
