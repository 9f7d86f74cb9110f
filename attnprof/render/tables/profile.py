"""The tables of ``profile`` and ``sweep``, and the notes below them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from attnprof.record import ProfileRecord, Report
from attnprof.record.points import names_of, varying
from attnprof.render.fitted import Hanging
from attnprof.render.terminal import answer_line, record_table
from attnprof.units import format_rate

COUNTS = ("flops_formula", "flops_derived", "matmul_flops_formula", "flops_torch", "flops_fvcore")
MEMORY = ("parameters", "peak_bytes_predicted", "peak_bytes_measured")
PEAK = "peak over what was live before the call"
#: Shown where a phase or a device has them, and what has to be said of them.
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


def tables(report: Report) -> Iterator[RenderableType]:
    """Counts, memory, time and what was skipped, the answer before them; a sweep's is below."""
    records = report.of(ProfileRecord)
    named = zip(records, names_of(records), strict=True)
    done = [replace(record, mechanism=name) for record, name in named if record.skipped is None]
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
    yield from (Hanging(f"not measured: {line}") for line in _together(whys))
    yield from answer_line(report) if report.command != "profile" else ()


def _conditions(report: Report, records: Sequence[ProfileRecord]) -> str:
    """What is the same at all points; what is not has columns."""
    first, where, columns = records[0], report.environment, varying(records)
    own = first.d_model is None and first.num_heads is None
    texts = {
        "phase": first.phase, "causal": "causal" * first.causal,
        "compiled": "compiled" * first.compiled, "scope": f"scope {first.scope}",
        "batch_size": f"batch {first.batch_size}",
        "d_model": "sizes of its own" if own else f"d_model {first.d_model}",
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


def _together(found: Iterable[tuple[ProfileRecord, str]]) -> Iterator[str]:
    """Each text once, after the mechanisms and lengths that it is of."""
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


def notes(report: Report) -> list[str]:
    """What else there is to know of the points: checks, differences, noise; not for stdout."""
    records = report.of(ProfileRecord)
    told = [(record, text) for record in records for text in _notes(record)]
    asked = ((name.removeprefix("aten::"), r) for r in records for name in r.uncounted or {})
    unknown = dict.fromkeys(
        name for name, record in asked
        if f"fvcore does not know {name} ×" not in " ".join(record.differences)
    )  # fmt: skip
    calls = f"fvcore has no rule for {', '.join(unknown)}; --format json tells their calls"
    return [*_together(told), *([calls] if unknown else [])]


def _notes(record: ProfileRecord) -> Iterator[str]:
    if record.checked:
        checked = record.checked.replace("float64", "a run in float64").replace("; ", " and ")
        yield f"the output agrees with {checked}"
    yield from (text.removeprefix(f"{record.mechanism}: ") for text in record.differences)
    if record.contradicted:
        yield "no FLOP/s and no roofline, for the run contradicts the predicted counts (see above)"
    if record.noisy:
        yield record.noisy
