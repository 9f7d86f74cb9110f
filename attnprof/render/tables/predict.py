"""What ``attnprof predict`` shows: times and peaks, and what the time goes into."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.console import RenderableType
from rich.text import Text

from attnprof.record import PredictRecord, Report
from attnprof.record.points import names_of, varying
from attnprof.render.fitted import FittedTable, Hanging
from attnprof.render.terminal import answer_line, record_table
from attnprof.units import format_count, format_time

#: Operations shown of a single point, and of each of several.
SHOWN, FEW = 8, 3


def tables(report: Report) -> Iterator[RenderableType]:
    """The answer, a row a point, then the dearest operations of each."""
    records = report.of(PredictRecord)
    named = zip(records, names_of(records), strict=True)
    done = [replace(record, mechanism=name) for record, name in named if record.skipped is None]
    yield from answer_line(report)
    yield Text(f"{report.summary['made_of']}\n")
    if done:
        keys = ("mechanism", "seq_len", *varying(records))
        names = ("time_s", "ci_low_s", "ci_high_s", "peak_bytes_predicted", "bound")
        yield record_table(
            done, (*keys, *names), keys=len(keys), title="Predicted",
            caption=report.summary["interval"],
        )  # fmt: skip
        if any(record.operations for record in done):
            yield _operations(done)
    yield from (Hanging(f"not predicted: {r.skipped}") for r in records if r.skipped)


def _operations(records: Sequence[PredictRecord]) -> RenderableType:
    most = SHOWN if len(records) == 1 else FEW
    cells = (
        [record.mechanism, format_count(record.seq_len), row["name"],
         "×".join(map(str, row["sizes"])), format_count(row["calls"]), format_time(row["time_s"]),
         f"{row['time_s'] / (record.time_s or 1):.0%}", row["bound"]]
        for record in records
        for row in record.operations[:most]
    )  # fmt: skip
    headings = ("mechanism", "seq", "operation", "sizes", "calls", "time", "share", "bound")
    return FittedTable(
        *headings,
        rows=cells,
        keys=3,
        right=["seq", "calls", "time", "share"],
        title="What takes the time",
    )
