"""What ``attnprof tradeoff --distill`` shows: a table a setting, then what 003 claims."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from attnprof.record import DistillRecord, Report
from attnprof.render.fitted import FittedTable, Hanging
from attnprof.render.terminal import shown_value
from attnprof.units import MISSING, plural

SETTINGS = {
    "fair": "fair: one loss, the same steps and batches for all students",
    "printed": "as printed: random rows for the source, one batch, the listing's losses",
}
COLUMNS = {
    "steps": "steps", "cross_entropy": "cross-entropy", "spread": "over seeds",
    "accuracy": "right", "kl_teacher": "KL", "mse_teacher": "MSE", "mse_ratio": "MSE ratio",
    "matmul_flops": "matmul FLOPs", "median_s": "time",
}  # fmt: skip
CLAIMS = ("claim", "says", "conditions suffice", "came out")
CAPTION = (
    "cross-entropy in nats, and share of right tokens, of the examples (fair: unseen sentences; as "
    "printed: the batch that is trained on); KL and MSE: divergence and mean squared error of the "
    "logits from the teacher's; MSE ratio: at this length over that at the trained one, smaller is "
    "better; matmul FLOPs by torch's counter and processor time on one thread, of a forward pass "
    "of the examples"
)


def distill_tables(report: Report) -> Iterator[RenderableType]:
    """A table a setting; then a row a claim."""
    records, scale = report.of(DistillRecord), report.summary["scale"]
    for setting, title in SETTINGS.items():
        rows = [row for row in records if row.setting == setting]
        if rows:
            yield _table(rows, f"{title}; {_sizes(scale)}")
    yield from (
        Hanging(f"not run: {row.setting}, {row.model} at {row.seq_len} tokens: {row.skipped}")
        for row in records if row.skipped
    )  # fmt: skip
    yield ""
    yield FittedTable(*CLAIMS, rows=claim_rows(report), title="What 003 claims", keys=1)
    yield Text(CAPTION, style="dim")


def _sizes(scale: Mapping[str, Any]) -> str:
    return f"trained at {scale['tokens']} tokens, width {scale['width']}"


def _table(rows: Sequence[DistillRecord], title: str) -> FittedTable:
    done = [row for row in rows if row.skipped is None]
    shown = {
        name: heading for name, heading in COLUMNS.items()
        if any(_cell(row, name) != MISSING for row in done)
    }  # fmt: skip
    cells = (
        [row.model, str(row.seq_len), *(_cell(row, name) for name in shown)] for row in done
    )  # fmt: skip
    right = ["seq", *shown.values()]
    seeds = plural(max(row.seeds for row in rows), "seed")
    return FittedTable(
        "model", "seq", *shown.values(), rows=cells, title=f"{title}, {seeds}", right=right, keys=2
    )


def _cell(row: DistillRecord, name: str) -> str:
    if name == "spread":
        ends = (row.cross_entropy_low, row.cross_entropy_high)
        both = [shown_value(end, "number") for end in ends if end is not None]
        return " to ".join(both) if row.seeds > 1 and both else MISSING
    value = getattr(row, name)
    formats = {field: meta["format"] for field, meta in row.columns()}
    return MISSING if value is None else shown_value(value, formats[name])


def claim_rows(report: Report) -> list[list[str]]:
    """A row a claim: what it says, whether the conditions suffice for it, what came out."""
    found: Sequence[Mapping[str, Any]] = report.summary["claims"]
    return [
        [
            one["claim"],
            one["says"],
            f"{'yes' if one['suffices'] else 'no'}: {one['conditions']}",
            one["came_out"],
        ]
        for one in found
    ]
