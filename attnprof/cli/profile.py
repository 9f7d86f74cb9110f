"""`attnprof profile`: the real module, timed, measured and counted beside its closed form."""

from __future__ import annotations

import os
from typing import Annotated, Any

from typer import Option

from attnprof.cli.options import (
    ArgOption,
    AttentionOption,
    BatchOption,
    CausalOption,
    DeviceOption,
    DModelOption,
    DtypeOption,
    ForceOption,
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
from attnprof.cli.profile_tables import tables
from attnprof.cli.progress import progress_bar
from attnprof.cli.settings import parse_set
from attnprof.cli.sizes import head_shape, parse_names, parse_size, parse_sizes
from attnprof.cli.sweep_options import CheckOption, CompileOption, SpreadOption, ThreadsOption
from attnprof.errors import CannotRunError, RequestError
from attnprof.measure.modules import configured
from attnprof.measure.request import Budget
from attnprof.record import Report
from attnprof.workload import Workload

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
    threads: ThreadsOption = None,
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
    force: ForceOption = False,
) -> int:
    """Build the real module and measure it beside the closed form.

    Example: attnprof profile --attention efficient --seq 4096
    """
    ensure_writable(output, force=force)
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
