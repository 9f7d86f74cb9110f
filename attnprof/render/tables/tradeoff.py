"""What ``attnprof tradeoff`` shows: a table an input, nearest first, and what its errors mean."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from rich.console import RenderableType
from rich.text import Text

from attnprof.record import Report, TradeoffRecord
from attnprof.record.escapes import markdown_text
from attnprof.record.points import names_of
from attnprof.render.fitted import FittedTable, Hanging
from attnprof.render.tables.distill import CLAIMS, claim_rows, distill_tables
from attnprof.render.terminal import shown_value
from attnprof.units import MISSING, joined, plural

#: Columns of numbers, with the format of their cells where it is not the record's.
COLUMNS = {
    "error_relative": "error", "spread": "over seeds", "error_worst_row": "worst row",
    "error_distribution": "weights", "flops": "FLOPs", "bytes_moved": "bytes",
    "peak_bytes": "peak", "median_s": "time",
}  # fmt: skip
CAPTION = (
    "error: ‖y - y₀‖ / ‖y₀‖ against softmax attention's output y₀ of the same q, k and v, in "
    "float64 (1: as far as an output of zeros); median, least to largest over draws of random "
    "weights; worst row: the same of the row that is furthest. weights: mean total variation of "
    "the rows' weights, half the sum of |a - p|, each row divided by its sum, of the first draw. "
    "FLOPs, bytes and peak by the closed forms of the core; time: processor time of a call where "
    "that is a CPU, one thread, calls in turns. * no other setting has both fewer FLOPs and a "
    "smaller error."
)


def tables(report: Report) -> Iterator[RenderableType]:
    """A table an input; then what could not run, and what the errors mean."""
    if report.command != "tradeoff":
        yield from distill_tables(report)
        return
    records = report.of(TradeoffRecord)
    yield from (Hanging(line) for line in report.summary["nearest"])
    yield ""
    for _, group in groupby(records, key=lambda r: (r.input, r.norms)):
        rows = list(group)
        yield _table(rows)
    yield from (Hanging(line) for line in _skipped(records))
    yield from (Hanging(line) for line in _meanings(report))
    yield Text(CAPTION, style="dim")


def page(report: Report) -> str:
    """The records as a Markdown table; of 003's experiment the claims, too."""
    from attnprof.render.formats import markdown_table, render_markdown

    text = render_markdown(report)
    if report.command == "tradeoff":
        return text
    rows = ([markdown_text(cell) for cell in row] for row in claim_rows(report))
    return f"{text}\n{markdown_table(CLAIMS, rows)}"


def _table(rows: Sequence[TradeoffRecord]) -> FittedTable:
    named = [replace(r, mechanism=name) for r, name in zip(rows, names_of(rows), strict=True)]
    done = [row for row in named if row.skipped is None]
    shown = {
        name: title for name, title in COLUMNS.items()
        if any(_cell(row, name) != MISSING for row in done)
    }  # fmt: skip
    first = rows[0]
    norms = f", norms: {first.norms}" if first.norms else ""
    sizes = f"batch {first.batch_size}, seq {first.seq_len:,}, {plural(first.num_heads, 'head')} "
    title = (
        f"{first.input}{norms}: {sizes}of {first.head_dim}{', causal' * first.causal}, times in "
        f"{first.dtype} on {first.device}"
    )
    done.sort(key=lambda row: row.error_relative or 0.0)
    cells = (
        [f"{row.mechanism}{' *' * bool(row.pareto)}", row.relation or MISSING,
         *(_cell(row, name) for name in shown)]
        for row in done
    )  # fmt: skip
    return FittedTable(
        "mechanism", "is", *shown.values(), rows=cells, right=[*shown.values()], keys=1,
        title=title,
    )  # fmt: skip


def _cell(row: TradeoffRecord, name: str) -> str:
    if name == "spread":
        if row.seeds < 2:
            return MISSING
        return f"{_error(row.error_relative_low)} to {_error(row.error_relative_high)}"
    value = getattr(row, name)
    if name.startswith("error"):
        return _error(value)
    formats = {field: meta["format"] for field, meta in row.columns()}
    return MISSING if value is None else shown_value(value, formats[name])


def _error(value: float | None) -> str:
    """A share in three digits; what is rounding in one."""
    if value is None:
        return MISSING
    return f"{value:.0e}" if 0 < value < 1e-4 else shown_value(float(value), "number")


def _skipped(records: Sequence[TradeoffRecord]) -> Iterator[str]:
    """Each reason once, with the mechanisms, and the inputs where these differ."""
    inputs = dict.fromkeys((row.input, row.norms) for row in records)
    reasons: dict[str, dict[tuple[str, str | None], list[str]]] = {}
    for row in records:
        if row.skipped:
            reason = row.skipped.removeprefix(f"{row.mechanism} ")
            names = reasons.setdefault(reason, {}).setdefault((row.input, row.norms), [])
            names += [row.mechanism] if row.mechanism not in names else []
    for reason, found in reasons.items():
        some = sorted(f"{name}{f' ({norms})' if norms else ''}" for name, norms in found)
        where = f" ({joined(some)})" if len(found) < len(inputs) else ""
        names = list(dict.fromkeys(name for its in found.values() for name in its))
        yield f"not compared{where}: {joined(names)}: {reason}"


def _meanings(report: Report) -> Iterator[str]:
    """What the mechanisms that ran are to softmax attention."""
    ran = {row.mechanism for row in report.of(TradeoffRecord) if row.skipped is None}
    said: dict[str, list[str]] = {}
    for name, (kind, why) in report.summary["relations"].items():
        if name in ran:
            told = f"{kind}: {why}" if kind else "it does not say what it is to softmax attention"
            said.setdefault(told, []).append(name)
    for told, names in said.items():
        yield f"{joined(names)}: {told}"
