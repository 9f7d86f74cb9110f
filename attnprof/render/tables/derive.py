"""Tables of ``derive`` (formulas by phase, method, where costs arise) and ``verify-formula``.

``verify-formula`` shows printed formulas beside ours, the verdicts, then a block a formula.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from attnprof.record import DeriveRecord, Report, VerificationRecord
from attnprof.record.escapes import markdown_code
from attnprof.record.recognition import mark
from attnprof.render import terminal
from attnprof.render.formats import filled, render_markdown
from attnprof.render.terminal import FittedTable, FormulaText, Hanging, bounded, quantity_value
from attnprof.units import MISSING, format_bytes, format_count, quantity_text

#: Operations shown by name; the rest is in JSON and on the Markdown page.
_MOST = 12
#: Words before a formula, by its bound.
BOUNDS = {"at least": "at least ", "even routing": "with even routing, "}
#: Each method in words.
METHODS = {
    "symbolic": "symbolic (one run on symbolic sizes)",
    "mixed": "mixed (symbols for some sizes, runs at a few numbers of the others)",
    "interpolated": "interpolated (exact interpolation of runs at many shapes)",
    "counted": "counted (one run at this shape; no formula was found)",
}
#: Costs of an operation, with the heading of their column if any operation has them.
_COSTS = {
    "flops": "", "bytes_moved": "bytes", "allocates": "allocates", "frees_before": "freed before",
}  # fmt: skip
#: Columns of the Markdown table.
PAGE = (
    "place", "of", "scope", "phase", "causal", "quantity", "where", "up_to", "printed", "ours",
    "verdict", "why", "domain", "skipped",
)  # fmt: skip
#: Characters of a formula that are shown; JSON and CSV have all.
READABLE, BRIEF = 240, 60
#: Label of our formula by its kind.
_OURS = {"formula": "ours (closed form)", "derived": "ours (from the code)"}


def derive_tables(
    report: Report, *, latex: bool = False, by: str = "operation"
) -> Iterator[RenderableType]:
    """Yield one block a phase: formulas, domain, method, then where costs arise."""
    for phase, fields in report.summary["phases"].items():
        rows = [record for record in report.of(DeriveRecord) if record.phase == phase]
        # without quantities that are 0, unless all are
        costs = [row for row in rows if row.expression != "0"]
        title = f"{report.summary['name']}: {phase}"
        domain = "; ".join(fields["domain"]) or "all sizes"
        if latex:  # text to be pasted, so never wrapped
            yield f"% {title}; holds for {domain}"
            for row in costs:
                yield f"% {row.quantity}"
                yield row.latex or "% no formula"
            continue
        yield Text(title, style="bold")
        if fields.get("answer"):
            yield from (Hanging(f"{fields['answer']}."), "")
        yield _formulas(costs or rows)
        yield from map(Hanging, (f"holds for: {domain}", *_method_lines(fields)))
        yield ""
        if rows := fields.get(f"{by}s"):
            yield _modules_table(rows) if by == "module" else _places_table(rows, by)
        elif by == "module":
            yield "It has no submodules."


def _formulas(rows: Sequence[DeriveRecord]) -> FittedTable:
    table = FittedTable("quantity", "formula", "value", right=["value"])
    for row in rows:
        kind = BOUNDS.get(row.bound, "") if row.expression else ""
        formula = FormulaText(f"{kind}{_spread_maximum(row.expression)}")
        table.add_row(quantity_text(row.quantity), formula, bounded(row).strip(MISSING))
    return table


def _spread_maximum(expression: str | None) -> str:
    """Return a formula; a Max of several candidates with one candidate a line."""
    match = re.fullmatch(r"Max\((.+)\)", expression or "no formula")
    inner = match[1] if match else ""
    depths = list(accumulate((sign == "(") - (sign == ")") for sign in inner))
    if not depths or min(depths) < 0:
        return expression or "no formula"
    between = [place for place, depth in enumerate(depths) if inner[place] == "," and not depth]
    parts = (inner[a + 1 : b].strip() for a, b in pairwise([-1, *between, len(inner)]))
    return "Max(" + ",\n    ".join(parts) + ")"


def shape_text(sizes: Mapping[str, Any]) -> str:
    """Return ``B=2, N=64``."""
    return ", ".join(f"{name}={value}" for name, value in sizes.items())


def shapes_text(shapes: Sequence[Mapping[str, Any]]) -> str:
    """Return ``(B, N) = (2, 64), (3, 70)``."""
    tuples = [tuple(shape.values()) for shape in shapes]
    if not tuples or len(tuples[0]) < 2:
        return "; ".join(map(shape_text, shapes))
    return f"({', '.join(shapes[0])}) = {', '.join(map(str, tuples))}"


def verified_text(shapes: Sequence[Mapping[str, Any]]) -> str:
    """Return the shapes of up to three runs; of more, their number and range of sizes."""
    if len(shapes) <= 3:
        return shapes_text(shapes)
    sizes = {name: [shape[name] for shape in shapes] for name in shapes[0]}
    ends = (
        f"{name} from {min(ns):,} to {max(ns):,}" if min(ns) < max(ns) else f"{name}={ns[0]}"
        for name, ns in sizes.items()
    )
    return f"{len(shapes)} shapes: {', '.join(ends)}"


def _method_lines(fields: Mapping[str, Any]) -> Iterator[str]:
    """Yield a phase's method, verified shapes, uncounted operations, notes and peak."""
    checked = verified_text(fields["verified_at"])
    runs = f"; runs agree at {checked}" if checked and fields["method"] != "counted" else ""
    yield f"method: {METHODS.get(fields['method'], fields['method'])}{runs}"
    if fields["uncounted"]:
        yield f"FLOPs are at least these: not counted are {', '.join(fields['uncounted'])}"
    yield from (f"note: {line}" for line in dict.fromkeys(fields["notes"]))
    yield from peak_lines(fields.get("peak", {}))


def peak_lines(peak: Mapping[str, Any]) -> Iterator[str]:
    """Yield the operation that reaches the peak at the asked shape, and the peak's polynomial."""
    if "bytes" not in peak:
        return
    place = f" ({peak['line']})" if peak["line"] else ""
    wins = next((r["expression"] for r in peak["regimes"] if r["value"] == peak["bytes"]), None)
    where = f", where it is {wins}" if wins and len(peak["regimes"]) > 1 else ""
    size = f"{terminal.floor(peak.get('bound', 'exact'))}{format_bytes(peak['bytes'])}"
    yield f"peak: {size} during {peak['operation']}{place}{where}"
    if cuda := peak.get("cuda"):
        sizes = {name: format_bytes(size) for name, size in cuda.items() if "bytes" in name}
        yield (
            "on CUDA, by a model of torch's caching allocator: {requested_bytes} requested, "
            "{allocated_bytes} allocated, {reserved_bytes} reserved; besides, cuBLAS keeps "
            "{cublas_workspace_bytes} ({cublas_workspace_bytes_hopper} on Hopper)"
        ).format_map(sizes)


def _places_table(rows: Sequence[Mapping[str, Any]], by: str) -> FittedTable:
    """Return a row a line or operation, the costly ones by name."""
    values = ["value"] * any(row["flops_value"] is not None for row in rows)
    table = FittedTable(
        by, "calls", "FLOPs", *values, title=f"by {by}", right=["calls", *values],
    )  # fmt: skip
    counted = [row for row in rows if row["flops"] != "0"]
    for row in counted[:_MOST]:
        value = [quantity_value(row["flops_value"], "flops")] if values else []
        table.add_row(row[by], calls_text([row]), FormulaText(row["flops"]), *value)
    rest = [row for row in rows if row not in counted[:_MOST]]
    if rest:
        kinds = "more, and moves and views" if len(counted) > _MOST else "moves and views"
        table.add_row(kinds, calls_text(rest), "" if len(counted) > _MOST else "0")
    return table


def _modules_table(rows: Sequence[Mapping[str, Any]]) -> FittedTable:
    """Return a row a submodule, FLOPs as a formula; at a shape parameters and peak as numbers."""
    values = any(row["flops_value"] is not None for row in rows)
    headings = ["FLOPs", *["value"] * values, "parameters", "own peak"]
    right = headings[1:] if values else []
    caption = "Own peak: the most that is held at once of what it made itself."
    table = FittedTable("module", *headings, title="by module", right=right, caption=caption)
    for row in module_rows(rows):
        numbers = ("flops", "parameters", "peak_bytes")
        cells: list[str | Text]
        cells = ["" if row[f"{name}_value"] is None else quantity_value(row[f"{name}_value"], name)
                 for name in numbers]  # fmt: skip
        if not values:
            sides = len(re.findall(r"^Max\(|, ", row["peak_bytes"] or ""))
            peak = f"largest of {sides}" if sides > 1 else row["peak_bytes"]
            cells = [FormulaText(text or "") for text in (row["parameters"], peak)]
        table.add_row(row["module"], FormulaText(row["flops"]), *cells)
    return table


def module_rows(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the rows of submodules with a cost; a row "itself" is for a module's own work.

    The rows "itself" and those of modules without submodules add up to the whole. A module that
    only wraps another is left out.
    """
    costs = [(row["flops"], row["parameters"]) for row in rows]
    inside = [row["module"].startswith(f"{above['module']}.".lstrip("."))
              for above, row in pairwise(rows)]  # fmt: skip
    for place, row in enumerate(rows):
        holds = place < len(inside) and inside[place]
        same = place and holds and costs[place] == costs[place + 1]
        if costs[place] == ("0", "0") or (same and row["flops_itself"] == "0"):
            continue
        times = f" ×{row['times']}" if row["times"] > 1 else ""
        yield {**row, "module": f"{row['module'] or 'all'}{times}"}
        if holds and row["flops_itself"] != "0":
            renamed = {"flops": row["flops_itself"], "flops_value": row["flops_itself_value"]}
            yield {**dict.fromkeys(row), **renamed, "module": "  itself"}


def calls_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the number of operations of some rows, or their sum as text; ``–`` if unknown."""
    calls = [row["calls"] for row in rows]
    if all(isinstance(number, int) for number in calls):
        return str(sum(calls))
    return " + ".join(map(str, calls)) if None not in calls and len(calls) < 4 else "–"


def derive_page(report: Report, **_how: object) -> str:
    """Return the report as Markdown, with every condition, operation by operation."""
    filters = {
        "name": quantity_text, "shape": shape_text, "shapes": shapes_text, "calls": calls_text,
        "peak_lines": peak_lines, "modules": module_rows, "bytes": format_bytes,
        "how": lambda fields: METHODS.get(fields["method"], str(fields["method"])),
        "codes": lambda texts: ", ".join(map(markdown_code, texts)),
        "capital": lambda line: f"{line[:1].upper()}{line[1:]}",
        "size": lambda size: "" if size == "0" else markdown_code(size),
        "formula": lambda form: "no formula" if form is None else markdown_code(form),
        "form": lambda form: "" if form is None else markdown_code(form),
        "floor": terminal.floor, "value": lambda row: bounded(row).strip(MISSING),
        "costly": lambda rows: [row for row in rows if any(row[n] != "0" for n in _COSTS)],
        "varying": lambda rows: {
            name: heading for name, heading in _COSTS.items()
            if heading and any(row[name] != "0" for row in rows)
        },
    }  # fmt: skip
    rows = report.of(DeriveRecord)
    return filled("derive.md", filters, summary=report.summary, rows=rows, mark=mark("derive"))


def verify_formula_tables(report: Report) -> Iterator[RenderableType]:
    """Yield a block a formula; of several, an overview and the mismatches' blocks."""
    if report.command == "verify-formula --model":
        from attnprof.render.tables.model import formula_tables

        yield from formula_tables(report)
        return
    records = report.of(VerificationRecord)
    several = len(records) > 1
    if several:
        if answer := report.summary.get("answer"):
            yield Text(f"{str(answer)[:1].upper()}{str(answer)[1:]}.", style="bold")
        yield _overview(records)
    for row, record in enumerate(records, start=1):
        if several and record.verdict == "match":
            continue
        number = f"{row}. " if several else ""
        place = f"{record.place}: " if record.place else ""
        scope = f" {record.scope}" if record.scope else ""
        what = f"{quantity_text(record.quantity)}, {'causal ' * record.causal}{record.phase}"
        title = f"{number}{place}{record.of}{scope}, {what}: {_verdict(record)}"
        yield Text(title, style="bold")
        same = "the printed formula grows like ours"
        same = same if record.up_to == "order" else "both are the same"
        why = record.why or record.skipped or same
        yield from (Hanging(f"{why[:1].upper()}{why[1:]}."), "")
        sides = {"printed": record.printed, _OURS.get(record.kind, record.kind): record.ours}
        rows = ((title, _short_formula(formula)) for title, formula in sides.items())
        yield FittedTable("", "formula", rows=rows)
        if record.values:
            yield _values(record)
        yield from map(Hanging, _lines(record))
        yield ""


def verify_formula_page(report: Report, **_how: object) -> str:
    """Return a Markdown table of the verdicts; JSON and CSV have the rest."""
    records = [replace(r, ours=_short_formula(r.ours).plain) for r in report.of(VerificationRecord)]
    return render_markdown(replace(report, records=records), PAGE)


def _short_formula(formula: str | None, most: int = READABLE) -> FormulaText:
    return FormulaText.brief("no formula" if formula is None else formula, most)


def _overview(records: Sequence[VerificationRecord]) -> FittedTable:
    """Return a row a formula: where it is printed, both formulas in brief, the verdict."""
    placed = any(record.place for record in records)
    several = ["quantity"] * (len({record.quantity for record in records}) > 1)
    names = ["row", "place" if placed else "of", *several, "printed", "ours", "verdict"]
    table = FittedTable(*names, right=["row"])
    for row, record in enumerate(records, start=1):
        where = record.place if placed else f"{record.of}, {record.phase}"
        quantity = [quantity_text(record.quantity)] * len(several)
        leading = record.leading_ours if record.up_to == "order" else None
        sides = FormulaText(record.printed), _short_formula(leading or record.ours, BRIEF)
        table.add_row(str(row), where, *quantity, *sides, _verdict(record))
    return table


def _verdict(record: VerificationRecord) -> str:
    if record.verdict is None:
        return "not compared"
    return record.verdict if record.up_to == "exact" else f"{record.verdict} ({record.up_to})"


def _values(record: VerificationRecord) -> FittedTable:
    """Return both formulas' values at a few sizes."""
    sizes, sides = record.values[0]["sizes"], ("printed", "ours")
    rows = ([*map(format_count, shape["sizes"].values()),
             *(quantity_value(shape[name], record.quantity) for name in sides)]
            for shape in record.values)  # fmt: skip
    return FittedTable(*sizes, *sides, rows=rows, right=[*sizes, *sides], keys=len(sizes))


def _lines(record: VerificationRecord) -> Iterator[str]:
    if record.verdict is None:
        return
    if record.leading_agrees is not None and record.up_to == "exact":
        ours, printed = record.leading_ours, record.leading_printed
        others = "the same" if record.leading_agrees else f"ours {ours}, printed {printed}"
        yield f"leading terms: {others}"
    if record.where:
        yield f"where {', '.join(f'{name} = {meaning}' for name, meaning in record.where.items())}"
    if record.domain:
        yield f"our formula holds for {'; '.join(record.domain)}"
    if record.verified_at:
        runs = verified_text(record.verified_at)
        yield f"our formula ({record.method}) agrees with runs of the code at {runs}"
    yield from (f"note: {line}" for line in record.notes)
