"""``attnprof heatmap``: the ratio of two costs over length and width, per head count."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from attnprof.cli import options as opt
from attnprof.cli.options import Format
from attnprof.cli.output import as_text, deliver, ensure_writable, environment, note
from attnprof.cli.request import one_of
from attnprof.cli.settings import configured
from attnprof.cli.sizes import parse_names, parse_size, parse_sizes
from attnprof.errors import RequestError
from attnprof.record import Report, write_whole
from attnprof.render.plots.save import check_figure_path, is_figure_path
from attnprof.symbolic.grid import Heatmap, heatmap_report
from attnprof.workload import DTYPES, SCOPES

if TYPE_CHECKING:
    from rich.console import RenderableType

POWERS = "1:1024:x2"
#: What a file's suffix says of its format, where --format does not.
FORMATS = {".json": Format.JSON, ".csv": Format.CSV, ".md": Format.MARKDOWN}


def heatmap(
    *,
    pair: Annotated[
        list[str] | None, Argument(metavar="[A B]", help="Two mechanisms: cost of A over B.")
    ] = None,
    attention: opt.AttentionOption = None,
    seq: opt.SeqOption = POWERS,
    d_model: opt.DModelsOption = POWERS,
    heads: opt.HeadCountsOption = "1,2,4,8",
    batch: opt.BatchOption = "1",
    d: Annotated[str | None, Option("--d", hidden=True)] = None,
    scope: opt.HeatmapScopeOption = None,
    phase: opt.PhaseOption = "train",
    kind: Annotated[str, Option("--kind", help="published or formula.")] = "published",
    quantity: Annotated[
        str | None, Option("--quantity", help="flops, matmul_flops, peak_bytes, … (default flops).")
    ] = None,
    convention: opt.ConventionOption = "flops",
    causal: opt.CausalOption = False,
    dtype: opt.DtypeOption = "float32",
    device: opt.DeviceOption = "auto",  # noqa: ARG001 - arithmetic needs no device
    settings: opt.SetOption = None,
    plot: opt.FigureBesideOption = None,
    fmt: opt.HeatmapFormatOption = None,
    output: opt.HeatmapOutputOption = None,
    force: opt.ForceOption = False,
) -> None:
    """Ratio of two costs over sequence length and model width, for several head counts.

    The table shows mean and maximum excess of A over B. A file named .png, .svg or .pdf is a
    figure with all head counts, and the cells as CSV beside it.

    Example: attnprof heatmap standard efficient --output ratio.png
    """
    if d is not None:
        raise RequestError("a heatmap's width axis is d_model: type --d-model 64,128, not --d")
    figures, data = _targets(plot, output, fmt, force=force)
    names = _pair(pair, attention)
    a, b = (configured(names, settings) * 2)[:2]
    asked = Heatmap(
        a=a,
        b=b,
        seq_lens=parse_sizes(seq or POWERS, "--seq"),
        d_models=parse_sizes(d_model, "--d-model"),
        num_heads=parse_sizes(heads, "--heads"),
        kind=kind,
        quantity=_quantity(quantity, convention, kind),
        phase=phase,
        scope=None if scope is None else one_of(scope, SCOPES, "--scope"),
        causal=causal,
        batch_size=parse_size(batch, "--batch"),
        dtype=one_of(dtype, DTYPES, "--dtype"),
    )
    report = heatmap_report(asked, environment())
    _note_missing(report)
    _draw(report, figures)
    by_suffix = FORMATS.get(data.suffix.lower()) if data else None
    deliver(report, fmt or by_suffix or Format.TABLE, data, _tables)


def _targets(
    plot: Path | None, output: Path | None, fmt: Format | None, *, force: bool
) -> tuple[list[Path], Path | None]:
    """Figures to draw and the file the data goes to, each known to be writable."""
    if plot is not None:
        check_figure_path(plot)
    figures = [path for path in (plot, output) if path is not None and is_figure_path(path)]
    data = None if is_figure_path(output) else output
    beside = [figure.with_suffix(".csv") for figure in figures]
    for path in figures:
        ensure_writable(path, force=force, flag="--output" if path is output else "--plot")
    for path in beside:
        ensure_writable(path, force=force, flag="the cells,")
    if data not in beside or fmt not in (None, Format.CSV):  # else it is the same table
        ensure_writable(data, force=force)
    return figures, data


def _pair(pair: list[str] | None, attention: str | None) -> list[str]:
    """Names of A and B, from the arguments or from --attention."""
    names = [*(pair or [])]
    if attention is not None:
        if names:
            raise RequestError("the pair is given twice: as arguments and as --attention")
        names = [name.strip() for name in attention.split(",")]
        parse_names(attention)  # refuses empty names
    if not names:
        return ["standard", "efficient"]
    if len(names) != 2:
        raise RequestError(
            f"a heatmap compares two mechanisms, not {len(names)}: "
            "type attnprof heatmap standard efficient"
        )
    return names


def _quantity(quantity: str | None, convention: str, kind: str) -> str:
    one_of(convention, ("flops", "operations"), "--convention")
    if convention == "flops":
        return quantity or "flops"
    if kind == "published":
        raise RequestError(
            "printed formulas count as their document does; leave --convention out, "
            "or use --kind formula --phase forward"
        )
    if quantity not in (None, "flops", "operations"):
        raise RequestError(
            f"--convention operations counts operations; leave --quantity {quantity} out"
        )
    return "operations"


def _note_missing(report: Report) -> None:
    missing = report.summary["not_divisible_d_model"]
    if not missing:
        return
    named = []
    for heads, widths in missing.items():
        shown = ", ".join(str(width) for width in widths[:6])
        more = f" and {len(widths) - 6} more" if len(widths) > 6 else ""
        named.append(f"{heads} heads: d_model {shown}{more}")
    note(
        f"{report.summary['null_cells']} of {report.summary['cells']} cells are empty and left out "
        f"of the mean, heads do not divide the width ({'; '.join(named)}); "
        "means of different head counts are over different cells"
    )


def _draw(report: Report, figures: list[Path]) -> None:
    if not figures:
        return
    from attnprof.render.plots.heatmap import plot_heatmap

    cells = as_text(report, "csv")
    for path in figures:
        plot_heatmap(report, path)
        beside = path.with_suffix(".csv")
        write_whole(beside, cells)
        note(f"wrote {path} and {beside}")


def _tables(report: Report) -> list[RenderableType]:
    """Mean and maximum excess, a line a head count."""
    from rich.text import Text

    from attnprof.render.terminal import new_table
    from attnprof.units import format_value

    summary = report.summary
    sources = dict.fromkeys(s for s in (summary["source_a"], summary["source_b"]) if s)
    table = new_table()
    for heading in ("heads", "mean excess [%]", "max excess [%]", "max at seq", "max at d_model"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heads, mean in summary["mean_excess_percent"].items():
        where: dict[str, Any] = summary["max_at"][heads] or {}
        table.add_row(
            heads,
            _percent(mean),
            _percent(summary["max_excess_percent"][heads]),
            format_value(where.get("seq_len"), "count"),
            format_value(where.get("d_model"), "count"),
        )
    title = (
        f"{summary['mechanism_a']} / {summary['mechanism_b']}: {summary['quantity']}, "
        f"{summary['kind']}{f' ({chr(44).join(sources)})' if sources else ''}, "
        f"phase {summary['phase']}, scope {summary['scope']}{', causal' * summary['causal']}"
    )
    meaning = (
        f"excess = 100·({summary['mechanism_a']} / {summary['mechanism_b']} − 1) over "
        f"{summary['cells'] - summary['null_cells']} cells; --plot FILE.png draws them, "
        "--format csv lists them"
    )
    return [Text(title, style="bold"), table, Text(meaning, style="dim")]


def _percent(value: float | None) -> str:
    from attnprof.units import MISSING

    return MISSING if value is None else f"{value:.2f}"
