"""The tables of ``attnprof heads``: a quantity each, then the optima."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from attnprof.record import HeadsRecord, Report
from attnprof.render.fitted import FittedTable
from attnprof.render.formulas import FormulaText
from attnprof.render.terminal import answer_line, quantity_value
from attnprof.units import MISSING, joined, plural

CAPTION = (
    "published: as printed in the papers, entries added up; formula: closed forms of the code that "
    "attnprof ships, entries as the most it holds at once. The real optimum is where the cost's "
    "derivative is 0, as if heads could be a fraction."
)
EQUATION = "equation of the best real head width d"
UNITS = {"flops": "FLOPs", "peak_entries": "Entries"}


def tables(report: Report, conditions: str) -> Iterator[RenderableType]:
    """A table a quantity, its title with the conditions; then the optima."""
    yield from answer_line(report)
    rows = report.of(HeadsRecord)
    for quantity in dict.fromkeys(row.quantity for row in rows):
        some = [row for row in rows if row.quantity == quantity]
        yield _values(f"{UNITS[quantity]} by number of heads: {conditions}", some)
    yield _optima(report)
    found = [one for one in report.summary["optima"] if one["optimum_head_dim"] is not None]
    if found:
        names = (f"{one['mechanism']}, {one['kind']} {UNITS[one['quantity']]}" for one in found)
        forms = (FormulaText(one["equation"]) for one in found)
        cells = zip(names, forms, strict=True)
        yield FittedTable("", EQUATION, rows=cells)
    yield Text(CAPTION, style="dim")


def _values(title: str, rows: list[HeadsRecord]) -> FittedTable:
    """One quantity: a row a head count, a column a mechanism and kind."""
    columns = list(dict.fromkeys((row.mechanism, row.kind) for row in rows))
    texts = {
        (r.num_heads, r.mechanism, r.kind): quantity_value(r.value or 0, r.quantity) for r in rows
    }
    widths = {row.num_heads: row.head_dim for row in rows}
    headings = ("heads", "d", *("\n".join(column) for column in columns))
    cells = (
        [f"{h:,}", f"{widths[h]:,}", *(texts.get((h, *column), MISSING) for column in columns)]
        for h in sorted(widths)
    )
    return FittedTable(*headings, rows=cells, title=title, right=headings, keys=2)


def _optima(report: Report) -> RenderableType:
    """One row a cost: how it goes with heads, the best divisor, the real optimum."""
    numbers = ("best divisor", "real d", "real heads")
    table = FittedTable("mechanism", "quantity", "kind", "over heads", *numbers, title="Optimum",
                        right=numbers, keys=3)  # fmt: skip
    for one in report.summary["optima"]:
        *first, last = one["best_divisors"]
        best = joined([*map(str, first), plural(last, "head")], "or")
        best = "any" if one["trend"].startswith("is constant") else best
        width, heads = one["optimum_head_dim"], one["optimum_num_heads"]
        real = [MISSING] * 2 if width is None else [f"{width:.6f}", f"{heads:,.2f}"]
        quantity = UNITS[one["quantity"]]
        table.add_row(one["mechanism"], quantity, one["kind"], one["trend"], best, *real)
    return table
