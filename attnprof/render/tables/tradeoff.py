"""Tables of ``attnprof tradeoff``: one an input, nearest first; or document 003's experiment."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from attnprof.record import DistillRecord, Report, TradeoffRecord
from attnprof.record.escapes import markdown_text
from attnprof.record.measured import named_results
from attnprof.render.terminal import (
    Cell,
    FittedTable,
    Hanging,
    field_text,
    record_table,
    shown_value,
)
from attnprof.units import MISSING, joined, plural

#: Heading of each column, by its field or a name that :func:`_cell` knows.
COLUMNS = {
    "error_relative": "error", "spread": "over seeds", "error_worst_row": "worst row",
    "error_distribution": "weights", "flops": "FLOPs", "bytes_moved": "bytes",
    "peak_bytes": "peak", "median_s": "time",
}  # fmt: skip
MEANING = (
    "error: ‖y - y₀‖ / ‖y₀‖ against softmax attention's output y₀ of the same q, k and v, in "
    "float64 (1: as far as an output of zeros); median, least to largest over draws of random "
    "weights; worst row: the same of the row that is furthest. weights: mean total variation of "
    "the rows' weights, half the sum of |a - p|, each row divided by its sum, of the first draw. "
    "FLOPs, bytes and peak by the closed forms of the core; time: processor time of a call where "
    "that is a CPU, one thread, calls in turns. * no other setting has both fewer FLOPs and a "
    "smaller error."
)


def tables(report: Report) -> Iterator[RenderableType]:
    """Yield a table an input; then skipped candidates, and how to read the errors."""
    if report.command != "tradeoff":
        yield from _distill_tables(report)
        return
    records = report.of(TradeoffRecord)
    yield from map(Hanging, report.summary["nearest"])
    yield ""
    for _, group in groupby(records, key=lambda r: (r.input, r.norms)):
        yield _table(list(group))
    yield from map(Hanging, [*_skipped(records), *_meanings(report)])
    yield Text(MEANING, style="dim")


def page(report: Report, **_how: object) -> str:
    """Return the records as a Markdown table; of 003's experiment the claims, too."""
    from attnprof.render.formats import markdown_table, render_markdown

    text = render_markdown(report)
    if report.command == "tradeoff":
        return text
    rows = ([markdown_text(cell) for cell in row] for row in claim_rows(report))
    return f"{text}\n{markdown_table(CLAIMS, rows)}"


def _table(rows: Sequence[TradeoffRecord]) -> FittedTable:
    done, first = named_results(rows), rows[0]
    norms = f", norms: {first.norms}" if first.norms else ""
    sizes = f"batch {first.batch_size}, seq {first.seq_len:,}, {plural(first.num_heads, 'head')} "
    title = (
        f"{first.input}{norms}: {sizes}of {first.head_dim}{', causal' * first.causal}, times in "
        f"{first.dtype} on {first.device}"
    )
    done.sort(key=lambda row: row.error_relative or 0.0)
    names: dict[str, Cell] = {
        "mechanism": lambda row: f"{row.mechanism}{' *' * bool(row.pareto)}", "is": "relation",
    }  # fmt: skip
    shown = _filled_columns(done, COLUMNS, _cell)
    return record_table(done, {**names, **shown}, right=shown, title=title)


def _filled_columns(
    records: Sequence[Any], columns: Mapping[str, str], cell: Callable[..., str]
) -> dict[str, Cell]:
    """Return the columns in which a record has a value, by heading."""
    return {
        heading: partial(cell, name=name) for name, heading in columns.items()
        if any(cell(record, name) != MISSING for record in records)
    }  # fmt: skip


def _cell(row: TradeoffRecord, name: str) -> str:
    if name == "spread":
        ends = map(_error, (row.error_relative_low, row.error_relative_high))
        return MISSING if row.seeds < 2 else " to ".join(ends)
    return _error(getattr(row, name)) if name.startswith("error") else field_text(row, name)


def _error(value: float | None) -> str:
    """Return a share in three digits; in one digit if it is tiny."""
    if value is None:
        return MISSING
    return f"{value:.0e}" if 0 < value < 1e-4 else shown_value(float(value), "number")


def _skipped(records: Sequence[TradeoffRecord]) -> Iterator[str]:
    """Yield each reason once, with the mechanisms, and the inputs unless it is all of them."""
    inputs = dict.fromkeys((row.input, row.norms) for row in records)
    reasons: dict[str, dict[tuple[str, str | None], list[str]]] = {}
    for row in records:
        if row.skipped:
            reason = row.skipped.removeprefix(f"{row.mechanism} ")
            names = reasons.setdefault(reason, {}).setdefault((row.input, row.norms), [])
            names += [row.mechanism] if row.mechanism not in names else []
    for reason, rows_by_input in reasons.items():
        some = sorted(f"{name}{f' ({norms})' if norms else ''}" for name, norms in rows_by_input)
        where = f" ({joined(some)})" if len(rows_by_input) < len(inputs) else ""
        names = list(dict.fromkeys(name for its in rows_by_input.values() for name in its))
        yield f"not compared{where}: {joined(names)}: {reason}"


def _meanings(report: Report) -> Iterator[str]:
    """Yield how the mechanisms that ran are related to softmax attention."""
    ran = {row.mechanism for row in report.of(TradeoffRecord) if row.skipped is None}
    said: dict[str, list[str]] = {}
    for name, (kind, why) in report.summary["relations"].items():
        if name in ran:
            meaning = (
                f"{kind}: {why}" if kind else "it does not say what it is to softmax attention"
            )
            said.setdefault(meaning, []).append(name)
    for meaning, names in said.items():
        yield f"{joined(names)}: {meaning}"


SETTINGS = {
    "fair": "fair: one loss, the same steps and batches for all students",
    "printed": "as printed: random rows for the source, one batch, the listing's losses",
}
TRAINED = {
    "steps": "steps", "cross_entropy": "cross-entropy", "spread": "over seeds",
    "accuracy": "right", "kl_teacher": "KL", "mse_teacher": "MSE", "mse_ratio": "MSE ratio",
    "matmul_flops": "matmul FLOPs", "median_s": "time",
}  # fmt: skip
CLAIMS = ("claim", "says", "conditions suffice", "came out")
OF_STUDENTS = (
    "cross-entropy in nats, and share of right tokens, of the examples (fair: unseen sentences; as "
    "printed: the batch that is trained on); KL and MSE: divergence and mean squared error of the "
    "logits from the teacher's; MSE ratio: at this length over that at the trained one, smaller is "
    "better; matmul FLOPs by torch's counter and processor time on one thread, of a forward pass "
    "of the examples"
)


def _distill_tables(report: Report) -> Iterator[RenderableType]:
    """Yield a table a setting; then a row a claim."""
    records, scale = report.of(DistillRecord), report.summary["scale"]
    for setting, named in SETTINGS.items():
        if rows := [row for row in records if row.setting == setting]:
            sizes = f"trained at {scale['tokens']} tokens, width {scale['width']}"
            seeds = plural(max(row.seeds for row in rows), "seed")
            done = [row for row in rows if row.skipped is None]
            shown = _filled_columns(done, TRAINED, _student_cell)
            columns: dict[str, Cell] = {"model": "model", "seq": lambda row: str(row.seq_len)}
            title, right = f"{named}; {sizes}, {seeds}", ["seq", *shown]
            yield record_table(done, {**columns, **shown}, right=right, title=title, keys=2)
    yield from (
        Hanging(f"not run: {row.setting}, {row.model} at {row.seq_len} tokens: {row.skipped}")
        for row in records if row.skipped
    )  # fmt: skip
    yield ""
    yield FittedTable(*CLAIMS, rows=claim_rows(report), title="What 003 claims")
    yield Text(OF_STUDENTS, style="dim")


def _student_cell(row: DistillRecord, name: str) -> str:
    if name == "spread":
        ends = (row.cross_entropy_low, row.cross_entropy_high)
        both = [shown_value(end, "number") for end in ends if end is not None]
        return " to ".join(both) if row.seeds > 1 and both else MISSING
    return field_text(row, name)


def claim_rows(report: Report) -> list[list[str]]:
    """Return a row a claim: its words, whether the conditions suffice, the result."""
    return [
        [one["claim"], one["says"], f"{'yes' if one['suffices'] else 'no'}: {one['conditions']}",
         one["came_out"]]
        for one in report.summary["claims"]
    ]  # fmt: skip
