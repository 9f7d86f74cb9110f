"""``attnprof compare``: one table, the winner marked in each column."""

from __future__ import annotations

from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from attnprof import registry
from attnprof.cli import options as opt
from attnprof.cli.options import Format
from attnprof.cli.output import deliver, ensure_writable, environment
from attnprof.cli.request import closed_form_request, one_of, some_of
from attnprof.record import CompareRecord, Report
from attnprof.symbolic.totals import CONTESTED, compare_records

if TYPE_CHECKING:
    from rich.console import RenderableType

TITLES = {
    "flops": "FLOPs",
    "matmul_flops": "matmul FLOPs",
    "operations": "operations",
    "bytes_moved": "bytes moved",
    "peak_bytes": "peak memory",
    "parameters": "parameters",
    "state_bytes": "state",
}
WON = "*"
#: Columns that fit a terminal of 80 characters; the others follow in a second table.
NARROW_COLUMNS = 4


def compare(
    *,
    attention: opt.AttentionOption = None,
    seq: opt.SeqsOption = "1024",
    d_model: opt.DModelOption = None,
    heads: opt.HeadsOption = None,
    batch: opt.BatchOption = "1",
    d: opt.HeadDimOption = None,
    scope: opt.ScopeOption = "layer",
    phase: opt.PhaseOption = "forward",
    kind: opt.KindOption = None,
    quantity: opt.QuantityOption = None,
    convention: opt.ConventionOption = "flops",
    causal: opt.CausalOption = False,
    dtype: opt.DtypeOption = "float32",
    device: opt.DeviceOption = "auto",  # noqa: ARG001 - arithmetic needs no device
    settings: opt.SetOption = None,
    fmt: opt.FormatOption = Format.TABLE,
    output: opt.OutputOption = None,
    force: opt.ForceOption = False,
) -> None:
    """Mechanisms side by side for the same workload; the lowest of each column is marked.

    All shipped mechanisms where --attention is left out. One that cannot do what is asked is a
    row with the reason.

    Example: attnprof compare --attention standard,efficient,sdpa --seq 1024,4096 --causal
    """
    ensure_writable(output, force=force)
    some_of(kind, ("formula",), "--kind")
    one_of(convention, ("flops", "operations"), "--convention")
    shown = some_of(quantity, CONTESTED, "--quantity")
    request = closed_form_request(
        attention or ",".join(registry.names()), seq, d_model=d_model, heads=heads, d=d,
        batch=batch, scope=scope, phase=phase, causal=causal, dtype=dtype, settings=settings,
    )  # fmt: skip
    records = compare_records(request.mechanisms, request.workloads, scope)
    report = Report("compare", records, {"winners": _winners(records)}, environment())
    deliver(report, fmt, output, partial(_tables, shown=shown))


def _winners(records: list[CompareRecord]) -> dict[str, dict[str, list[str]]]:
    """By length and quantity, who is lowest."""
    found: dict[str, dict[str, list[str]]] = {}
    for record in records:
        for name in record.wins.split(",") if record.wins else ():
            found.setdefault(str(record.seq_len), {}).setdefault(name, []).append(record.mechanism)
    return found


def _tables(report: Report, shown: list[str]) -> list[RenderableType]:
    from rich.text import Text

    rows = [record for record in report.records if isinstance(record, CompareRecord)]
    blocks: list[RenderableType] = []
    for _, group in groupby(rows, key=lambda record: record.seq_len):
        blocks += _block(list(group), shown)
    caption = (
        f"{WON} lowest of its column. FLOPs as executed, masked entries included; operations as "
        "defined (002: k-1 additions a dot product). Peak: increment over what was live before "
        "the call. State: what a decoder keeps after this many tokens."
    )
    return [*blocks, Text(caption, style="dim")]


def _block(rows: list[CompareRecord], shown: list[str]) -> list[RenderableType]:
    from rich.text import Text

    from attnprof.render.terminal import is_narrow, new_table

    names = [name for name in shown if any(getattr(row, name) is not None for row in rows)]
    short = is_narrow()
    at_once = NARROW_COLUMNS if short else len(names)
    tables: list[RenderableType] = []
    for first in range(0, len(names), at_once):
        table, some = new_table(), names[first : first + at_once]
        table.add_column("mechanism", overflow="fold")
        for name in some:
            table.add_column(TITLES[name], justify="right", no_wrap=True)
        for row in rows:
            if not row.skipped:
                table.add_row(row.mechanism, *(_cell(row, name, short=short) for name in some))
        tables.append(table)
    refused = [Text(f" skipped: {row.skipped}") for row in rows if row.skipped]
    return [Text(_title(rows[0]), style="bold"), *tables, *refused, *([Text()] if refused else [])]


def _cell(row: CompareRecord, name: str, *, short: bool) -> RenderableType:
    from rich.text import Text

    from attnprof.units import format_value

    fmt = "bytes" if name in ("peak_bytes", "bytes_moved", "state_bytes") else "count"
    text = format_value(getattr(row, name), fmt, short=short)
    won = name in row.wins.split(",")
    return Text(f"{text} {WON if won else ' '}", style="bold green" if won else "")


def _title(row: CompareRecord) -> str:
    mask = ", causal" if row.causal else ""
    return (
        f"{row.scope}, {row.phase}{mask}, batch {row.batch_size}, seq {row.seq_len:,}, "
        f"d_model {row.d_model:,}, {row.num_heads} heads of {row.head_dim}, "
        f"{row.dtype}"
    )
