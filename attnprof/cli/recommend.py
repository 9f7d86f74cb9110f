"""`attnprof recommend`: which attention to take for a request."""

from pathlib import Path

from typer import Option

from attnprof.cli import options as opt
from attnprof.cli.measurement import CALIBRATION, ON, THREADS
from attnprof.cli.options import working
from attnprof.cli.request import Conditions, Selection, parse_bytes, parse_set
from attnprof.errors import RequestError

EXAMPLE = "attnprof recommend --seq 8192 --d-model 1024 --heads 16 --phase train"


def recommend(
    *,
    shape: Selection = Selection(seq=None),
    conditions: Conditions,
    scope: opt.ScopeOption = "layer",
    threads: int | None = THREADS,
    calibration: Path | None = CALIBRATION,
    on: str | None = ON,
    memory: str | None = Option(
        None, metavar="SIZE", help="Memory that a call may need, like 8GiB (default: what is free)."
    ),
    to: opt.Output,
) -> None:  # fmt: skip
    """Rank all mechanisms by predicted time and memory.

    Those that compute softmax attention come first; of the others it says what they give up, and
    from which lengths on another one is fastest.

    Examples:
      attnprof recommend --seq 8192 --d-model 1024 --heads 16 --phase train
      attnprof recommend --seq 4096 --causal --memory 2GiB
      attnprof recommend --seq 16384 --phase decode --set window=1024
    """
    if shape.seq is None:
        raise RequestError(f"recommend needs --seq: type {EXAMPLE}")
    if shape.attention is not None:
        raise RequestError("recommend ranks all mechanisms: leave --attention out, or type predict")
    workloads = shape.workloads(conditions)
    if len(workloads) > 1:
        raise RequestError(
            f"--seq {shape.seq}: recommend takes one length; it looks at others, too"
        )
    from attnprof.device.recommendation import recommend as rank

    with working("predicting"):
        report = rank(
            workloads[0], parse_set(conditions.settings), device=conditions.device, scope=scope,
            threads=threads, path=calibration, on=on, memory=parse_bytes(memory, "--memory"),
        )  # fmt: skip
    to.deliver(report)
