"""``attnprof tradeoff``: what an approximation gives up, beside what it costs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from typer import Option

from attnprof import registry
from attnprof.cli import options as opt
from attnprof.cli.request import head_shape, parse_names, parse_set, parse_size, some_of
from attnprof.errors import RequestError, closest
from attnprof.render.progress import progress_bar

if TYPE_CHECKING:
    from attnprof.measure.tradeoff.structures import QueriesKeysValues

SEQ, HEADS, WIDTH = "512", "1", "64"
OVER = ("flops", "time", "memory")


def tradeoff(
    *,
    attention: list[str] | None = Option(
        None, "--attention", "-a", metavar="NAMES",
        help="Mechanisms, or my.py:Name, separated by commas; repeatable (default: all).",
    ),
    source: list[str] | None = Option(
        None, "--input", metavar="NAMES",
        help="random, peaked, local, low-rank (default: all four), or a .safetensors or .pt file "
        "with tensors q, k and v; repeatable.",
    ),
    norms: str = Option(
        "sphere", metavar="NAMES",
        help="Lengths of the rows of q and k: sphere (all the same), spread, or both.",
    ),
    seq: str | None = Option(None, metavar="SIZE", help=f"Tokens (default {SEQ})."),
    built_for: str | None = Option(
        None, metavar="SIZE",
        help="Tokens that mechanisms made for one length are made for (default: as many).",
    ),
    d_model: str | None = Option(None, metavar="SIZE", help="Model width (default: heads × d)."),
    heads: str | None = Option(None, metavar="SIZE", help=f"Number of heads (default {HEADS})."),
    d: str | None = Option(None, metavar="SIZE", help=f"Head width (default {WIDTH})."),
    batch: str | None = Option(None, metavar="SIZE", help="Batch size (default 1)."),
    causal: opt.CausalOption = False,
    dtype: opt.DtypeOption = "float32",
    device: opt.DeviceOption = "auto",
    settings: opt.SetOption = None,
    time: bool = Option(True, "--time/--no-time", help="Measure times, too."),
    samples: int = opt.whole(20, "--samples", "Calls of each mechanism that are timed.", 1),
    max_time: float = Option(
        60.0, metavar="SECONDS", help="Time all of them at most this long together."
    ),
    seeds: int = opt.whole(3, "--seeds", "Draws of weights that start as random.", 1, 1000),
    seed: int = opt.whole(0, "--seed", "Seed of inputs, and of the first weights.", 0, 2**63 - 1),
    over: str = Option(
        "flops", metavar="|".join(OVER), callback=opt.among("--over", OVER),
        help="What --plot has for its cost: flops, time or memory.",
    ),
    to: opt.DrawnOutput,
) -> None:  # fmt: skip
    """Compare approximations with softmax attention.

    How far outputs are from it, beside FLOPs, memory and time, over the parameter by which each
    mechanism trades one for the other; --set window=32,64 gives its values. Errors are of the core
    (what follows q, k and v), in float64.

    Examples:
      attnprof tradeoff --input local --plot pareto.png
      attnprof tradeoff -a performer,nystromformer --set num_landmarks=16,64 --no-time
      attnprof tradeoff --input qkv.safetensors --causal
    """
    if over == "time" and not time and to.plot is not None:
        raise RequestError("--over time needs times: leave out --no-time")
    shape = _shape(seq, d_model, heads, d, batch)
    names = _listed(attention, "--attention") or registry.names()
    values = {key: parse_names(text, f"--set {key}=") for key, text in parse_set(settings).items()}
    sources = _listed(source, "--input")
    longest = None if built_for is None else parse_size(built_for, "--built-for")
    lengths = some_of(norms, ("sphere", "spread"), "--norms")
    from attnprof.measure.batch import resolve_device
    from attnprof.measure.environment import describe_environment
    from attnprof.measure.request import Budget
    from attnprof.measure.tradeoff.candidates import candidates
    from attnprof.measure.tradeoff.report import tradeoff_report
    from attnprof.measure.tradeoff.runs import Terms

    budget = Budget(samples, 0.0, max_time, warmup_s=0.05, least=min(3, samples)) if time else None
    terms = Terms(causal, dtype, resolve_device(device), seeds, seed, longest)
    inputs = _inputs(sources, shape, lengths, terms)
    _, _, n, width = inputs[0].q.shape
    chosen = candidates(names, values, n, width)
    where = describe_environment(terms.device, seed)
    where["threads"] = 1 if budget else where["threads"]
    with progress_bar(len(chosen) * len(inputs), "tradeoff") as show:
        report = tradeoff_report(chosen, inputs, terms, budget, where, show)
    to.deliver(replace(report, summary={**report.summary, "over": over}))


def _shape(
    seq: str | None, d_model: str | None, heads: str | None, d: str | None, batch: str | None
) -> tuple[int, int, int, int] | None:
    """(batch, heads, tokens, width) of inputs that are made; None where no flag says a size."""
    if not any((seq, d_model, heads, d, batch)):
        return None
    given = (d_model, heads or HEADS, d or WIDTH) if d_model is None else (d_model, heads, d)
    count, width = head_shape(*given)
    return parse_size(batch or "1", "--batch"), count, parse_size(seq or SEQ, "--seq"), width


def _listed(given: Sequence[str] | None, flag: str) -> list[str]:
    return list(dict.fromkeys(name for text in given or () for name in parse_names(text, flag)))


def _inputs(
    sources: Sequence[str], shape: tuple[int, int, int, int] | None, norms: Sequence[str],
    terms: Any,
) -> "list[QueriesKeysValues]":  # fmt: skip
    """Those that are made, one for each of the lengths of rows, and those of files."""
    from attnprof.measure.tradeoff.structures import STRUCTURES, structured
    from attnprof.measure.tradeoff.supplied import READERS, is_file, supplied

    files = [name for name in sources if is_file(name)]
    made = [name for name in sources or STRUCTURES if name not in files]
    for name in made:
        if name not in STRUCTURES:
            known = closest(name, list(STRUCTURES))
            raise RequestError(f"--input {name}: {known}; or a file ({', '.join(READERS)})")
    if shape is not None and not made:
        raise RequestError(
            f"--input {files[0]} has its own sizes: leave out --seq, --d-model, --heads, --d and "
            "--batch"
        )
    sizes = shape or (1, int(HEADS), int(SEQ), int(WIDTH))
    own = {"causal": terms.causal, "seed": terms.seed}
    return [
        *(structured(name, sizes, norms=its, **own) for its in norms for name in made),
        *map(supplied, files),
    ]
