"""What ``attnprof recommend`` shows: a sentence, the ranking, and what cannot be taken."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from attnprof.record import RecommendRecord, Report
from attnprof.render.fitted import FittedTable, Hanging
from attnprof.render.terminal import answer_line
from attnprof.units import MISSING, format_bytes, format_count, format_time, plural


def tables(report: Report) -> Iterator[RenderableType]:
    """Who fits by rank, what each gives up, and why the others are left out."""
    rows = report.of(RecommendRecord)
    one, ranked = rows[0], [row for row in rows if row.rank is not None]
    yield from answer_line(report)
    yield Text(f"{report.summary['made_of']}\n")
    cells = (
        [format_count(row.rank or 0), row.mechanism, "yes" if row.exact else "no",
         format_time(row.time_s or 0.0), _interval(row),
         MISSING if row.peak_bytes is None else format_bytes(row.peak_bytes)]
        for row in ranked
    )  # fmt: skip
    where = (
        f"{one.scope}, {one.phase}{', causal' * one.causal}, {plural(one.seq_len, 'token')}, "
        f"batch {one.batch_size}, d_model {one.d_model}, "
        f"{plural(one.num_heads, 'head')}, {one.dtype}"
    )
    yield FittedTable(
        "rank", "mechanism", "exact", "time", "95 %", "peak memory", rows=cells,
        title=f"Predicted\n{where}", right=("rank", "time", "peak memory"), keys=2,
        caption=report.summary["interval"],
    )  # fmt: skip
    alike: dict[str, list[str]] = {}
    for row in ranked:
        alike.setdefault(row.gives_up, []).append(row.mechanism)
    yield from (Hanging(f"{', '.join(names)}: {what}") for what, names in alike.items() if what)
    yield from (Hanging(f"{r.mechanism} left out: {r.skipped}") for r in rows if r.rank is None)
    for own in report.summary["fastest"]:
        exact = f"{own['exact']} the fastest exact one" if own["exact"] else "no exact one fits"
        what = f"{own['fastest']} is the fastest of all, {exact}"
        what = f"{own['fastest']} is the fastest" if own["exact"] == own["fastest"] else what
        ends = dict.fromkeys((f"{own['from']:,}", f"{own['to']:,}"))
        yield Hanging(f"{' to '.join(ends)} tokens: {what}")


def _interval(row: RecommendRecord) -> str:
    if row.ci_low_s is None or row.ci_high_s is None:
        return MISSING
    return f"{format_time(row.ci_low_s)} to {format_time(row.ci_high_s)}"
