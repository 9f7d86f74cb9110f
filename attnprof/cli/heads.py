"""``attnprof heads``: cost against the number of heads, and the optimum."""

from __future__ import annotations

from collections.abc import Iterator
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
    force: opt.ForceOption = False,
) -> None:
    """FLOPs and entries against the number of heads at fixed model width.

    The real optimum in the head width is the root of the cost's derivative; the best divisor is
    the head count that can be built.

    Example: attnprof heads --d-model 256 --seq 1025
    """
    ensure_writable(output, force=force)
    ensure_figure(plot, force=force)
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
    """A table a quantity (more where the terminal is narrow), then the optima."""
    from rich.text import Text

    rows = [record for record in found.records if isinstance(record, HeadsRecord)]
    title = f"d_model {found.summary['d_model']:,}, seq {found.summary['seq_len']:,}"
    parts: list[RenderableType] = []
    for quantity in dict.fromkeys(row.quantity for row in rows):
        some = [row for row in rows if row.quantity == quantity]
        parts += _values(f"{_unit(quantity)} against heads, {title}", some)
    real = [one for one in found.summary["optima"] if one["optimum_head_dim"] is not None]
    whose = "{mechanism}, {quantity}, {kind}"
    roots = [Text(f" {whose.format_map(one)}: root of {one['equation']}") for one in real]
    return [*parts, _optima(found), *roots, Text(CAPTION, style="dim")]


def _values(title: str, rows: list[HeadsRecord]) -> Iterator[RenderableType]:
    """One quantity: a row a head count, a column a mechanism and kind, as many as fit."""
    from attnprof.render.terminal import columns_that_fit, new_table
    from attnprof.units import MISSING, format_count

    columns = list(dict.fromkeys((row.mechanism, row.kind) for row in rows))
    texts = {(r.num_heads, r.mechanism, r.kind): format_count(r.value or 0) for r in rows}
    widths = {row.num_heads: row.head_dim for row in rows}
    widest = max(len(text) for text in (*texts.values(), *(name for name, _ in columns)))
    at_once = columns_that_fit(widest, beside=2 * (len(f"{max(widths):,}") + 4))
    for first in range(0, len(columns), at_once):
        some = columns[first : first + at_once]
        table = new_table(title)
        for heading in ("heads", "d", *("\n".join(column) for column in some)):
            table.add_column(heading, justify="right", no_wrap=True)
        for h in sorted(widths):
            cells = [texts.get((h, *column), MISSING) for column in some]
            table.add_row(f"{h:,}", f"{widths[h]:,}", *cells)
        yield table


def _unit(quantity: str) -> str:
    return "FLOPs" if quantity == "flops" else "Entries"


def _optima(found: Report) -> RenderableType:
    """One row a cost: how it goes with heads, the best divisor, the real optimum."""
    from attnprof.render.terminal import new_table
    from attnprof.units import MISSING

    table = new_table("Optimum")
    for heading in ("mechanism", "quantity", "kind"):
        table.add_column(heading, no_wrap=True)
    table.add_column("over heads", overflow="fold")
    for heading in ("best divisor", "real d", "real heads"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in found.summary["optima"]:
        best = f"{one['best_divisor']:,} head{'s' * (one['best_divisor'] > 1)}"
        real = [MISSING] * 2
        if one["optimum_head_dim"] is not None:
            real = [f"{one['optimum_head_dim']:.6f}", f"{one['optimum_num_heads']:,.2f}"]
        quantity = _unit(one["quantity"])
        table.add_row(one["mechanism"], quantity, one["kind"], one["trend"], best, *real)
    return table
