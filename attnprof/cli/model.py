"""``attnprof model``: what a whole model costs."""

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from typer import Argument, Option

from attnprof.cli import options as opt
from attnprof.cli.derive import KeptReport
from attnprof.cli.options import working
from attnprof.cli.request import parse_bytes, parse_lengths, parse_set, parse_size, some_of
from attnprof.errors import RequestError
from attnprof.models.fits import with_memory
from attnprof.models.swap import swaps_of
from attnprof.record.report import Report
from attnprof.workload import PHASES

KERNELS = ("eager", "sdpa")
LOGITS = ("last", "all")
OPTIMIZERS = ("adamw", "adam", "sgd", "none")
_KERNEL: Any = Option(
    None, metavar="NAME", callback=opt.among("--kernel", KERNELS),
    help="How transformers computes attention: eager or sdpa (default: its own choice).",
)  # fmt: skip
_OPTIMIZER: Any = Option(
    "adamw", metavar="NAME", callback=opt.among("--optimizer", OPTIMIZERS),
    help="Whose state a training step holds: adamw, adam, sgd or none.",
)  # fmt: skip
_MEMORY: Any = Option(
    None, metavar="SIZE", help="Say whether each phase fits into this memory, like 80GB."
)
_PHASE: Any = Option(
    "forward,train,decode", "--phase", metavar="PHASES",
    help="Of prefill (a prompt), forward, backward, train (both), decode.",
)  # fmt: skip
_LOGITS: Any = Option(
    None, "--logits", metavar="TOKENS", callback=opt.among("--logits", LOGITS),
    help="Logits of a prompt's last token or all (default: last in prefill, all in forward).",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Mfu:
    """Flags for FLOPs a token, as model FLOPs utilisation takes them."""

    mfu: bool = Option(
        False, "--mfu", help="FLOPs a token by conventions of papers and trainers, for MFU."
    )
    counting: str | None = Option(
        None, "--convention", metavar="NAME",
        help="With --mfu: palm, megatron, torchtitan, verl, 6n, executed or all (the default).",
    )  # fmt: skip
    lengths: str | None = Option(
        None, metavar="SIZES", help="With --mfu: tokens of each sequence of a packed batch."
    )
    as_python: Path | None = Option(
        None, metavar="FILE", help="With --mfu: write it there as a Python function, too."
    )

    def is_asked(self) -> bool:
        """Return whether FLOPs a token are asked for; :class:`RequestError` for half of it."""
        flags = {"--convention": self.counting, "--lengths": self.lengths, "--as-python": self.as_python}
        if not self.mfu and (flag := next((name for name, x in flags.items() if x is not None), "")):
            raise RequestError(f"{flag} is about FLOPs a token: type --mfu, too")
        return self.mfu

    def answer(self, config: str, seq: str | None, to: opt.Output) -> None:
        """Write FLOPs a token of a model, and the Python file if one is asked for."""
        import attnprof
        from attnprof.models.mfu import conventions_of, mfu_report
        from attnprof.models.mfu_python import python_file
        from attnprof.models.mfu_sizes import sizes_of

        conventions = conventions_of(self.counting or "all")
        lengths = parse_lengths(self.lengths, "--lengths") if self.lengths else []
        if seq is not None and lengths:
            raise RequestError("--seq and --lengths both say how long sequences are: type one")
        lengths = lengths or ([] if seq is None else [parse_size(seq, "--seq")])
        opt.ensure_writable(self.as_python, force=to.force, flag="--as-python")
        with redirect_stdout(sys.stderr), working(f"counting {config}"):
            sizes = sizes_of(config)
            where = opt.environment()
        report = mfu_report(sizes, conventions, lengths or [sizes.usual_length], where)
        if self.as_python is not None:
            opt.write(python_file(sizes, conventions, config, attnprof.__version__), self.as_python)
        to.deliver(report)


def _time(seconds: float) -> float:
    if not 0 <= seconds < inf:
        raise RequestError(f"--limit {seconds}: give seconds, from 0 (no formulas) on")
    return seconds


def model(
    *,
    config: str | None = Argument(
        None, metavar="CONFIG", show_default=False,
        help="A model's config.json or its folder, a .toml file, a preset, or my.py:factory.",
    ),
    seq: str | None = Option(
        None, metavar="SIZE",
        help="Tokens: of a prompt, or before a decoded one (default: 1024, or the most it takes).",
    ),
    target_seq: str | None = Option(
        None, metavar="SIZE",
        help="Tokens M that an encoder-decoder gives (default: as many as --seq).",
    ),
    batch: opt.BatchOption = "1",
    inputs: list[str] | None = Option(
        None, "--input", metavar="TEXT",
        help='What my.py:factory takes, like "x: B, 3, 224, 224" (default: guessed); repeatable.',
    ),
    phase: str = _PHASE,
    logits: str | None = _LOGITS,
    kernel: str | None = _KERNEL,
    optimizer: str = _OPTIMIZER,
    swap: list[str] | None = Option(
        None, "--swap", metavar="NAME[@LAYERS]",
        help="Put a mechanism into layers: all, or like @0, @2-5, @even; repeatable.",
    ),
    settings: opt.SetOption = None,
    memory: str | None = _MEMORY,
    utilisation: Mfu,
    limit: float = Option(
        180.0, metavar="SECONDS", callback=_time,
        help="Processor time: numbers come first, formulas get what is left (0: no formulas).",
    ),
    to: opt.DrawnOutput,
) -> None:  # fmt: skip
    """Show what a whole model costs, by its configuration.

    Parameters, FLOPs, bytes moved and memory by part and kind of layer, in numbers and as closed
    forms in B, N and layers L, derived from the model's own code: without weights or a network.

    Examples:
      attnprof model config.json --seq 4096 --memory 80GB
      attnprof model folder/ --phase train --batch 8 --optimizer sgd
      attnprof model config.json --swap linear@odd --plot shares.png
      attnprof model my.py:build_model --phase forward
      attnprof model config.json --mfu --seq 8192 --as-python flops.py
    """
    if config is None:
        raise RequestError("model needs a configuration: type attnprof model config.json")
    if utilisation.is_asked():
        utilisation.answer(config, seq, to)
        return
    phases = some_of(phase, ("prefill", *PHASES), "--phase")
    most = parse_bytes(memory, "--memory")
    lengths = {"B": ("--batch", batch), "N": ("--seq", seq), "M": ("--target-seq", target_seq)}
    sizes = {name: parse_size(x, flag) for name, (flag, x) in lengths.items() if x is not None}
    swaps = swaps_of(swap or (), parse_set(settings))
    kept = KeptReport(
        "model", config, phases, sizes, kernel, optimizer, swaps, limit, inputs, logits
    )
    asked = (config, kernel, swaps, phases, sizes, inputs or (), logits or "")
    report = kept.read() or _derived(kept, *asked, optimizer=optimizer, limit_s=limit)
    to.deliver(report if most is None else with_memory(report, most))


def _file_of(path: Path) -> Path | None:
    """Return the file that a configuration was read from, if it is one."""
    return path / "config.json" if path.is_dir() else path if path.is_file() else None


def _derived(
    kept: KeptReport, config: str, kernel: str | None, swaps: Any, phases: list[str], sizes: Any,
    inputs: Sequence[str], logits: str, **how: Any,
) -> Report:  # fmt: skip
    """Derive the report and keep it for the next request like this."""
    with redirect_stdout(sys.stderr), working(f"deriving {config}: {', '.join(phases)}"):
        import torch

        from attnprof.models.report import model_report
        from attnprof.models.sources import subject_of

        where = opt.environment(torch=torch.__version__)
        usual = 0 if "N" in sizes else subject_of(config, kernel, inputs=inputs).usual_length
        sizes = {"N": usual, **sizes}
        subject = subject_of(config, kernel, swaps, sizes["N"], inputs)
        subject = subject.apart() if "M" in sizes else subject
        if logits and not subject.last_logits:
            raise RequestError(f"--logits: {subject.name} has no such choice: leave --logits out")
        subject = replace(subject, logits=logits)
        report = model_report(subject, phases, sizes, **how, environment=where)
    kept.write(report, _file_of(Path(config)))
    return report
