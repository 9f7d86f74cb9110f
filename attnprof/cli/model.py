"""``attnprof model``: what a whole model costs."""

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from typer import Argument, Option

from attnprof.cli import options as opt
from attnprof.cli.derive import KeptReport
from attnprof.cli.options import working
from attnprof.cli.request import parse_bytes, parse_set, parse_size, some_of
from attnprof.cli.utilisation import Mfu
from attnprof.errors import RequestError
from attnprof.models.comparison import with_memory
from attnprof.models.names import check_names, fields_of
from attnprof.models.swap import swaps_of
from attnprof.record.report import Report
from attnprof.workload import DTYPES, PHASES

KERNELS = ("eager", "sdpa")
LOGITS = ("last", "all")
VIEWS = ("engine", "torch", "definition")
OPTIMIZERS = ("adamw", "adam", "sgd", "none")
_KERNEL: Any = Option(
    None, metavar="NAME", callback=opt.among("--kernel", KERNELS),
    help="How transformers computes attention: eager or sdpa (default: its own choice).",
)  # fmt: skip
_VIEW: Any = Option(
    None, "--as", metavar="VIEW", callback=opt.among("--as", VIEWS),
    help="As engines run it (engine), as the installed transformers does (torch), by definition.",
)  # fmt: skip
_DTYPE: Any = Option(
    None, "--dtype", metavar="DTYPE", callback=opt.among("--dtype", DTYPES),
    help="Format of weights and activations (default: the configuration's, or float32).",
)  # fmt: skip
_OPTIMIZER: Any = Option(
    "adamw", metavar="NAME", callback=opt.among("--optimizer", OPTIMIZERS),
    help="Whose state a training step holds: adamw, adam, sgd or none.",
)  # fmt: skip
_MEMORY: Any = Option(
    None, metavar="SIZE", help="Say whether each phase fits into this memory, like 80GB."
)
_PHASES = "forward,train,decode"
_PHASE: Any = Option(
    _PHASES, "--phase", metavar="PHASES",
    help="Of prefill (a prompt), forward, backward, train (both), decode.",
)  # fmt: skip
_LOGITS: Any = Option(
    None, "--logits", metavar="TOKENS", callback=opt.among("--logits", LOGITS),
    help="Logits of a prompt's last token or all (default: last in prefill, all in forward).",
)  # fmt: skip

_INPUTS: Any = Option(
    None, "--input", metavar="TEXT",
    help='What my.py:factory takes, like "x: B, 3, 224, 224" (default: guessed); repeatable.',
)  # fmt: skip
_SWAP: Any = Option(
    None, "--swap", metavar="NAME[@LAYERS]",
    help="Put a mechanism into layers: all, or like @0, @2-5, @pattern=3:1; repeatable.",
)  # fmt: skip
_COMPARE: Any = Option(
    None, "--compare", metavar="MODELS",
    help="Put these models beside CONFIG: a prompt, a decoded token, the cache; repeatable.",
)  # fmt: skip


def _time(seconds: float) -> float:
    if not 0 <= seconds < inf:
        raise RequestError(f"--limit {seconds}: give seconds, from 0 (no formulas) on")
    return seconds


_TARGET_SEQ: Any = Option(
    None, metavar="SIZE",
    help="Tokens M that an encoder-decoder gives (default: as many as --seq).",
)  # fmt: skip
_LIMIT: Any = Option(
    180.0, metavar="SECONDS", callback=_time,
    help="Processor time: numbers come first, formulas get what is left (0: no formulas).",
)  # fmt: skip


def model(
    *,
    config: str | None = Argument(
        None, metavar="CONFIG", show_default=False,
        help="A config.json or its folder, a name (list --models, a type, the Hub's), a .toml "
        "file, or my.py:factory.",
    ),
    seq: str | None = Option(
        None, metavar="SIZE",
        help="Tokens: of a prompt, or before a decoded one (default: 1024, or the most it takes).",
    ),
    target_seq: str | None = _TARGET_SEQ,
    batch: opt.BatchOption = "1",
    inputs: list[str] | None = _INPUTS,
    phase: str = _PHASE,
    logits: str | None = _LOGITS,
    view: str | None = _VIEW,
    dtype: str | None = _DTYPE,
    kernel: str | None = _KERNEL,
    optimizer: str = _OPTIMIZER,
    swap: list[str] | None = _SWAP,
    settings: opt.SetOption = None,
    memory: str | None = _MEMORY,
    compare: list[str] | None = _COMPARE,
    utilisation: Mfu,
    limit: float = _LIMIT,
    to: opt.DrawnOutput,
) -> None:  # fmt: skip
    """Show what a whole model costs, by its configuration.

    Parameters, FLOPs, bytes moved and memory by part and kind of layer, in numbers and as closed
    forms in B, N and layers L, derived from the model's own code: without weights or a network.

    Examples:
      attnprof model config.json --seq 4096 --memory 80GB
      attnprof model llama-3.1-8b --compare qwen3-8b,gemma-3-12b --seq 32768
      attnprof model config.json --swap linear@odd --plot shares.png
      attnprof model config.json --mfu --seq 8192 --as-python flops.py
    """
    config = _named(config)
    more = {"batch": batch != "1", "phase": phase != _PHASE.default, "target-seq": target_seq,
            "compare": compare, "memory": memory, "swap": swap, "input": inputs, "plot": to.plot,
            "kernel": kernel, "logits": logits, "dtype": dtype}  # fmt: skip
    if utilisation.is_asked(**more):
        utilisation.answer(config, seq, to)
        return
    phases = some_of(phase, ("prefill", *PHASES), "--phase")
    most = parse_bytes(memory, "--memory")
    sizes = _sizes({"--batch": batch, "--seq": seq, "--target-seq": target_seq})
    swaps = swaps_of(swap or (), parse_set(settings))
    asked = (view, kernel, swaps, phases, sizes, inputs, logits, optimizer, limit, dtype)
    others = [name for text in compare or () for name in text.split(",") if name]
    check_names(config, *others)
    if others:
        if phase != _PHASE.default or most is not None:
            flag = "--memory" if most is not None else "--phase"
            raise RequestError(f"{flag} is for one model: leave it or --compare out")
        to.deliver(_compared((config, *others), *asked))
        return
    report = report_on(config, *asked)
    to.deliver(report if most is None else with_memory(report, most))


def _named(config: str | None) -> str:
    if config is None:
        raise RequestError("model needs a configuration: type attnprof model config.json")
    return config


def _sizes(texts: dict[str, str | None]) -> dict[str, int]:
    """Return B, N and M by the flags that say them."""
    return {
        name: parse_size(text, flag)
        for name, (flag, text) in zip("BNM", texts.items(), strict=True) if text is not None
    }  # fmt: skip


def report_on(
    config: str, view: str | None, kernel: str | None, swaps: Any, phases: list[str], sizes: Any,
    inputs: list[str] | None, logits: str | None, optimizer: str, limit: float,
    dtype: str | None = None,
) -> Report:  # fmt: skip
    """Return the report on a model: the kept one, if the request and the code are the same."""
    kept = KeptReport(
        "model", config, view, phases, sizes, kernel, optimizer, swaps, limit, inputs, logits,
        dtype, fields_of(config),
    )  # fmt: skip
    asked = (config, view, kernel, swaps, phases, sizes, inputs or (), logits or "")
    return kept.read() or _derived(kept, *asked, dtype, optimizer=optimizer, limit_s=limit)


def _compared(
    configs: Sequence[str],
    view: str | None,
    kernel: str | None,
    swaps: Any,
    _: Any,
    sizes: Any,
    *rest: Any,
) -> Report:
    """Return the models side by side; at 1,024 tokens, unless the sizes say another length."""
    from attnprof.models.comparison import PHASES, comparison

    sizes = {"N": 1024, **sizes}
    reports = [report_on(name, view, kernel, swaps, list(PHASES), sizes, *rest) for name in configs]
    return comparison(reports, reports[0].environment)


def _file_of(path: Path) -> Path | None:
    """Return the file that a configuration was read from, if it is one."""
    return path / "config.json" if path.is_dir() else path if path.is_file() else None


def _derived(
    kept: KeptReport, config: str, view: str | None, kernel: str | None, swaps: Any,
    phases: list[str], sizes: Any, inputs: Sequence[str], logits: str, dtype: str | None,
    **how: Any,
) -> Report:  # fmt: skip
    """Derive the report and keep it for the next request like this."""
    with redirect_stdout(sys.stderr), working(f"deriving {config}: {', '.join(phases)}"):
        import torch

        from attnprof.models.engine import seen_as
        from attnprof.models.report import model_report
        from attnprof.models.sources import subject_of

        where = opt.environment(torch=torch.__version__)
        usual = 0 if "N" in sizes else subject_of(config, kernel, inputs=inputs).usual_length
        sizes = {"N": usual, **sizes}
        subject = subject_of(config, kernel, swaps, sizes["N"], inputs)
        subject = subject.apart() if "M" in sizes else subject
        if logits and not subject.last_logits:
            raise RequestError(f"--logits: {subject.name} has no such choice: leave --logits out")
        subject = replace(subject, logits=logits, dtype=dtype or subject.dtype)
        subject = seen_as(subject, view, kernel, swaps)
        report = model_report(subject, phases, sizes, **how, environment=where)
    kept.write(report, _file_of(Path(config)))
    return report
