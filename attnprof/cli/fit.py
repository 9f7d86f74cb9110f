"""``attnprof fit``: whether a model fits a memory, and how much of it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from typer import Argument

from attnprof.cli import options as opt
from attnprof.cli.measurement import CALIBRATION
from attnprof.cli.request import parse_bytes, parse_set, parse_size
from attnprof.device.ceilings import THIS_MACHINE, memory_of
from attnprof.errors import RequestError
from attnprof.models.fit_options import FitOptions, TrainingOptions
from attnprof.models.names import named
from attnprof.models.swap import swaps_of


def _ranks(flag: str, text: str) -> Any:
    return opt.whole(1, flag, text, 1, 2**20)


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Options for dividing a model among devices: tensor, expert, pipeline and data parallel."""

    tensor_parallel: int = _ranks("--tensor-parallel", "Ranks that share every layer.")
    pipeline: int = _ranks("--pipeline", "Stages of layers, one after the other.")
    expert_parallel: int = _ranks("--expert-parallel", "Ranks that share the experts.")
    context_parallel: int = _ranks("--context-parallel", "Ranks that share the tokens.")


@dataclass(frozen=True, kw_only=True)
class Formats:
    """Options for number formats of weights and caches, pages of a cache, and reserved memory."""

    dtype: str | None = opt.flag(
        "NAME", "Weights: bfloat16, fp8, int4, mxfp4, q8_0, q4_k_m … (default: the file's)."
    )
    cache_dtype: str | None = opt.flag(
        "NAME", "Cache: bfloat16 (the default), fp8, q8_0, nvfp4 …; fp8,nvfp4: keys, values."
    )
    block_size: int = opt.whole(16, "--block", "Tokens of a page of the cache.", 1, 2**20)
    chunk: int = opt.whole(8192, "--chunk", "Tokens of prompts at once.", 1, 2**30)
    utilization: float = opt.flag("SHARE", "Share of the memory that is used.", default=0.9)
    uncapped: bool = opt.switch("--uncapped", "Window layers keep all tokens, too.")


@dataclass(frozen=True, kw_only=True)
class Training:
    """Options for training: optimizer, format of gradients, recomputed activations."""

    train: bool = opt.switch("--train", "A training step instead of serving.")
    optimizer: str = opt.flag(
        "NAME", "With --train: adamw, adamw-8bit, muon or sgd.", default="adamw"
    )
    gradient_dtype: str = opt.flag(
        "NAME", "With --train: gradients, bfloat16 or float32.", default="bfloat16"
    )
    sequence_parallel: bool = opt.switch(
        "--sequence-parallel/--no-sequence-parallel",
        "With --train: ranks share the inputs of norms and blocks, too.", default=True,
    )  # fmt: skip
    recompute: str = opt.flag(
        "NAME", "With --train: what backward computes again: none, selective (attention) or full.",
        default="selective",
    )  # fmt: skip
    shard: str = opt.flag(
        "NAME", "With --train: none, zero1, zero2 or zero3 (FSDP).", default="none"
    )
    data_parallel: int = _ranks("--data-parallel", "With --train: ranks with other sequences.")


def _options(common: dict[str, Any], training: Training) -> Any:
    """Return the options of serving, or with ``--train`` of a training step."""
    if training.train:
        options = {name: x for name, x in vars(training).items() if name != "train"}
        return TrainingOptions(**common, **options)
    if flags := [*opt.typed(training)]:
        raise RequestError(f"{flags[0]} is of training: type --train, too")
    return FitOptions(**common)


def fit_(
    *,
    config: str | None = Argument(
        None, metavar="CONFIG",
        help="A config.json or its folder, or a name (list --models, a type, the Hub's).",
    ),
    memory: str | None = opt.flag("SIZE", "Memory of one device, like 80GB."),
    on: str | None = opt.flag(
        "NAME", "A device by its maker, as h100, or by its calibration; cpu and cuda are here.",
        "--on", callback=opt.device_name,
    ),
    calibration: Path | None = CALIBRATION,
    swap: opt.SwapOption = None,
    settings: opt.SetOption = None,
    measure: bool = opt.switch("--measure", "Time it with random weights; --on cpu, cuda."),
    seq: str = opt.flag("SIZE", "Tokens of each sequence.", default="4096"),
    batch: opt.BatchOption = "1",
    formats: Formats,
    ranks: Ranks,
    training: Training,
    to: opt.Output,
) -> None:  # fmt: skip
    """Say whether a model fits a device, and how much of it.

    Weights, cache, activations and reserve of one rank in bytes and closed forms; the longest
    context and the largest batch that fit. With --on, also how fast it can be at most.

    Examples:
      attnprof fit llama-3.1-8b --memory 24GB --seq 32768
      attnprof fit gpt-oss-120b --on h100 --seq 131072 --tensor-parallel 2
      attnprof fit llama-3.1-8b --memory 24GB --swap gated-deltanet@pattern=3:1
      attnprof fit llama-3.1-8b --on h200 --train --shard zero3 --data-parallel 8
    """
    if config is None:
        raise RequestError("fit needs a model: type attnprof fit llama-3.1-8b --memory 80GB")
    if memory is None and on is None:
        raise RequestError("fit needs one of --memory 80GB and --on h100")
    if measure and (on not in THIS_MACHINE or swap):
        raise RequestError(
            "--measure runs the model as it is here: type --on cpu or --on cuda, no --swap"
        )
    common = {
        "memory": parse_bytes(memory, "--memory") or memory_of(str(on)),
        "seq_len": parse_size(seq, "--seq"), "batch_size": parse_size(batch, "--batch"),
        **vars(formats), **vars(ranks),
    }  # fmt: skip
    options = _options(common, training)
    swaps = swaps_of(swap or (), parse_set(settings))
    named(config)  # before torch is loaded
    with opt.working(f"laying out {config}"):
        from attnprof.device.model_times import with_speeds
        from attnprof.models.fit import fit_report, training_report
        from attnprof.models.fit_layout import fit_model

        model = fit_model(config, swaps, common["seq_len"], served=not training.train)
        report = training_report(model, options) if training.train else fit_report(model, options)
        if on is not None and not training.train and not swap:
            report = with_speeds(report, model, options, on, calibration, measured=measure)
    to.deliver(replace(report, environment=opt.environment()))
