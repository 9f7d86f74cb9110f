"""Tables of ``profile``, ``predict``, ``recommend``, ``calibrate`` and ``doctor``."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from attnprof.record import DoctorRecord, PredictRecord, ProfileRecord, RecommendRecord, Report
from attnprof.record.measured import named_results, varying
from attnprof.render.terminal import (
    Cell,
    FittedTable,
    Hanging,
    answer_line,
    field_text,
    record_table,
    shown_value,
)
from attnprof.units import MISSING, format_count, format_rate, plural

COUNTS = ("flops_formula", "flops_derived", "matmul_flops_formula", "flops_torch", "flops_fvcore")
MEMORY = ("parameters", "peak_bytes_predicted", "peak_bytes_measured")
PEAK = "peak over what was live before the call"
#: Memory columns that only some phases or devices have, with a note for the caption.
PARTS = {
    "activations_bytes": "activations: what the forward pass leaves, its output included",
    "gradients_bytes": "",
    "optimizer_bytes": "AdamW's moments by arithmetic, no part of the peak",
    "kv_cache_bytes": "decoding state with its caches' room to grow",
    "state_bytes": "",
    "reserved_bytes": "",
    "workspace_bytes": "",
}
TIMES = ("median_s", "ci_low_s", "ci_high_s", "flops_per_s", "arithmetic_intensity")
ROOFLINE = ("bound", "roofline_time_s", "median_s", "roofline_fraction")


def profile_tables(report: Report) -> Iterator[RenderableType]:
    """Yield the answer, counts, memory, time and skipped points; a sweep's answer last."""
    records = report.of(ProfileRecord)
    done = named_results(records)
    yield from answer_line(report) if report.command == "profile" else ()
    yield Text(f"{_conditions(report, records)}\n")
    if done:
        keys = ("mechanism", "seq_len", *varying(records))

        def table(names: Sequence[str], **texts: str) -> RenderableType:
            return record_table(done, (*keys, *names), keys=len(keys), **texts)

        caption = "closed form, counts derived from the code, torch's counter, twice fvcore's MACs"
        yield table(COUNTS, title="FLOPs", caption=caption)
        parts = [n for n in PARTS if any(getattr(record, n) is not None for record in done)]
        caption = "; ".join(filter(None, (PEAK, *(PARTS[name] for name in parts))))
        yield table((*MEMORY, *parts), title="Memory", caption=caption)
        caption = "median of the times; low and high are the ends of its 95 % interval"
        yield table((*TIMES, "compile_s"), title="Time", caption=caption)
        if any(record.roofline_fraction for record in done):
            yield table(ROOFLINE, title="Roofline", caption=_ceilings(report.summary["roofline"]))
    whys = [(r, (r.skipped or "").removeprefix(f"{r.mechanism} ")) for r in records if r.skipped]
    yield from (Hanging(f"not measured: {line}") for line in _grouped_texts(whys))
    yield from answer_line(report) if report.command != "profile" else ()


def _conditions(report: Report, records: Sequence[ProfileRecord]) -> str:
    """Return the conditions that all points share; the others have columns."""
    first, where, columns = records[0], report.environment, varying(records)
    of_module = first.d_model is None and first.num_heads is None
    texts = {
        "phase": first.phase, "causal": "causal" * first.causal,
        "compiled": "compiled" * first.compiled, "scope": f"scope {first.scope}",
        "batch_size": f"batch {first.batch_size}",
        "d_model": "sizes of its own" if of_module else f"d_model {first.d_model}",
        "num_heads": "" if first.num_heads is None else f"{first.num_heads} heads",
        "dtype": first.dtype, "device": f"on {first.device}",
    }  # fmt: skip
    same = ", ".join(text for name, text in texts.items() if text and name not in columns)
    machine = f"{where.get('device_name')}, {where.get('threads')} threads"
    return f"{same} ({machine}, torch {where.get('torch')})"


def _ceilings(known: Mapping[str, Any]) -> str:
    rates = ", ".join(f"{dtype} {format_rate(r)}" for dtype, r in known["flops_per_s"].items())
    moved = format_rate(known["bytes_per_s"], "B/s")
    return f"{known['device']}: {rates}, {moved} ({known['source']})"


def _grouped_texts(found: Iterable[tuple[ProfileRecord, str]]) -> Iterator[str]:
    """Yield each text once, after the mechanisms and lengths it belongs to."""
    of: dict[str, dict[str, dict[str, None]]] = {}
    for record, text in found:
        lengths = of.setdefault(text, {}).setdefault(record.mechanism, {})
        lengths[f"{record.seq_len:,}"] = None
    for text, those in of.items():
        at: dict[str, list[str]] = {}
        for name, lengths in those.items():
            at.setdefault(" and ".join(lengths), []).append(name)
        places = (f"{', '.join(names)} at {lengths} tokens" for lengths, names in at.items())
        yield f"{'; '.join(places)}: {text}"


def profile_notes(report: Report) -> list[str]:
    """Return notes on the points for stderr: checks, differences, noise."""
    records = report.of(ProfileRecord)
    notes = [(record, text) for record in records for text in _point_notes(record)]
    asked = ((name.removeprefix("aten::"), r) for r in records for name in r.uncounted or {})
    unknown = dict.fromkeys(
        name for name, record in asked
        if f"fvcore does not know {name} ×" not in " ".join(record.differences)
    )  # fmt: skip
    calls = f"fvcore has no rule for {', '.join(unknown)}; --format json tells their calls"
    return [*_grouped_texts(notes), *([calls] if unknown else [])]


def _point_notes(record: ProfileRecord) -> Iterator[str]:
    if record.checked:
        checked = record.checked.replace("float64", "a run in float64").replace("; ", " and ")
        yield f"the output agrees with {checked}"
    yield from (text.removeprefix(f"{record.mechanism}: ") for text in record.differences)
    if record.contradicted:
        yield "no FLOP/s and no roofline, for the run contradicts the predicted counts (see above)"
    if record.noisy:
        yield record.noisy


#: Operations shown of a single point, and of each of several.
SHOWN, FEW = 8, 3


def predict_tables(report: Report) -> Iterator[RenderableType]:
    """Yield the answer, a row a point, then the slowest operations of each."""
    records = report.of(PredictRecord)
    done = named_results(records)
    yield from answer_line(report)
    yield Text(f"{report.summary['made_of']}\n")
    if done:
        keys = ("mechanism", "seq_len", *varying(records))
        names = ("time_s", "ci_low_s", "ci_high_s", "peak_bytes_predicted", "bound")
        yield record_table(
            done, (*keys, *names), keys=len(keys), title="Predicted",
            caption=report.summary["interval"],
        )  # fmt: skip
        if any(record.operations for record in done):
            yield _operations(done)
    yield from (Hanging(f"not predicted: {r.skipped}") for r in records if r.skipped)


def _operations(records: Sequence[PredictRecord]) -> RenderableType:
    most = SHOWN if len(records) == 1 else FEW
    cells = (
        [record.mechanism, format_count(record.seq_len), row["name"],
         "×".join(map(str, row["sizes"])), format_count(row["calls"]),
         shown_value(row["time_s"], "time"), f"{row['time_s'] / (record.time_s or 1):.0%}",
         row["bound"]]
        for record in records
        for row in record.operations[:most]
    )  # fmt: skip
    headings = ("mechanism", "seq", "operation", "sizes", "calls", "time", "share", "bound")
    right = ("seq", "calls", "time", "share")
    return FittedTable(*headings, rows=cells, keys=3, right=right, title="What takes the time")


def recommend_tables(report: Report) -> Iterator[RenderableType]:
    """Yield the mechanisms that fit by rank, what each gives up, and why others do not."""
    rows = report.of(RecommendRecord)
    one, ranked = rows[0], [row for row in rows if row.rank is not None]
    yield from answer_line(report)
    yield Text(f"{report.summary['made_of']}\n")
    where = (
        f"{one.scope}, {one.phase}{', causal' * one.causal}, {plural(one.seq_len, 'token')}, "
        f"batch {one.batch_size}, d_model {one.d_model}, "
        f"{plural(one.num_heads, 'head')}, {one.dtype}"
    )
    columns: dict[str, Cell] = {
        "rank": "rank", "mechanism": "mechanism", "exact": "exact", "time": "time_s",
        "95 %": _interval, "peak memory": "peak_bytes",
    }  # fmt: skip
    title, caption = f"Predicted\n{where}", report.summary["interval"]
    yield record_table(ranked, columns, title=title, keys=2, caption=caption)
    alike: dict[str, list[str]] = {}
    for row in ranked:
        alike.setdefault(row.gives_up, []).append(row.mechanism)
    yield from (Hanging(f"{', '.join(names)}: {what}") for what, names in alike.items() if what)
    yield from (Hanging(f"{r.mechanism} left out: {r.skipped}") for r in rows if r.rank is None)
    for own in report.summary["fastest"]:
        exact = f"{own['exact']} the fastest exact one" if own["exact"] else "no exact one fits"
        what = f"{own['fastest']} is the fastest of all, {exact}"
        what = f"{own['fastest']} is the fastest" if own["exact"] == own["fastest"] else what
        ends = dict.fromkeys((f"{own['from']:,}", f"{own['to']:,}"))
        yield Hanging(f"{' to '.join(ends)} tokens: {what}")


def _interval(row: RecommendRecord) -> str:
    if row.ci_low_s is None or row.ci_high_s is None:
        return MISSING
    return f"{field_text(row, 'ci_low_s')} to {field_text(row, 'ci_high_s')}"


def calibrate_tables(report: Report) -> list[RenderableType]:
    """Return a row a number format."""
    columns = (
        "device_name", "threads", "dtype", "flops_per_s", "bytes_per_s", "operations",
        "repeatability",
    )  # fmt: skip
    return [record_table(report.records, columns, title="Ceilings measured")]


STYLES = {"ok": "green", "none": "dim"}


def doctor_tables(report: Report) -> list[RenderableType]:
    """Return a row a check, with advice."""
    problems = report.summary["problems"]
    verdict = f"Needs attention: {', '.join(problems)}." if problems else "Everything works."
    columns: dict[str, Cell] = {
        "check": "check", "status": lambda its: Text(its.status, STYLES.get(its.status, "red")),
        "found": lambda its: its.found + (f" → {its.advice}" if its.advice else ""),
    }  # fmt: skip
    return [record_table(report.of(DoctorRecord), columns, caption=verdict)]
