"""``attnprof heatmap``: the ratio of two costs over length and width, per head count."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from attnprof.cli import options as opt
from attnprof.cli.request import Conditions, names_of, parse_size, parse_sizes
from attnprof.closed_form.heatmap import Heatmap, heatmap_report
from attnprof.closed_form.quantities import QUANTITIES, STEP_BYTES
from attnprof.errors import RequestError
from attnprof.record import Report, write_whole
from attnprof.render.plots.style import check_figure_path, is_figure_path

POWERS = "1:1024:x2"
#: Default path of the figure.
FIGURE = Path("heatmap.png")


@dataclass(frozen=True, kw_only=True)
class Written:
    """Flags for how the ratios are written and drawn, and where; a bad path is refused at once."""

    plot: Path | None = opt.flag(
        "FILE", "The figure (.png, .svg, .pdf), its cells as CSV beside it (default heatmap.png)."
    )
    no_plot: bool = opt.switch("--no-plot", "The table alone: write no files.")
    size: opt.SizeOption = "page"
    fmt: opt.Format | None = opt.flag(
        "FORMAT", "table; or json, csv, markdown or html, without a figure but for --plot "
        "(default: as FILE ends, or table).",
        "--format", "-f",
    )  # fmt: skip
    output: Path | None = opt.flag(
        "FILE", "Write data (- is stdout) or a figure there, and nothing else without --plot.",
        "--output", "-o",
    )  # fmt: skip
    force: opt.ForceOption = False
    exact: opt.ExactOption = False

    def targets(self) -> tuple[list[Path], Path | None]:
        """Return the figures to draw and the data's file, once all are known to be writable."""
        if self.plot is not None:
            check_figure_path(self.plot)
        figures = [path for path in (self.plot, self.output) if path and is_figure_path(path)]
        if self.no_plot and figures:
            raise RequestError(f"--no-plot writes no figure: leave it out, or {figures[0]}")
        unnamed = self.plot is self.output is None and self.fmt in (None, opt.Format.TABLE)
        if by_default := unnamed and not self.no_plot:
            figures = [FIGURE]
        data = None if is_figure_path(self.output) else opt.file_of(self.output)
        tables = [figure.with_suffix(".csv") for figure in figures]
        try:
            for path in figures:
                flag = "--output" if path is self.output else "--plot"
                opt.ensure_writable(path, force=self.force, flag=flag)
            for path in tables:
                opt.ensure_writable(path, force=self.force, flag="the cells,")
        except RequestError as error:
            hint = ", or type --plot FILE, or --no-plot for the table alone" if by_default else ""
            raise RequestError(f"{error}{hint}") from error
        if data not in tables or self.fmt not in (None, opt.Format.CSV):  # else it is that table
            opt.ensure_writable(data, force=self.force)
        return figures, data

    def deliver(self, report: Report, figures: Sequence[Path], data: Path | None) -> None:
        """Draw the report, write its cells next to each figure, and print it."""
        from attnprof.render.formats import render_csv

        for path in figures:
            opt.draw(report, path, self.size)
            table = path.with_suffix(".csv")
            write_whole(table, render_csv(report))
            opt.note(f"wrote {path} and {table}")
        opt.deliver(report, self.fmt or opt.format_of(data), data, exact=self.exact)


def heatmap(
    *,
    pair: list[str] | None = Argument(
        None, metavar="[A B]", help="Two mechanisms: cost of A over B."
    ),
    attention: opt.AttentionOption = None,
    seq: opt.SeqOption = POWERS,
    d_model: str = opt.flag("SIZES", "Model widths: a list or a range.", default=POWERS),
    heads: str = opt.flag("SIZES", "Head counts, a panel each.", default="1,2,4,8"),
    d: str | None = Option(None, hidden=True),
    conditions: Conditions = Conditions(phase="train"),  # as the document's heatmaps show it
    scope: Annotated[str | None, opt.scope("core or layer (default of --kind formula).")] = None,
    kind: str = opt.flag("KIND", "published or formula.", default="published"),
    quantity: str | None = opt.flag("NAME", "Like matmul_flops or peak_bytes (default flops)."),
    convention: opt.ConventionOption = "flops",
    to: Written,
) -> None:
    """Draw the ratio of two costs over length and model width.

    The table shows mean and maximum excess of A over B. Every cell is written to heatmap.csv in
    the current folder, and drawn in heatmap.png, a panel a head count; --plot gives other names.
    Files that attnprof wrote are replaced.

    Examples:
      attnprof heatmap standard efficient --plot ratio.png
      attnprof heatmap standard linear --kind formula --phase forward
      attnprof heatmap --seq 64:1024:x2 --heads 1,8 --format csv
    """
    if d is not None:
        raise RequestError("a heatmap's width axis is d_model: type --d-model 64,128, not --d")
    targets = to.targets()
    a, b = (conditions.configured(_pair(pair, attention)) * 2)[:2]
    wanted = Heatmap(
        a=a, b=b, seq_lens=parse_sizes(seq or "", "--seq"), scope=scope, kind=kind,
        d_models=parse_sizes(d_model, "--d-model"), num_heads=parse_sizes(heads, "--heads"),
        quantity=_quantity(quantity, convention, kind), phase=conditions.phase,
        causal=conditions.causal, batch_size=parse_size(conditions.batch, "--batch"),
        dtype=conditions.dtype,
    )  # fmt: skip
    with opt.working("counting the cells of the heatmap"):
        report = heatmap_report(wanted, opt.environment())
    _note_missing(report)
    to.deliver(report, *targets)


def _pair(pair: list[str] | None, attention: str | None) -> list[str]:
    """Return the names of A and B, from the arguments or --attention; both may be the same."""
    names = names_of(pair or (), attention) or ["standard", "efficient"]
    count = len(pair or names) if attention is None else attention.count(",") + 1
    if count != 2:
        raise RequestError(
            f"a heatmap compares two mechanisms, not {count}: "
            "type attnprof heatmap standard efficient"
        )
    return names


def _quantity(quantity: str | None, convention: str, kind: str) -> str:
    """Return the quantity to compare; RequestError if the convention does not go with it."""
    if convention == "flops":
        possible = (*QUANTITIES, STEP_BYTES)
        return "flops" if quantity is None else opt.one_of(quantity, possible, "--quantity")
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
    named = []
    for heads, widths in report.summary["not_divisible_d_model"].items():
        shown = ", ".join(map(str, widths[:6]))
        more = f" and {len(widths) - 6} more" if len(widths) > 6 else ""
        named.append(f"{heads} heads: d_model {shown}{more}")
    if named:
        opt.note(
            f"{report.summary['null_cells']} of {report.summary['cells']} cells are empty and left "
            f"out of the mean, heads do not divide the width ({'; '.join(named)}); "
            "means of different head counts are over different cells"
        )
