"""The base of every record: a dataclass whose fields are JSON keys and columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

#: How a column is written.
FORMATS = (
    "text", "count", "bytes", "time", "ratio", "percent", "flops_rate", "bytes_rate",
    "number",
)  # fmt: skip


def column(title: str, unit: str = "", fmt: str = "text", default: Any = None) -> Any:
    """A record's field with what a renderer needs to know of it."""
    return field(default=default, metadata={"title": title, "unit": unit, "format": fmt})


@dataclass(frozen=True, kw_only=True)
class Record:
    """Base of every record. ``skipped`` says why a point has no numbers."""

    @classmethod
    def columns(cls) -> list[tuple[str, Mapping[str, Any]]]:
        """Names and metadata of the fields, in order."""
        return [(item.name, item.metadata) for item in fields(cls)]


def heading(name: str, meta: Mapping[str, Any]) -> str:
    """A column's heading in text: its title, with the unit where it has one."""
    title = str(meta.get("title") or name)
    return f"{title} ({meta['unit']})" if meta.get("unit") else title
