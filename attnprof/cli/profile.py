"""`attnprof profile`: the real module, timed, measured and counted beside its closed form."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from attnprof.cli.options import (
    ArgOption,
    AttentionOption,
    BatchOption,
    CausalOption,
    DeviceOption,
    DModelOption,
    DtypeOption,
    Format,
    FormatOption,
    HeadDimOption,
    HeadsOption,
    InputOption,
    OutputOption,
    PhaseOption,
    ScopeOption,
    SeqOption,
    SetOption,
)
from attnprof.cli.output import deliver, ensure_writable
from attnprof.cli.progress import progress_bar
from attnprof.cli.settings import parse_set
from attnprof.cli.sizes import head_shape, parse_names, parse_size, parse_sizes
from attnprof.cli.sweep_options import CheckOption, CompileOption, SpreadOption
from attnprof.errors import CannotRunError, RequestError
from attnprof.measure.modules import configured
from attnprof.measure.request import Budget
from attnprof.record import Report
from attnprof.units import format_bandwidth, format_rate
from attnprof.workload import Workload

if TYPE_CHECKING:
    from rich.console import RenderableType

EXAMPLE = "attnprof profile --attention efficient --seq 4096"


def profile(
    *,
    attention: AttentionOption = None,
    seq: SeqOption = None,
    d_model: DModelOption = None,
    heads: HeadsOption = None,
    d: HeadDimOption = None,
    batch: BatchOption = "1",
    scope: ScopeOption = "layer",
    phase: PhaseOption = "forward",
    causal: CausalOption = False,
    dtype: DtypeOption = "float32",
    device: DeviceOption = "auto",
    settings: SetOption = None,
    args: ArgOption = None,
    inputs: InputOption = None,
    samples: Annotated[int, Option(help="Times to take, if the time allows.")] = 20,
    min_time: Annotated[float, Option(help="Seconds a point is timed for at least.")] = 0.5,
    max_time: Annotated[float, Option(help="Seconds after which a point ends.")] = 5.0,
    spread: SpreadOption = 0.05,
    seed: Annotated[int, Option(help="Seed of weights and inputs.", min=0, max=2**63 - 1)] = 0,
    threads: Annotated[int | None, Option(help="Compute threads (default: torch's).")] = None,
    isolate: Annotated[
        bool | None,
        Option(
            "--isolate/--in-process",
            help="Each point in a process of its own; by default those that may run out of memory.",
        ),
    ] = None,
    check: CheckOption = True,
    compiled: CompileOption = False,
    fmt: FormatOption = Format.TABLE,
    output: OutputOption = None,
) -> int:
    """Build the real module and measure it beside the closed form.

    Example: attnprof profile --attention efficient --seq 4096
    """
    ensure_writable(output)
    if attention is None or seq is None:
        missing = "--attention" if attention is None else "--seq"
        raise RequestError(f"profile needs {missing}: type {EXAMPLE}")
    names = parse_names(attention)
    chosen = configured(names, parse_set(settings), args, inputs)
    mechanisms = dict(zip(names, chosen, strict=True))
    count, head_dim = head_shape(d_model, heads, d)
    size = parse_size(batch, "--batch")
    workloads = [
        Workload(n, count, head_dim, size, causal=causal, phase=phase, dtype=dtype)
        for n in parse_sizes(seq, "--seq")
    ]
    how = {"scope": scope, "device": device, "seed": seed, "threads": threads,
           "check": check, "compiled": compiled}  # fmt: skip
    report = _measure(
        mechanisms, workloads, how, Budget(samples, min_time, max_time, spread=spread), isolate
    )
    from attnprof.device.roofline import with_roofline

    deliver(with_roofline(report), fmt, output, tables)
    return 0 if report.summary["measured"] else CannotRunError.exit_code


def _measure(
    mechanisms: dict[str, Any],
    workloads: list[Workload],
    how: dict[str, Any],
    budget: Budget,
    isolate: bool | None,
) -> Report:
    # threads that spin while they wait double the times of a busy machine; read at torch's import
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from attnprof.measure.batch import measure_points, plan_points
    from attnprof.measure.request import PointRequest

    points = plan_points(mechanisms, workloads, budget=budget, **how)
    with progress_bar(len(points), "profile") as show:

        def on_progress(done: int, _: int, request: PointRequest) -> None:
            if show is not None:
                show(done, f"{request.mechanism}, {request.seq_len} tokens")

        return measure_points(points, isolate=isolate, on_progress=on_progress)


COUNTS = (
    "mechanism", "seq_len", "flops_formula", "flops_derived", "matmul_flops_formula",
    "flops_torch", "flops_fvcore",
)  # fmt: skip
MEMORY = ("mechanism", "seq_len", "parameters", "peak_bytes_predicted", "peak_bytes_measured")
TIMES = (
    "mechanism", "seq_len", "median_s", "ci_low_s", "ci_high_s", "flops_per_s",
    "arithmetic_intensity",
)  # fmt: skip
ROOFLINE = (
    "mechanism", "seq_len", "bound", "roofline_time_s", "median_s", "roofline_fraction",
)  # fmt: skip


def tables(report: Report) -> Sequence[RenderableType]:
    """Counts, memory, time, then what differs, is noisy, or was skipped."""
    from rich.text import Text

    from attnprof.render.terminal import record_table

    records: list[Any] = list(report.records)
    done = [record for record in records if record.skipped is None]
    parts: list[RenderableType] = [Text(_headline(report, records[0]))]
    if done:
        caption = "closed form, counts derived from the code, torch's counter, twice fvcore's MACs"
        parts.append(record_table(done, COUNTS, title="FLOPs", caption=caption))
        caption = "peak over what was live before the call"
        parts.append(record_table(done, MEMORY, title="Memory", caption=caption))
        caption = "median with the 95 % interval of order statistics"
        times = (*TIMES, "compile_s") if any(record.compiled for record in done) else TIMES
        parts.append(record_table(done, times, title="Time", caption=caption))
        if any(record.roofline_fraction for record in done):
            caption = _ceilings(report.summary["roofline"])
            parts.append(record_table(done, ROOFLINE, title="Roofline", caption=caption))
    parts += [Text(line) for line in dict.fromkeys(_notes(records))]
    return parts


def _ceilings(known: Mapping[str, Any]) -> str:
    """What the shares are of, and who says so."""
    rates = ", ".join(f"{dtype} {format_rate(r)}" for dtype, r in known["flops_per_s"].items())
    return (
        f"{known['device']}: {rates}, {format_bandwidth(known['bytes_per_s'])} ({known['source']})"
    )


def _headline(report: Report, first: Any) -> str:
    where = report.environment
    causal = (", causal" if first.causal else "") + (", compiled" if first.compiled else "")
    return (
        f"{first.phase}{causal}, scope {first.scope}, batch {first.batch_size}, "
        f"d_model {first.d_model}, {first.num_heads} heads, {first.dtype}, on {first.device} "
        f"({where.get('device_name')}, {where.get('threads')} threads, torch {where.get('torch')})"
    )


def _notes(records: list[Any]) -> Iterator[str]:
    for record in records:
        at = f"at {record.seq_len} tokens"
        if record.skipped:
            yield f"skipped: {record.mechanism} {at}: {record.skipped}"
        for difference in record.differences:
            yield f"difference {at}: {difference}"
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
