"""The tables of ``profile`` and ``sweep``, and the notes below them."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from attnprof.record import ProfileRecord, Report
from attnprof.render.terminal import record_table
from attnprof.units import format_rate

COUNTS = (
    "mechanism", "seq_len", "flops_formula", "flops_derived", "matmul_flops_formula",
    "flops_torch", "flops_fvcore",
)  # fmt: skip
MEMORY = ("mechanism", "seq_len", "parameters", "peak_bytes_predicted", "peak_bytes_measured")
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
TIMES = (
    "mechanism", "seq_len", "median_s", "ci_low_s", "ci_high_s", "flops_per_s",
    "arithmetic_intensity",
)  # fmt: skip
ROOFLINE = (
    "mechanism", "seq_len", "bound", "roofline_time_s", "median_s", "roofline_fraction",
)  # fmt: skip


def tables(report: Report) -> Iterator[RenderableType]:
    """Counts, memory, time, then what differs, is noisy, or was skipped."""
    records, where = report.of(ProfileRecord), report.environment
    done, first = [record for record in records if record.skipped is None], records[0]
    mode = ", causal" * first.causal + ", compiled" * first.compiled
    yield Text(
        f"{first.phase}{mode}, scope {first.scope}, batch {first.batch_size}, {_widths(records)}, "
        f"{first.dtype}, on {first.device} ({where.get('device_name')}, {where.get('threads')} "
        f"threads, torch {where.get('torch')})"
    )
    if done:
        caption = "closed form, counts derived from the code, torch's counter, twice fvcore's MACs"
        yield record_table(done, COUNTS, keys=2, title="FLOPs", caption=caption)
        parts = [n for n in PARTS if any(getattr(record, n) is not None for record in done)]
        caption = "; ".join(filter(None, (PEAK, *(PARTS[name] for name in parts))))
        yield record_table(done, (*MEMORY, *parts), keys=2, title="Memory", caption=caption)
        caption = "median with the 95 % interval of order statistics"
        times = (*TIMES, "compile_s") if any(record.compiled for record in done) else TIMES
        yield record_table(done, times, keys=2, title="Time", caption=caption)
    if any(record.roofline_fraction for record in done):
        known = report.summary["roofline"]
        rates = ", ".join(f"{dtype} {format_rate(r)}" for dtype, r in known["flops_per_s"].items())
        moved = format_rate(known["bytes_per_s"], "B/s")
        caption = f"{known['device']}: {rates}, {moved} ({known['source']})"
        yield record_table(done, ROOFLINE, keys=2, title="Roofline", caption=caption)
    for line in dict.fromkeys(_notes(records)):
        yield Text(line)


def _widths(records: Sequence[ProfileRecord]) -> str:
    """The model widths and heads of a report, whose they are where they are not the same."""
    found: dict[str, list[str]] = {}
    for record in records:
        width = "" if record.d_model is None else f"d_model {record.d_model}"
        heads = "" if record.num_heads is None else f"{record.num_heads} heads"
        sizes = ", ".join(filter(None, (width, heads))) or "sizes of its own"
        found.setdefault(sizes, []).append(record.mechanism)
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"{', '.join(dict.fromkeys(of))}: {sizes}" for sizes, of in found.items())


def _notes(records: Sequence[ProfileRecord]) -> Iterator[str]:
    for record in records:
        at = f"at {record.seq_len} tokens"
        if record.skipped:
            yield f"skipped: {record.mechanism} {at}: {record.skipped}"
        for difference in record.differences:
            yield f"difference {at}: {difference}"
        if record.contradicted:
            yield f"no rates {at}: {record.mechanism}: the counts they are made of are contradicted"
        if record.checked:
            yield f"checked: {record.mechanism} against {record.checked}"
        if record.noisy:
            yield f"noise {at}: {record.mechanism}: {record.noisy}"
        if record.uncounted:
            names = ", ".join(
                f"{name.removeprefix('aten::')} ×{times}"
                for name, times in record.uncounted.items()
            )
            yield f"fvcore has no rule for: {names} ({record.mechanism})"
