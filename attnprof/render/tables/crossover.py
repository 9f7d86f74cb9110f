"""The table of ``attnprof crossover`` (:func:`crossover_tables`), with remarks below it.

A row is a fixed size (head width or length), a metric and a kind. Words that all rows share stand
once, above.
"""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from attnprof import units
from attnprof.arguments import LARGEST
from attnprof.record import CrossoverRecord, Report
from attnprof.record.crossovers import everywhere
from attnprof.render.terminal import FittedTable, FormulaText, Hanging, shown_value
from attnprof.units import MISSING, amount, format_count, label, plural, quantity_text

#: Metrics whose column says more than their name and unit.
_UNITS = {
    "flops": "FLOPs", "matmul": "matmul FLOPs", "time": "time", "bytes": "bytes a step",
}  # fmt: skip
#: Explanation of each kind, below the table.
MEANING = {
    "published": "as printed in the papers, memory as a sum of entries",
    "formula": "closed forms of the code as it runs, memory as its peak",
    "derived": "counted in the running code",
    "predicted": "times of single operations as calibrate measured them, one after the other",
    "measured": "peaks of the allocator, times of calls in turns",
}
FIRST_LENGTH = "from token: from this length on, the one that is cheaper above costs no more"
FIRST_VALUE = "from: from this value on, the one that is cheaper above costs no more"


def crossover_tables(report: Report, more: str = "") -> Iterator[RenderableType]:
    """Yield a row a head width, metric and kind; ``more`` is a paragraph below."""
    rows = report.of(CrossoverRecord)
    one, by_width = rows[0], rows[0].over == "seq"
    where = " ".join((one.scope, *filter(None, [report.summary.get("model")])))
    title = (
        f"{label(one.mechanism_a, one.params_a)} against {label(one.mechanism_b, one.params_b)}\n"
        f"{where}, {one.phase}{', causal' * one.causal}, {', '.join(_sizes(one))}"
    )
    column, first = ("d", "from token") if by_width else ("tokens", "from")
    numeric = (column, "crossover", first)
    headings = [column, "metric", "kind", "crossover", first, "below", "above"]
    if sides := _sides_sentence(rows):  # said once
        title, headings = f"{title}\n{sides}", headings[:-2]
    cells = (_cells(row)[: len(headings)] for row in rows)
    yield FittedTable(*headings, rows=cells, title=title, right=numeric, keys=3)
    if forms := _form_rows(rows):
        yield FittedTable("", "closed form of the crossover", rows=forms)
    yield from map(Hanging, _remarks(rows))
    kinds = dict.fromkeys(row.kind for row in rows)
    caption = [f"{kind}: {MEANING[kind]}" for kind in kinds]
    if made_of := report.summary.get("made_of"):
        caption.append(f"calibrated: {made_of}")
    if any(row.ci_low or row.ci_high for row in rows):
        caption.append("in brackets: an interval of 95 %")
    if "published" in kinds and len(kinds) > 1:
        caption.append("published memory is another quantity than the rest")
    yield Text("; ".join([*caption, FIRST_LENGTH if by_width else FIRST_VALUE]), style="dim")
    if more:
        yield Text(f" {more}")


def _sizes(row: CrossoverRecord) -> list[str]:
    """Return the fixed sizes, and the varying one: ``["1 head of width 64", "over window"]``."""
    batch = [] if row.batch_size is None else [f"batch {row.batch_size}"]
    heads = plural(row.num_heads or 1, "head")
    if row.over == "seq":
        return [*batch, f"{heads} of width d"]
    width = f"d_model {row.d_model}" if row.d_model else f"head width {row.head_dim}"
    sizes = {"d": heads, "heads": width}.get(row.over, f"{heads} of width {row.head_dim}")
    return [*batch, sizes, f"over {units.NAMES.get(row.over, row.over)}"]


def _sides_sentence(rows: list[CrossoverRecord]) -> str:
    """Return who is cheaper below and above, if it is the same in every row; else ""."""
    pairs = {(row.cheaper_below, row.cheaper_above) for row in rows if not row.skipped}
    below, above = pairs.pop() if len(pairs) == 1 else (None, None)
    if below is None or above is None:
        return ""
    several = any(row.verdict == "several" for row in rows)
    if below == above and not several:
        return f"{below} is cheaper {everywhere([row for row in rows if not row.skipped])}."
    if several:
        return f"Below the first crossover {below} is cheaper, above the last one {above}."
    return f"Below the crossover {below} is cheaper, above it {above}."


def _cells(row: CrossoverRecord) -> list[str]:
    unit = _UNITS.get(row.metric, f"{row.metric}, {row.unit}")
    size = str(row.fixed_size) if row.over == "seq" else format_count(row.fixed_size)
    if row.skipped:
        return [size, unit, row.kind, "skipped", *[MISSING] * 3]
    whole = row.method == "searched"  # a search knows whole lengths
    at = row.verdict
    if row.crossover_value is not None:
        at = shown_value(row.crossover_value, "count" if whole else "length")
        if row.unit == "s":
            at = _interval_text(row)
    first = MISSING if row.first_value is None else format_count(row.first_value)
    sides = row.cheaper_below or "equal", row.cheaper_above or "equal"
    return [size, unit, row.kind, at, first, *sides]


def _interval_text(row: CrossoverRecord) -> str:
    """Return ``1,240 (1,180 to 1,310)``; an end that is not known is ``…``."""
    at, low, high = (
        "…" if x is None else format_count(round(x))
        for x in (row.crossover_value, row.ci_low, row.ci_high)
    )
    return at if row.ci_low is None and row.ci_high is None else f"{at} ({low} to {high})"


def _metric_label(metric: str, kind: str) -> str:
    return f"{quantity_text(metric)} ({kind})"


def _form_rows(rows: list[CrossoverRecord]) -> list[list[str | Text]]:
    """Return the closed forms, each with its head widths if it does not hold for all rows."""
    widths: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        if row.closed_form:
            form = (row.metric, row.kind, row.closed_form)
            widths.setdefault(form, []).append(str(row.fixed_size))
    count = len({row.fixed_size for row in rows})
    letter = "d" if rows[0].over == "seq" else "N"
    return [
        [_metric_label(metric, kind)
         + (f", {letter} = {', '.join(widths_of_form)}" if len(widths_of_form) < count else ""),
         FormulaText(form)]
        for (metric, kind, form), widths_of_form in widths.items()
    ]  # fmt: skip


def _searched_text(row: CrossoverRecord) -> str:
    """Return the lengths that a verdict covers.

    ``never between 64 and 4,096 tokens, in steps of 64``
    """
    crosses = row.verdict not in ("never", "always")
    whole = [[1, None], [2, None]] if crosses else [[1, None]]
    if not row.searched or (row.searched_step == 1 and row.searched[0] in whole):
        return ""
    word = "searched" if crosses else row.verdict
    steps = f", in steps of {row.searched_step}" if row.searched_step != 1 else ""
    ends = (
        f"from {amount(row.over, low)} on" if high is None else f"between {_span(row, low, high)}"
        for low, high in row.searched
        if low is not None
    )
    known = ", where both costs are known" * (row.over == "seq")
    return f"{word} {' and '.join(ends)}{steps}{known}"


def _span(row: CrossoverRecord, low: int, high: int) -> str:
    """Return ``64 and 4,096 tokens``, ``head widths 8 and 64``, ``window 1 and 64``."""
    if row.over in units.COUNTED:
        return f"{low:,} and {amount(row.over, high)}"
    return f"{amount(row.over, low)} and {high:,}"


def _timed_text(row: CrossoverRecord) -> str:
    """Return the number and range of lengths that were timed or predicted, and the calls."""
    noun, unit = ("length", " tokens") if row.over == "seq" else ("value", "")
    ends = f"{plural(len(row.lengths), noun)} from {row.lengths[0]:,} to {row.lengths[-1]:,}"
    calls = f" by {plural(row.timed_calls, 'call')}" if row.timed_calls else ""
    verdict = f"{row.verdict}; " if row.verdict in ("never", "always") else ""
    longer = "longer one" if row.over == "seq" else "larger one"
    why = f"; no {longer} was: {row.bound}" if row.bound else ""
    verb = "predicted" if row.kind == "predicted" else "timed"
    return f"{verdict}{ends}{unit} {verb}{calls}{why}"


def _remarks(rows: list[CrossoverRecord]) -> list[str]:
    """Return remarks below the table: several crossings, refusals, ranges, formulas' sources."""
    remarks, ranges = [], dict[str, list[str]]()
    for row in rows:
        letter = "d" if row.over == "seq" else "N"
        name = f"{letter}={row.fixed_size} {_metric_label(row.metric, row.kind)}"
        if row.verdict == "several" and not row.skipped:
            fmt = "count" if row.method == "searched" else "length"
            shown = ", ".join(shown_value(x, fmt) for x in row.all_crossings[:8])
            more = ", …" if len(row.all_crossings) > 8 else ""
            remarks.append(f"{name}: crosses {len(row.all_crossings)} times, at {shown}{more}")
        if row.skipped:
            remarks.append(f"{name} skipped: {row.skipped}")
        elif row.unit == "s":
            remarks.append(f"{name}: {_timed_text(row)}")
        elif text := _searched_text(row):
            ranges.setdefault(text, []).append(name)
        if row.bound and row.unit != "s":
            remarks.append(f"{name}: {row.bound}")
    remarks += [f"{', '.join(names)}: {text}" for text, names in ranges.items()]
    searched = dict.fromkeys(
        _metric_label(r.metric, r.kind) for r in rows if r.method == "searched"
    )
    if searched:
        most = f", to 2**{LARGEST.bit_length() - 1} tokens at most" * (rows[0].over == "seq")
        why = "sizes are rounded up or down, so there is no closed form"
        if rows[0].d_model:
            why = f"only numbers of heads that divide d_model {rows[0].d_model} count"
        remarks.append(f"{', '.join(searched)}: {why}; searched by integers{most}")
    remarks += [
        f"{_metric_label(row.metric, 'published')} from {row.source}" for row in rows if row.source
    ]
    return list(dict.fromkeys(remarks))
