"""A report's records as CSV: one header line of field names, one line a record."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any

from attnprof.record import KINDS, ColumnarRecords, Record, Report
from attnprof.record.escaping import csv_cell


def kind_of(report: Report) -> type[Record]:
    """The record class of a report, also where it has no records."""
    return type(report.records[0]) if report.records else KINDS[report.command]


def render_csv(report: Report) -> str:
    """RFC 4180 text; mappings and lists as compact JSON, missing values and NaN empty.

    A text that spreadsheets would take for a formula begins with an apostrophe.
    """
    names = [name for name, _ in kind_of(report).columns()]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    if isinstance(report.records, ColumnarRecords):
        writer.writerows(report.records.rows())  # None is written as nothing
        return stream.getvalue()
    for record in report.records:
        writer.writerow([_cell(getattr(record, name)) for name in names])
    return stream.getvalue()


def _cell(value: Any) -> Any:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (dict, list, tuple)):
        return json.dumps(value, separators=(",", ":"))
    return csv_cell(value) if isinstance(value, str) else value
