"""Tables of whole models: ``model`` by phase, its ``--compare`` and ``--mfu``, and ``fit``.

:func:`model_tables` and :func:`fit_tables` are the entry points, :func:`formula_tables` that of
``verify-formula --model``.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from attnprof.record import Report, kinds
from attnprof.render import terminal
from attnprof.render.terminal import FittedTable, FormulaText, Hanging, bounded, quantity_value
from attnprof.units import MISSING, format_value, quantity_text

#: Quantities shown of every part.
_SHOWN = ("flops", "bytes_moved", "parameters")
#: Quantities of the whole model that are shown as formulas.
_WHOLE = ("flops", "matmul_flops", "bytes_moved", "peak_bytes", "parameters")
#: Columns: the heading, and the phase and quantity of its numbers.
_COLUMNS = {
    "params": ("", "parameters"), "active": ("", "active_parameters"),
    "cache": ("decode", "cache_bytes"), "cache a token": ("decode", "cache_bytes_per_token"),
    "FLOPs a token": ("prefill", "flops_per_token"),
    "decode bytes": ("decode", "bytes_moved"),
}  # fmt: skip
_SPEEDS = {
    "first_token_s": "time to the first token [s]",
    "request_tokens_per_s": "tokens a second, a request",
    "all_tokens_per_s": "tokens a second, all",
}


def model_tables(report: Report) -> Iterator[RenderableType]:
    """Yield the whole model first, then each phase by part and kind of layer."""
    if other := {"model --compare": _compared, "model --mfu": _mfu}.get(report.command):
        yield from other(report)
        return
    summary = report.summary
    sizes = ", ".join(f"{name}={size:,}" for name, size in summary["at"].items())
    view = summary.get("view", "torch")
    how = "by definition" if view == "definition" else f"as {view} runs it"
    yield Text(f"{summary['name']}: {summary['dtype']}, {sizes}, {how}", style="bold")
    yield from map(Hanging, _model_lines(summary))
    yield ""
    rows = report.of(kinds.ModelRecord)
    for phase, fields in summary["phases"].items():
        phase_rows = [row for row in rows if row.phase == phase and row.quantity != "cache_bytes"]
        kept = {"last": ", logits of the last token", "all": ", logits of all tokens"}
        logits = kept.get(summary.get("logits", {}).get(phase), "")
        yield _by_part(f"{phase} (as {view}){logits}", phase_rows)
        yield _totals_table(phase_rows, fields["peak"])
        yield from map(
            Hanging, (*_peak_lines(fields["peak"], phase_rows), *_method_lines(fields, view))
        )
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


def model_headline(report: Report) -> str:
    """Return the headline of a model's page: parameters, and FLOPs of the first phase."""
    summary = report.summary
    whole = [r for r in report.of(kinds.ModelRecord) if (r.part, r.quantity) == ("total", "flops")]
    if not whole:
        return ""
    at = ", ".join(f"{name} = {size:,}" for name, size in summary["at"].items() if name != "L")
    half = summary["attention_half_seq_len"]
    rest = f"; attention is half of a forward pass from N = {half:,} on" if half else ""
    parameters = quantity_value(summary["parameters"], "parameters")
    return f"{parameters} parameters, {bounded(whole[0])} FLOPs ({whole[0].phase}) at {at}{rest}"


def _parameters_text(summary: Mapping[str, Any]) -> str:
    """Return ``8,030,261,248 parameters, of which a token meets 1,280,000``."""
    every, active = summary["parameters"], summary["active_parameters"]
    some = f", of which a token meets {active:,}" if active != every else ""
    return f"{every:,} parameters{some}"


def _model_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield parameters and layers, the length at which attention is half, and the notes."""
    layers = ", ".join(f"{count} × {name}" for name, count in summary["layers"].items())
    yield f"{_parameters_text(summary)}; layers: {layers or 'none'}"
    if half := summary["attention_half_seq_len"]:
        ends = summary.get("attention_half_domain", ())
        where = f", where {' and '.join(ends)}" if ends else ""
        phases = summary["phases"]
        first = phases.get("forward") or phases.get("prefill") or {}
        counted = "counted " if first.get("uncounted") else ""
        yield f"attention is half of the forward pass's {counted}FLOPs from N = {half:,} on{where}"
    yield from summary["notes"]


def _by_part(phase: str, rows: list[kinds.ModelRecord]) -> FittedTable:
    """Return a row a part and kind of layer, with its share of the FLOPs."""
    numbers = [*map(quantity_text, _SHOWN), "share of FLOPs"]
    table = FittedTable("layers", "part", *numbers, title=phase, right=numbers, keys=2)
    by_key = {(row.layer_kind, row.part, row.quantity): row for row in rows}
    whole = by_key["", "total", "flops"].value
    for kind, part in dict.fromkeys((row.layer_kind, row.part) for row in rows):
        of_part = [by_key.get((kind, part, name)) for name in _SHOWN]
        values = [row.value or 0 if row else 0 for row in of_part]
        if any(values):
            texts = (
                f"{terminal.floor(row.bound if row else '')}{quantity_value(value, name)}"
                for row, value, name in zip(of_part, values, _SHOWN, strict=True)
            )
            share = f"{values[0] / whole:.1%}" if whole else MISSING
            table.add_row(_layers(next(filter(None, of_part))), part, *texts, share)
    return table


def _layers(row: kinds.ModelRecord) -> str:
    """Return ``32 × full`` for a record of layers of a kind, else ""."""
    return f"{row.count} × {row.layer_kind}" if row.layer_kind else ""


def _totals_table(rows: list[kinds.ModelRecord], peak: Mapping[str, Any]) -> FittedTable:
    """Return the quantities of the whole model; of the peak's formula the branch of this shape."""
    table = FittedTable("quantity", "formula", "value", right=["value"])
    whole = {row.quantity: row for row in rows if row.part == "total"}
    for name in _WHOLE:
        row = whole[name]
        here = name == "peak_bytes" and not terminal.EXACT.get()
        expression = peak["formula"] if here else row.expression
        formula = f"{terminal.floor(row.bound)}{expression}" if expression else "no formula"
        table.add_row(quantity_text(name), FormulaText(formula), bounded(row))
    return table


def _peak_lines(peak: Mapping[str, Any], rows: list[kinds.ModelRecord]) -> Iterator[str]:
    """Yield which tensors are most of the peak, as ``3.50 GiB in 32 × layers.*.mlp.up_proj``."""
    tensors = [
        f"{quantity_value(one['bytes'], 'bytes')} in {one['count']:,} × {one['module'] or 'whole'} "
        f"({one['op']}{' backward' * (one['part'] == 'backward')}, {one['dtype']} "
        f"{'×'.join(map(str, one['shape']))})"
        for one in peak["tensors"]
    ]
    if tensors:
        yield f"most at the peak: {'; '.join(tensors)}"
    whole = next(r.expression for r in rows if (r.part, r.quantity) == ("total", "peak_bytes"))
    if peak["formula"] != whole and not terminal.EXACT.get():
        yield "the peak's formula is that of this shape; all of its branches: --exact"


def _method_lines(fields: Mapping[str, Any], view: str) -> Iterator[str]:
    """Yield a phase's domain, uncounted operations, least traffic and notes."""
    if "missing" in fields:
        yield f"no formulas: {fields['missing']}"
    else:
        yield f"holds for: {'; '.join(fields['domain']) or 'all sizes'}"
    if fields.get("uncounted"):
        yield f"FLOPs are at least these: not counted are {', '.join(fields['uncounted'])}"
    if least := fields.get("least_traffic"):
        weights, cache = least["weights"], least["cache"]
        met, kept, both = (
            quantity_value(size, "bytes_moved") for size in (weights, cache, weights + cache)
        )
        yield (
            f"each read once: {met} of weights that its tokens meet, {kept} of cache, {both} in "
            "all; what is moved beyond are results in between and copies"
            f"{', as of a cache that grows' * (view == 'torch')}"
        )
    if others := fields.get("other_views"):
        yield others
    yield from (f"note: {line}" for line in fields.get("notes", ()))


def _cache(rows: list[kinds.ModelRecord]) -> FittedTable:
    table = FittedTable("layers", "formula", "bytes", title="cache after N tokens", right=["bytes"])
    for row in rows:
        formula = FormulaText(row.expression or "no formula")
        table.add_row(_layers(row) or "all", formula, quantity_value(row.value, "bytes"))
    return table


def _memory(memory: Mapping[str, int], bound: str) -> FittedTable:
    cells = (
        [name, f"{terminal.floor(bound) if name == 'peak' else ''}{quantity_value(size, 'bytes')}"]
        for name, size in memory.items()
    )
    title = "memory of a training step"
    return FittedTable("part", "bytes", rows=cells, title=title, right=["bytes"])


def _memory_needed_table(phases: Mapping[str, Mapping[str, int]]) -> FittedTable:
    parts = ("parameters", "cache", "peak", "needed")
    cells = (
        [phase, *(quantity_value(one[name], "bytes") for name in parts), format_value(one["fits"])]
        for phase, one in phases.items()
    )
    return FittedTable("phase", *parts, "fits", rows=cells, title="memory needed", right=parts)


def _compared(report: Report) -> Iterator[RenderableType]:
    """Yield a row a model, and notes on them."""
    summary = report.summary
    rows = {(row.model, row.phase, row.quantity): row for row in report.of(kinds.ComparedRecord)}
    sizes = ", ".join(f"{name}={size:,}" for name, size in summary["at"].items() if size)
    formats = summary["dtypes"]
    same = len({*formats.values()}) == 1
    title = f"models side by side: {sizes}{', ' + next(iter(formats.values())) if same else ''}"
    table = FittedTable("model", "format", *_COLUMNS, title=title, right=[*_COLUMNS])
    for model in summary["models"]:
        cells = (bounded(rows.get((model, *column))) for column in _COLUMNS.values())
        table.add_row(model, "" if same else formats[model], *cells)
    yield table
    views = {row.view for row in rows.values()}
    yield Hanging(
        f"view: {', '.join(sorted(views))}; active: parameters that a token meets; cache: after N "
        "tokens, and what one more adds to it; FLOPs a token: of a prompt; decode: one token after "
        "N - 1 others"
    )
    yield from map(Hanging, summary["notes"])


def _mfu(report: Report) -> Iterator[RenderableType]:
    """Yield each convention's numbers and formulas, and their terms side by side."""
    summary, rows = report.summary, report.of(kinds.MfuRecord)
    lengths = ", ".join(f"{n:,}" for n in summary["lengths"])
    yield Text(f"{summary['name']}: {_parameters_text(summary)}; N = {lengths}", style="bold")
    yield from map(Hanging, summary["notes"])
    yield ""
    by_phase = {(row.convention, row.phase): row for row in rows}
    names, phases = list(dict.fromkeys(row.convention for row in rows)), ("forward", "train")
    both = {name: [by_phase[name, phase] for phase in phases] for name in names}
    headings = ("convention", *phases, "train, in N")
    table = FittedTable(*headings, title="FLOPs a token", right=phases)
    for name, each in both.items():
        values = (quantity_value(row.flops_per_token, "flops") for row in each)
        table.add_row(name, *values, FormulaText(each[1].expression))
    yield table
    if len({*summary["lengths"]}) > 1:
        whole = ([name, *(quantity_value(row.flops, "flops") for row in each)]
                 for name, each in both.items())  # fmt: skip
        title = "FLOPs of the batch"
        yield FittedTable("convention", *phases, rows=whole, title=title, right=phases)
    yield _terms(report, names)
    for name in names:
        if sentences := by_phase[name, "train"].dropped:
            yield Hanging(f"{name} against executed: {sentences}")


def _terms(report: Report, names: list[str]) -> FittedTable:
    by_term = report.summary["terms"]
    order = sorted(names, key=lambda name: name != "executed")
    labels = dict.fromkeys(label for name in order for label in by_term[name])
    rows = ([label, *(quantity_value(by_term[name].get(label), "flops") for name in names)]
            for label in labels)  # fmt: skip
    return FittedTable("term", *names, rows=rows, title="a trained token, by term", right=names)


def formula_tables(report: Report) -> Iterator[RenderableType]:
    """Yield a formula, and the terms that differ from the executed FLOPs."""
    summary, rows = report.summary, report.of(kinds.FormulaTermRecord)
    yield Text(f"{summary['name']}, {summary['phase']}: {summary['formula']}", style="bold")
    if symbols := summary["symbols"]:
        yield Hanging(f"where {', '.join(f'{name} = {n:,}' for name, n in symbols.items())}")
    yield from map(Hanging, summary["notes"])
    yield ""
    at = f"at N = {summary['seq_len']:,}"
    table = FittedTable("term", "what it is", "theirs - ours", at, right=[at])
    for row in rows:
        apart = (row.theirs_value or 0) - (row.ours_value or 0)
        value = f"{'+' if apart > 0 else ''}{quantity_value(apart, 'flops')}"
        table.add_row(row.term, row.what, FormulaText(row.difference), value)
    yield table
    last = rows[-1]
    sides = (
        ("theirs", FormulaText(last.theirs), quantity_value(last.theirs_value, "flops")),
        ("executed", FormulaText(last.ours), quantity_value(last.ours_value, "flops")),
    )
    yield FittedTable("", "FLOPs a token", "value", rows=sides, right=["value"])


def fit_tables(report: Report) -> Iterator[RenderableType]:
    """Yield bytes by part, the numbers that follow from them, and the formulas."""
    summary, rows = report.summary, report.of(kinds.FitRecord)
    sizes = f"N = {summary['seq_len']:,}, B = {summary['batch_size']:,}"
    layers = ", ".join(f"{count} × {kind}" for kind, count in summary["layers"].items())
    yield Text(f"{summary['name']}: {summary['dtype']}, {sizes}", style="bold")
    if layers:
        yield Hanging(f"layers' caches: {layers}")
    yield from map(Hanging, summary["notes"])
    yield ""
    cells = ([row.part, quantity_value(row.bytes, "bytes"), row.basis] for row in rows)
    yield FittedTable("part", "bytes", "basis", rows=cells, title="one rank holds", right=["bytes"])
    yield _limits(summary, [row.part for row in rows])
    if speed := summary.get("speed"):
        if speed["figures"]:
            yield _speed(speed)
        yield from map(Hanging, speed["notes"])
        for name, command in speed.get("checks", {}).items():
            yield Hanging(f"to check {name}: {command}")
        yield ""
    forms = ((row.part, FormulaText(row.formula)) for row in rows if row.formula)
    yield FittedTable("part", "formula [B]", rows=forms, title="closed forms")


def _limits(summary: Mapping[str, Any], parts: Iterable[str]) -> FittedTable:
    """Return the longest context, the largest batch, and the bytes that decide them.

    Without a cache among the ``parts``, as in training, numbers of caches are left out.
    """
    bytes_of = ("cache_bytes_per_token", "bytes_sent_per_step")
    table = FittedTable("quantity", "value", title="what fits", right=["value"])
    for name, label in {
        "longest_context": "longest context at the batch [tokens]",
        "largest_batch": "largest batch at the context",
        "cache_tokens": "tokens that all caches hold",
        "cache_bytes_per_token": "cache a token",
        "bytes_sent_per_step": "sent a step and rank",
    }.items():
        if "cache" in name and "cache" not in parts:
            continue
        value = summary[name]
        number = "unbounded" if value >= 2**50 else f"{value:,}"
        table.add_row(label, quantity_value(value, "bytes") if name in bytes_of else number)
    return table


def _speed(speed: Mapping[str, Any]) -> FittedTable:
    table = FittedTable(
        "quantity", "value", "interval", "basis", title=f"speed on {speed['device']}",
        right=["value", "interval"],
    )  # fmt: skip
    for figure in sorted(speed["figures"], key=lambda x: [*_SPEEDS].index(x["quantity"])):
        ends = [figure[end] and f"{figure[end]:.4g}" for end in ("low", "high")]
        interval = " to ".join(ends) if all(ends) else f"≥ {ends[0]}" if ends[0] else f"≤ {ends[1]}"
        basis = f"{figure['basis']}: {figure['by']}" if figure["by"] else figure["basis"]
        table.add_row(_SPEEDS[figure["quantity"]], f"{figure['value']:.4g}", interval, basis)
    return table
