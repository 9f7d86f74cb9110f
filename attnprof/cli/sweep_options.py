"""The flags of ``sweep`` alone: lists where other commands take one value, and how to measure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from attnprof.arguments import MOST_THREADS


def _texts(flag: str, help_text: str, metavar: str = "NAMES") -> object:
    return Option(flag, metavar=metavar, help=help_text)


GridOption = Annotated[Path | None, Option("--grid", metavar="FILE", help="A TOML file of grids.")]
DModelsOption = Annotated[str | None, _texts("--d-model", "Widths (default 512).", "SIZES")]
HeadsOption = Annotated[str | None, _texts("--heads", "Head counts (default 8).", "SIZES")]
BatchesOption = Annotated[str | None, _texts("--batch", "Batch sizes (default 1).", "SIZES")]
ScopesOption = Annotated[str | None, _texts("--scope", "core, layer (default) or both.")]
PhasesOption = Annotated[str | None, _texts("--phase", "Phases (default forward).")]
DtypesOption = Annotated[str | None, _texts("--dtype", "Number formats (default float32).")]
DevicesOption = Annotated[str | None, _texts("--device", "Devices: cpu,cuda:0,cuda:1.")]
CausalsOption = Annotated[
    str, Option("--causal", metavar="no|yes|both", help="Whether token t sees tokens 1 to t.")
]
ResultsOption = Annotated[
    Path,
    Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Results, a line each (.jsonl); FILE.csv: a table, too.",
    ),
]
SamplesOption = Annotated[int, Option("--samples", help="Times to take in a process.")]
MinTimeOption = Annotated[
    float, Option("--min-time", help="Seconds a point is timed for at least.")
]
MaxTimeOption = Annotated[float, Option("--max-time", help="Seconds after which timing ends.")]
SpreadOption = Annotated[
    float, Option("--spread", help="Stop when the median is known to this share of it.")
]
LimitOption = Annotated[
    float | None, Option("--limit", metavar="SECONDS", help="After these a process is stopped.")
]
MemoryLimitOption = Annotated[
    str | None, Option("--memory-limit", metavar="SIZE", help="What a point may map: 2GiB.")
]
TryAllOption = Annotated[
    bool, Option("--try-all", help="Also start points that do not fit by the closed form.")
]
ProcessesOption = Annotated[
    int, Option("--processes", min=1, help="Processes a point is measured in, taking turns.")
]
InProcessOption = Annotated[
    bool, Option("--in-process", help="No process of its own for each point: faster.")
]
CountsOption = Annotated[
    bool, Option("--counts", help="Ask torch's counter and fvcore at every point, too.")
]
ErrorOption = Annotated[
    bool, Option("--error", help="How far the output is from softmax attention's, too.")
]
WorkersOption = Annotated[
    int, Option("--workers", min=0, help="Local workers of a Dask cluster (extra: cluster).")
]
SchedulerOption = Annotated[
    str | None, Option("--scheduler", metavar="ADDRESS", help="A running Dask scheduler.")
]
ThreadsOption = Annotated[
    int | None,
    Option("--threads", help="Compute threads (default: torch's).", min=1, max=MOST_THREADS),
]
SeedOption = Annotated[
    int, Option("--seed", help="Seed of weights and inputs.", min=0, max=2**63 - 1)
]
CheckOption = Annotated[
    bool,
    Option(
        "--check/--no-check",
        help="First see, at a small shape, whether a mechanism computes what it claims.",
    ),
]
CompileOption = Annotated[
    bool, Option("--compile", help="Compile the module first (torch.compile, inductor).")
]
