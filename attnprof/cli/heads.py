"""``attnprof heads``: cost against the number of heads, and the optimum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from attnprof.cli import options as opt
from attnprof.cli.crossover import DEFAULT, ensure_figure
from attnprof.cli.options import Format
from attnprof.cli.output import deliver, ensure_writable, environment, note
from attnprof.cli.request import one_of, some_of
from attnprof.cli.settings import configured
from attnprof.cli.sizes import parse_names, parse_size, parse_sizes
from attnprof.errors import RequestError
from attnprof.record import HeadsRecord, Report
from attnprof.symbolic.head_counts import KINDS, QUANTITIES, curves_of, divisors, heads_report
from attnprof.workload import DTYPES, SCOPES, Workload

if TYPE_CHECKING:
    from rich.console import RenderableType

CAPTION = (
    "published: the documents' printed head forms, entries as an idealised sum. formula: our "
    "closed forms of the shipped implementation, entries as the peak of what it holds."
)


def heads_(
    mechanisms: Annotated[
        list[str] | None,
        Argument(metavar="A B", help="Mechanisms (default taylor-direct taylor-efficient)."),
    ] = None,
    *,
    attention: opt.AttentionOption = None,
    d_model: Annotated[str, Option("--d-model", metavar="SIZE", help="Model width.")] = "512",
    seq: Annotated[str, Option("--seq", metavar="SIZE", help="Sequence length.")] = "1024",
    heads: Annotated[
        str | None, Option("--heads", metavar="SIZES", help="Only these; all divisors otherwise.")
    ] = None,
    batch: opt.BatchOption = "1",
    scope: opt.ScopeOption = "core",
    phase: opt.PhaseOption = "forward",
    kind: opt.KindOption = None,
    quantity: opt.QuantityOption = None,
    causal: opt.CausalOption = False,
    dtype: opt.DtypeOption = "float32",
    device: opt.DeviceOption = "auto",  # noqa: ARG001 - arithmetic needs no device
    settings: opt.SetOption = None,
    plot: opt.PlotOption = None,
    fmt: opt.FormatOption = Format.TABLE,
    output: opt.OutputOption = None,
) -> None:
    """FLOPs and entries against the number of heads at fixed model width.

    The real optimum in the head width is the root of the cost's derivative; the best divisor is
    the head count that can be built.

    Example: attnprof heads --d-model 256 --seq 1025
    """
    ensure_writable(output)
    ensure_figure(plot)
    width, length = parse_size(d_model, "--d-model"), parse_size(seq, "--seq")
    counts = _head_counts(heads, width)
    workload = Workload(
        length,
        1,
        width,
        parse_size(batch, "--batch"),
        causal=causal,
        phase=phase,
        dtype=one_of(dtype, DTYPES, "--dtype"),
    )
    curves = curves_of(
        configured(_names(mechanisms, attention), settings),
        workload,
        one_of(scope, SCOPES, "--scope"),
        some_of(kind, KINDS, "--kind"),
        some_of(quantity, QUANTITIES, "--quantity"),
    )
    found = heads_report(curves, width, length, counts, environment())
    if plot is not None:
        from attnprof.render.plots.heads import plot_heads

        plot_heads(found, plot)
        note(f"wrote {plot}")
    deliver(found, fmt, output, _tables)


def _names(arguments: list[str] | None, attention: str | None) -> list[str]:
    if arguments and attention:
        raise RequestError("name the mechanisms once: as A B, or as --attention A,B")
    if attention is not None:
        return parse_names(attention)
    return list(dict.fromkeys(arguments or DEFAULT))


def _head_counts(text: str | None, width: int) -> list[int]:
    possible = divisors(width)
    asked = possible if text is None else sorted(parse_sizes(text, "--heads"))
    wrong = [h for h in asked if width % h]
    if wrong:
        raise RequestError(
            f"--heads {wrong[0]}: does not divide d_model {width}; "
            f"possible: {', '.join(str(h) for h in possible[:24])}{', …' if possible[24:] else ''}"
        )
    return asked


def _tables(found: Report) -> list[RenderableType]:
    from rich.text import Text

    from attnprof.render.terminal import is_narrow, new_table
    from attnprof.units import format_count

    rows = [record for record in found.records if isinstance(record, HeadsRecord)]
    columns = list(dict.fromkeys((row.mechanism, row.quantity, row.kind) for row in rows))
    values = {(row.num_heads, row.mechanism, row.quantity, row.kind): row.value for row in rows}
    summary, short = found.summary, is_narrow()
    table = new_table(f"d_model {summary['d_model']:,}, seq {summary['seq_len']:,}")
    for name in ("heads", "d"):
        table.add_column(name, justify="right", no_wrap=True)
    for mechanism, quantity, kind in columns:
        unit = "FLOPs" if quantity == "flops" else "entries"
        table.add_column(f"{mechanism}\n{unit}, {kind}", justify="right", no_wrap=True)
    for h in sorted({row.num_heads for row in rows}):
        cells = [format_count(values[h, *column] or 0, short=short) for column in columns]
        table.add_row(f"{h:,}", f"{summary['d_model'] // h:,}", *cells)
    lines = [Text(line) for line in _optima(found)]
    return [table, *lines, Text(CAPTION, style="dim")]


def _optima(found: Report) -> list[str]:
    """One line a cost: how it goes with heads, the best divisor, the real optimum."""
    lines = []
    for one in found.summary["optima"]:
        what = "FLOPs" if one["quantity"] == "flops" else "entries"
        line = (
            f" {one['mechanism']} {what} ({one['kind']}): {one['trend']}; "
            f"best divisor {one['best_divisor']:,} heads"
        )
        if one["optimum_head_dim"] is not None:
            line += (
                f"; real optimum d = {one['optimum_head_dim']:.6f}, "
                f"{one['optimum_num_heads']:,.2f} heads ({one['equation']})"
            )
        lines.append(line)
    return lines
