"""``attnprof tradeoff``: the error of approximations against softmax attention, and their cost."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from attnprof import registry
from attnprof.cli import options as opt
from attnprof.cli.request import head_shape, parse_names, parse_set, parse_size, some_of
from attnprof.errors import RequestError, closest
from attnprof.record import Report

if TYPE_CHECKING:
    from attnprof.measure.request import Budget
    from attnprof.measure.tradeoff import Candidate
    from attnprof.measure.tradeoff_inputs import QueriesKeysValues

SEQ, HEADS, WIDTH = "512", "1", "64"
OVER = ("flops", "time", "memory")


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Flags for the mechanisms that are compared, and the inputs."""

    attention: list[str] | None = opt.flag(
        "NAMES", "Mechanisms, or my.py:Name, separated by commas; repeatable (default: all).",
        "--attention", "-a",
    )  # fmt: skip
    source: list[str] | None = opt.flag(
        "NAMES", "random, peaked, local, low-rank (default: all four), or a .safetensors or .pt "
        "file with tensors q, k and v; repeatable.", "--input",
    )  # fmt: skip
    norms: str = opt.flag(
        "NAMES", "Lengths of the rows of q and k: sphere (all the same), spread, or sphere,spread.",
        default="sphere",
    )  # fmt: skip
    seq: str | None = opt.flag("SIZE", f"Tokens (default {SEQ}).")
    built_for: str | None = opt.flag(
        "SIZE", "Tokens that mechanisms made for one length are made for (default: as many)."
    )
    d_model: str | None = opt.flag("SIZE", "Model width (default: heads × d).")
    heads: str | None = opt.flag("SIZE", f"Number of heads (default {HEADS}).")
    d: str | None = opt.flag("SIZE", f"Head width (default {WIDTH}).")
    batch: str | None = opt.flag("SIZE", "Batch size (default 1).")
    causal: opt.CausalOption = False
    settings: opt.SetOption = None

    @property
    def longest(self) -> int | None:
        """Return the tokens that mechanisms made for one length are made for, if typed."""
        return None if self.built_for is None else parse_size(self.built_for, "--built-for")

    def shape(self) -> tuple[int, int, int, int] | None:
        """Return (batch, heads, tokens, width) of drawn inputs; None if no flag has a size."""
        if not any((self.seq, self.d_model, self.heads, self.d, self.batch)):
            return None
        defaults = (HEADS, WIDTH) if self.d_model is None else (None, None)
        count, width = head_shape(self.d_model, self.heads or defaults[0], self.d or defaults[1])
        batch = parse_size(self.batch or "1", "--batch")
        return batch, count, parse_size(self.seq or SEQ, "--seq"), width

    def inputs(self, seed: int) -> "list[QueriesKeysValues]":
        """Return the inputs: drawn ones by structure and row lengths, then the files'."""
        from attnprof.measure import tradeoff_inputs as inputs

        norms = some_of(self.norms, ("sphere", "spread"), "--norms")
        sources, shape = _split_names(self.source, "--input"), self.shape()
        files = [name for name in sources if inputs.is_file(name)]
        structures = [name for name in sources or inputs.STRUCTURES if name not in files]
        for name in structures:
            if name not in inputs.STRUCTURES:
                near, suffixes = closest(name, list(inputs.STRUCTURES)), ", ".join(inputs.READERS)
                raise RequestError(f"--input {name}: {near}; or a file ({suffixes})")
        if shape is not None and not structures:
            raise RequestError(
                f"--input {files[0]} has its own sizes: leave out --seq, --d-model, --heads, --d "
                "and --batch"
            )
        sizes = shape or (1, int(HEADS), int(SEQ), int(WIDTH))
        drawn = [inputs.structured(name, sizes, norms=lengths, causal=self.causal, seed=seed)
                 for lengths in norms for name in structures]  # fmt: skip
        return [*drawn, *map(inputs.supplied, files)]

    def candidates(self, seq_len: int, head_dim: int) -> "list[Candidate]":
        """Return every mechanism with every value of the parameters that tune it."""
        from attnprof.measure.tradeoff import candidates

        names = _split_names(self.attention, "--attention") or registry.names()
        typed = parse_set(self.settings).items()
        values = {key: parse_names(text, f"--set {key}=") for key, text in typed}
        return candidates(names, values, seq_len, head_dim)


def _split_names(texts: Sequence[str] | None, flag: str) -> list[str]:
    return list(dict.fromkeys(name for text in texts or () for name in parse_names(text, flag)))


def tradeoff(
    *,
    choice: Compared,
    dtype: opt.DtypeOption = "float32",
    device: opt.DeviceOption = "auto",
    distill: bool = opt.switch(
        "--distill", "Instead, train 003's models on a made-up language: minutes on the CPU."
    ),
    quick: bool = opt.switch("--quick", "A tiny --distill, to see that it runs: seconds."),
    time: bool = opt.switch("--time/--no-time", "Measure times, too.", default=True),
    samples: int = opt.whole(20, "--samples", "Calls of each mechanism that are timed.", 1),
    max_time: float = opt.flag(
        "SECONDS", "Time all of them at most this long together.", default=60.0
    ),
    seeds: int | None = opt.whole(
        None, "--seeds", "Draws of weights that start as random (default 3), or repetitions of "
        "--distill (default 1).", 1, 1000,
    ),
    seed: int = opt.whole(0, "--seed", "Seed of inputs, and of the first weights.", 0, 2**63 - 1),
    over: str = opt.flag(
        "|".join(OVER), "What --plot has for its cost: flops, time or memory.",
        default="flops", callback=opt.among("--over", OVER),
    ),
    to: opt.DrawnOutput,
) -> None:  # fmt: skip
    """Compare approximations with softmax attention.

    How far outputs are from it, beside FLOPs, memory and time, over the parameter by which each
    mechanism trades one for the other; --set window=32,64 gives its values. Errors are of the core
    (what follows q, k and v), in float64.

    Examples:
      attnprof tradeoff --input local --plot pareto.png
      attnprof tradeoff -a performer --set num_features=16,64,256 --no-time
      attnprof tradeoff --input qkv.safetensors --causal
      attnprof tradeoff --distill --plot distilled.png
    """
    if distill:
        others = {"--device": device.startswith("cuda"), "--dtype": dtype != "float32"}
        flags = [*opt.typed(choice), *(flag for flag, value in others.items() if value)]
        _distill(flags, seed, seeds or 1, to, quick=quick, timed=time)
        return
    if quick:
        raise RequestError("--quick is of --distill: type attnprof tradeoff --distill --quick")
    if over == "time" and not time and to.plot is not None:
        raise RequestError("--over time needs times: leave out --no-time")
    from attnprof.measure.request import Budget

    budget = Budget(samples, 0.0, max_time, warmup_s=0.05, least=min(3, samples)) if time else None
    report = _compare(choice, dtype, device, seeds or 3, seed, budget)
    to.deliver(replace(report, summary={**report.summary, "over": over}))


def _compare(
    choice: Compared, dtype: str, device: str, seeds: int, seed: int, budget: "Budget | None"
) -> Report:
    """Return the report of every mechanism on every input."""
    from attnprof.measure.batch import resolve_device
    from attnprof.measure.environment import describe_environment
    from attnprof.measure.tradeoff import Terms, tradeoff_report

    terms = Terms(choice.causal, dtype, resolve_device(device), seeds, seed, choice.longest)
    inputs = choice.inputs(seed)
    chosen = choice.candidates(inputs[0].q.shape[2], inputs[0].q.shape[3])
    where = describe_environment(terms.device, seed)
    where["threads"] = 1 if budget else where["threads"]
    with opt.working("comparing"):
        return tradeoff_report(chosen, inputs, terms, budget, where)


def _distill(
    flags: Sequence[str], seed: int, seeds: int, to: opt.DrawnOutput, *, quick: bool, timed: bool
) -> None:
    """Run document 003's experiment, with progress on stderr; refuse ``flags`` of other runs."""
    if flags:
        raise RequestError(
            f"--distill has models, sizes and data of its own, on the CPU: leave out {flags[0]}"
        )
    from attnprof.measure.environment import describe_environment
    from attnprof.papers.approximation.distillation import FULL, QUICK
    from attnprof.papers.approximation.measurements import distill_report

    scale = QUICK if quick else FULL
    where = describe_environment("cpu", seed) | {"threads": 1}
    with opt.working("distilling") as progress:
        done = 0

        def tell(_step: int, _total_steps: int, text: str) -> None:
            nonlocal done
            done += 1
            progress.tell(text, done, seeds * scale.total_steps)

        report = distill_report(scale, seed, seeds, where, tell, opt.note, timed=timed)
    to.deliver(report)
