"""``attnprof model``: what a whole model costs, alone or beside others; its FLOPs a token."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Argument

import attnprof
from attnprof.cli import options as opt
from attnprof.cli import request
from attnprof.cli.kept import KeptReport
from attnprof.errors import RequestError
from attnprof.models.comparison import with_memory
from attnprof.models.names import check_sources, fields_of, named
from attnprof.models.swap import swaps_of
from attnprof.record.report import Report
from attnprof.workload import DTYPES, PHASES

if TYPE_CHECKING:
    from attnprof.models.whole import WholeModel

USUAL_PHASES = "forward,train,decode"
#: Flags of a model's report that change no FLOPs a token.
INDIFFERENT = ("--seq", "--as", "--optimizer", "--set", "--limit")


def _choice(
    flag: str, metavar: str, possible: Sequence[str], words: str, default: str | None = None
) -> Any:
    """Return a flag that takes one of the possible names."""
    return opt.flag(metavar, words, flag, default=default, callback=opt.among(flag, possible))


def _limit(seconds: float) -> float:
    """Return the seconds of ``--limit``, or raise :class:`RequestError`."""
    if not 0 <= seconds < inf:
        raise RequestError(f"--limit {seconds}: give seconds, from 0 (no formulas) on")
    return seconds


@dataclass(frozen=True, kw_only=True)
class ModelFlags:
    """Options for the phases of a model, its sizes, and how it is run."""

    seq: str | None = opt.flag(
        "SIZE",
        "Tokens: of a prompt, or before a decoded one (default: 1024, or the most it takes).",
    )  # fmt: skip
    target_seq: str | None = opt.flag(
        "SIZE", "Tokens M that an encoder-decoder gives (default: as many as --seq)."
    )
    batch: opt.BatchOption = "1"
    inputs: list[str] | None = opt.flag(
        "TEXT", 'What my.py:factory takes, like "x: B, 3, 224, 224" (default: guessed); '
        "repeatable.", "--input",
    )  # fmt: skip
    phase: str = opt.flag(
        "PHASES", "Of prefill (a prompt), forward, backward, train (both), decode.",
        "--phase", default=USUAL_PHASES,
    )  # fmt: skip
    logits: str | None = _choice(
        "--logits", "TOKENS", ("last", "all"),
        "Logits of a prompt's last token or all (default: last in prefill, all in forward).",
    )  # fmt: skip
    view: str | None = _choice(
        "--as", "VIEW", ("engine", "torch", "definition"),
        "As engines run it (engine), as the installed transformers does (torch), by definition.",
    )  # fmt: skip
    dtype: str | None = _choice(
        "--dtype", "DTYPE", DTYPES,
        "Format of weights and activations (default: the configuration's, or float32).",
    )  # fmt: skip
    kernel: str | None = _choice(
        "--kernel", "NAME", ("eager", "sdpa"),
        "How transformers computes attention: eager or sdpa (default: its own choice).",
    )  # fmt: skip
    optimizer: str = _choice(
        "--optimizer", "NAME", ("adamw", "adam", "sgd", "none"),
        "Whose state a training step holds: adamw, adam, sgd or none.", "adamw",
    )  # fmt: skip
    swap: opt.SwapOption = None
    settings: opt.SetOption = None
    memory: str | None = opt.flag(
        "SIZE", "Say whether each phase fits into this memory, like 80GB."
    )
    compare: list[str] | None = opt.flag(
        "MODELS",
        "Put these models beside CONFIG: a prompt, a decoded token, the cache; repeatable.",
    )
    limit: float = opt.flag(
        "SECONDS", "Processor time: numbers come first, formulas get what is left (0: no "
        "formulas).", default=180.0, callback=_limit,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Mfu:
    """Flags for FLOPs a token, as model FLOPs utilisation takes them."""

    mfu: bool = opt.switch("--mfu", "FLOPs a token by conventions of papers and trainers, for MFU.")
    counting: str | None = opt.flag(
        "NAME", "With --mfu: palm, megatron, torchtitan, verl, 6n, executed or all (the default).",
        "--convention",
    )  # fmt: skip
    lengths: str | None = opt.flag(
        "SIZES", "With --mfu: tokens of each sequence of a packed batch."
    )
    as_python: Path | None = opt.flag(
        "FILE", "With --mfu: write it there as a Python function, too."
    )


def model(
    *,
    config: str | None = Argument(
        None, metavar="CONFIG",
        help="A config.json or its folder, a name (list --models, a type, the Hub's), a .toml "
        "file, or my.py:factory.",
    ),
    flags: ModelFlags,
    utilisation: Mfu,
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
    if config is None:
        raise RequestError("model needs a configuration: type attnprof model config.json")
    if utilisation.mfu:
        typed = [*opt.typed(flags), *["--plot"] * (to.plot is not None)]
        if wrong := [flag for flag in typed if flag not in INDIFFERENT]:
            raise RequestError(f"{wrong[0]} and --mfu are two questions: leave one of them out")
        _flops_per_token(config, flags.seq, utilisation, to)
        return
    if without := [*opt.typed(utilisation)]:
        raise RequestError(f"{without[0]} is about FLOPs a token: type --mfu, too")
    phases = request.some_of(flags.phase, ("prefill", *PHASES), "--phase")
    most = request.parse_bytes(flags.memory, "--memory")
    texts = {"B": ("--batch", flags.batch), "N": ("--seq", flags.seq),
             "M": ("--target-seq", flags.target_seq)}  # fmt: skip
    sizes = {name: request.parse_size(text, flag) for name, (flag, text) in texts.items()
             if text is not None}  # fmt: skip
    options: dict[str, Any] = {
        "swaps": swaps_of(flags.swap or (), request.parse_set(flags.settings)),
        **{name: getattr(flags, name) for name in
           ("view", "kernel", "inputs", "logits", "optimizer", "dtype", "limit")},
    }  # fmt: skip
    others = request.parse_models(flags.compare, "--compare")
    if config in others:
        raise RequestError(f"--compare {config}: that is the model itself; type another one")
    check_sources(config, *others)
    if not others:
        report = ModelRequest(config, phases, sizes, **options).report()
        to.deliver(report if most is None else with_memory(report, most))
        return
    if flags.phase != USUAL_PHASES or most is not None:
        flag = "--memory" if most is not None else "--phase"
        raise RequestError(f"{flag} is for one model: leave it or --compare out")
    to.deliver(_compared((config, *others), {"N": 1024, **sizes}, options))


def _compared(names: Sequence[str], sizes: dict[str, int], options: dict[str, Any]) -> Report:
    """Return the report on models side by side; first run are those that may refuse their length.

    All are read before one runs.
    """
    from attnprof.models.comparison import PHASES as COMPARED
    from attnprof.models.comparison import comparison

    requests = [ModelRequest(name, COMPARED, sizes, **options) for name in names]
    by_name = {one.config: one.report() for one in sorted(requests, key=ModelRequest.takes_length)}
    reports = [by_name[name] for name in names]
    return comparison(reports, reports[0].environment)


@dataclass
class ModelRequest:
    """A request for a model's phases, answered by a kept report or by a run of the model."""

    config: str
    phases: Sequence[str]
    sizes: dict[str, int]
    view: str | None = None
    kernel: str | None = None
    swaps: Sequence[Any] = ()
    inputs: Sequence[str] | None = None
    logits: str | None = None
    optimizer: str = "adamw"
    dtype: str | None = None
    limit: float = 180.0

    def __post_init__(self) -> None:
        self._file = KeptReport("model", *vars(self).values(), fields_of(self.config))
        self.kept = self._file.read()

    @cached_property
    def subject(self) -> "WholeModel":
        """The model, whose usual length stands for a length that is not asked for."""
        with opt.working(f"reading {self.config}"):
            from attnprof.models.engine import seen_as
            from attnprof.models.sources import subject_of

            config, kernel, swaps = self.config, self.kernel, self.swaps
            inputs = self.inputs or ()
            if "N" not in self.sizes:
                usual = subject_of(config, kernel, inputs=inputs).usual_length
                self.sizes = {"N": usual, **self.sizes}
            subject = subject_of(config, kernel, swaps, self.sizes["N"], inputs)
            subject = subject.with_target_length() if "M" in self.sizes else subject
            if self.logits and not subject.last_logits:
                raise RequestError(
                    f"--logits: {subject.name} has no such choice: leave --logits out"
                )
            dtype = self.dtype or subject.dtype
            subject = replace(subject, logits=self.logits or "", dtype=dtype)
            return seen_as(subject, self.view, kernel, swaps)

    def takes_length(self) -> bool:
        """Return whether the model is for as many tokens as are asked for; else it may refuse."""
        return self.kept is not None or not 0 < self.subject.longest < self.sizes["N"]

    def report(self) -> Report:
        """Return the report: the kept one, if the request and the code are the same."""
        if self.kept is not None:
            return self.kept
        subject = self.subject
        with opt.working(f"deriving {self.config}: {', '.join(self.phases)}"):
            import torch

            from attnprof.models.report import model_report

            where = opt.environment(torch=torch.__version__)
            report = model_report(
                subject, self.phases, self.sizes, optimizer=self.optimizer, limit_s=self.limit,
                environment=where,
            )  # fmt: skip
        path = Path(self.config)
        file = path / "config.json" if path.is_dir() else path if path.is_file() else None
        self._file.write(report, file)
        return report


def _flops_per_token(config: str, seq: str | None, flags: Mfu, to: opt.Output) -> None:
    """Write FLOPs a token of a model, and the Python file if one is asked for."""
    from attnprof.models.mfu import conventions_of, mfu_report, python_file

    conventions = conventions_of("all" if flags.counting is None else flags.counting)
    lengths = [] if flags.lengths is None else request.parse_lengths(flags.lengths, "--lengths")
    if seq is not None and lengths:
        raise RequestError("--seq and --lengths both say how long sequences are: type one")
    lengths = lengths or ([] if seq is None else [request.parse_size(seq, "--seq")])
    opt.ensure_writable(flags.as_python, force=to.force, flag="--as-python")
    named(config)  # before torch is loaded
    with opt.working(f"counting {config}"):
        from attnprof.models.mfu_sizes import sizes_of

        sizes = sizes_of(config)
        where = opt.environment()
    report = mfu_report(sizes, conventions, lengths or [sizes.usual_length], where)
    if flags.as_python is not None:
        opt.write(python_file(sizes, conventions, config, attnprof.__version__), flags.as_python)
    to.deliver(report)
