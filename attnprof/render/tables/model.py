"""Tables of ``attnprof model``: a block a phase, then the cache and the memory of a step."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from attnprof.record import ModelRecord, Report
from attnprof.render.tables.comparison import comparison_tables
from attnprof.render.tables.mfu import mfu_tables
from attnprof.render.terminal import (
    FittedTable,
    FormulaText,
    Hanging,
    answer_line,
    floor,
    quantity_value,
    shows_all_digits,
)
from attnprof.units import MISSING, format_value, quantity_text

#: Quantities shown of every part.
_SHOWN = ("flops", "bytes_moved", "parameters")
#: Quantities of the whole model that are shown as formulas.
_WHOLE = ("flops", "matmul_flops", "bytes_moved", "peak_bytes", "parameters")
#: Answers of ``model`` that have tables of their own.
_OTHERS = {"model --compare": comparison_tables, "model --mfu": mfu_tables}


def tables(report: Report) -> Iterator[RenderableType]:
    """Yield the whole model first, then each phase by part and kind of layer."""
    if report.command in _OTHERS:
        yield from _OTHERS[report.command](report)
        return
    summary = report.summary
    yield from answer_line(report)
    sizes = ", ".join(f"{name}={size:,}" for name, size in summary["at"].items())
    view = summary.get("view", "torch")
    how = "by definition" if view == "definition" else f"as {view} runs it"
    yield Text(f"{summary['name']}: {summary['dtype']}, {sizes}, {how}", style="bold")
    yield from map(Hanging, _facts(summary))
    yield ""
    rows = report.of(ModelRecord)
    for phase, found in summary["phases"].items():
        own = [row for row in rows if row.phase == phase and row.quantity != "cache_bytes"]
        kept = {"last": ", logits of the last token", "all": ", logits of all tokens"}
        logits = kept.get(summary.get("logits", {}).get(phase), "")
        yield _by_part(f"{phase} (as {view}){logits}", own)
        yield _totals_table(own, found["peak"])
        yield from map(Hanging, (*_peak_lines(found["peak"], own), *_method_lines(found, view)))
        yield ""
    if cache := [row for row in rows if row.quantity == "cache_bytes"]:
        yield _cache(cache)
        if domain := summary["cache_domain"]:
            yield Hanging(f"holds for: {'; '.join(domain)}")
        yield ""
    if memory := summary.get("memory"):
        yield _memory(memory, summary.get("memory_bound", "exact"))
    if phases := summary.get("phase_memory"):
        yield _memory_needed_table(phases)


def _facts(summary: Mapping[str, Any]) -> Iterator[str]:
    parameters, active = summary["parameters"], summary["active_parameters"]
    some = f", of which a token meets {active:,}" if active != parameters else ""
    layers = ", ".join(f"{count} × {name}" for name, count in summary["layers"].items())
    yield f"{parameters:,} parameters{some}; layers: {layers or 'none'}"
    if half := summary["attention_half_seq_len"]:
        ends = summary.get("attention_half_domain", ())
        where = f", where {' and '.join(ends)}" if ends else ""
        phases = summary["phases"]
        first = phases.get("forward") or phases.get("prefill") or {}
        counted = "counted " if first.get("uncounted") else ""
        yield f"attention is half of the forward pass's {counted}FLOPs from N = {half:,} on{where}"
    yield from summary["notes"]


def _by_part(phase: str, rows: list[ModelRecord]) -> FittedTable:
    headings = [quantity_text(name) for name in _SHOWN]
    table = FittedTable(
        "layers", "part", *headings, "share of FLOPs",
        title=phase, right=[*headings, "share of FLOPs"], keys=2,
    )  # fmt: skip
    values = {(row.layer_kind, row.part, row.quantity): row.value or 0 for row in rows}
    bounds = {(row.layer_kind, row.part, row.quantity): row.bound for row in rows}
    whole = values["", "total", "flops"]
    counts = {row.layer_kind: row.count for row in rows}
    for kind, part in dict.fromkeys((row.layer_kind, row.part) for row in rows):
        own = [values.get((kind, part, name), 0) for name in _SHOWN]
        if not any(own):
            continue
        texts = (
            f"{floor(bounds.get((kind, part, name), 'exact'))}{quantity_value(value, name)}"
            for value, name in zip(own, _SHOWN, strict=True)
        )
        told = f"{counts[kind]} × {kind}" if kind else ""
        table.add_row(told, part, *texts, f"{own[0] / whole:.1%}" if whole else MISSING)
    return table


def _totals_table(rows: list[ModelRecord], peak: Mapping[str, Any]) -> FittedTable:
    """Return the quantities of the whole model; of the peak's formula the branch of this shape."""
    table = FittedTable("quantity", "formula", "value", right=["value"])
    whole = {row.quantity: row for row in rows if row.part == "total"}
    for name in _WHOLE:
        row = whole[name]
        least = floor(row.bound)
        here = name == "peak_bytes" and not shows_all_digits()
        expression = peak["formula"] if here else row.expression
        formula = FormulaText(f"{least}{expression}" if expression else "no formula")
        table.add_row(quantity_text(name), formula, f"{least}{quantity_value(row.value, name)}")
    return table


def _peak_lines(peak: Mapping[str, Any], rows: list[ModelRecord]) -> Iterator[str]:
    """Yield which tensors are most of the peak, as ``3.50 GiB in 32 × layers.*.mlp.up_proj``."""
    held = [
        f"{quantity_value(one['bytes'], 'bytes')} in {one['count']:,} × {one['module'] or 'whole'} "
        f"({one['op']}{' backward' * (one['part'] == 'backward')}, {one['dtype']} "
        f"{'×'.join(map(str, one['shape']))})"
        for one in peak["tensors"]
    ]
    if held:
        yield f"most at the peak: {'; '.join(held)}"
    whole = next(r.expression for r in rows if (r.part, r.quantity) == ("total", "peak_bytes"))
    if peak["formula"] != whole and not shows_all_digits():
        yield "the peak's formula is that of this shape; all of its branches: --exact"


def _method_lines(found: Mapping[str, Any], view: str) -> Iterator[str]:
    if "missing" in found:
        yield f"no formulas: {found['missing']}"
    else:
        yield f"holds for: {'; '.join(found['domain']) or 'all sizes'}"
    if found.get("uncounted"):
        yield f"FLOPs are at least these: not counted are {', '.join(found['uncounted'])}"
    if least := found.get("least_traffic"):
        weights, cache = least["weights"], least["cache"]
        met, kept, both = (
            quantity_value(size, "bytes_moved") for size in (weights, cache, weights + cache)
        )
        yield (
            f"each read once: {met} of weights that its tokens meet, {kept} of cache, {both} in "
            "all; what is moved beyond are results in between and copies"
            f"{', as of a cache that grows' * (view == 'torch')}"
        )
    if others := found.get("other_views"):
        yield others
    yield from (f"note: {line}" for line in found.get("notes", ()))


def _cache(rows: list[ModelRecord]) -> FittedTable:
    table = FittedTable("layers", "formula", "bytes", title="cache after N tokens", right=["bytes"])
    for row in rows:
        told = f"{row.count} × {row.layer_kind}" if row.layer_kind else "all"
        formula = FormulaText(row.expression or "no formula")
        table.add_row(told, formula, quantity_value(row.value, "peak_bytes"))
    return table


def _memory(memory: Mapping[str, int], bound: str) -> FittedTable:
    cells = (
        [name, f"{floor(bound) if name == 'peak' else ''}{quantity_value(size, 'bytes')}"]
        for name, size in memory.items()
    )
    return FittedTable(
        "part", "bytes", rows=cells, title="memory of a training step", right=["bytes"]
    )


def _memory_needed_table(phases: Mapping[str, Mapping[str, int]]) -> FittedTable:
    parts = ("parameters", "cache", "peak", "needed")
    cells = (
        [phase, *(quantity_value(one[name], "bytes") for name in parts), format_value(one["fits"])]
        for phase, one in phases.items()
    )
    return FittedTable("phase", *parts, "fits", rows=cells, title="memory needed", right=parts)
