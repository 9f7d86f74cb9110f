"""``attnprof explore``: write a page that evaluates closed forms at sizes a reader drags."""

from pathlib import Path
from shlex import quote
from typing import Any

from typer import Argument

import attnprof
from attnprof.cli import options as opt
from attnprof.cli import request
from attnprof.mechanism import Mechanism
from attnprof.models.names import check_sources


def explore(
    *,
    mechanisms: list[str] | None = Argument(
        None, metavar="NAMES", help="Mechanisms, or code like my.py:MyAttention."
    ),
    attention: opt.AttentionOption = None,
    model: list[str] | None = opt.flag(
        "CONFIG", "A model, too: what attnprof model takes; separated by commas, or repeated.",
        "--model",
    ),
    causal: opt.CausalOption = False,
    settings: opt.SetOption = None,
    modules: opt.Modules,
    output: Path = opt.flag(
        "FILE", "The page, one HTML file.", "--output", "-o", default=Path("explore.html")
    ),
    force: opt.ForceOption = False,
) -> None:  # fmt: skip
    """Write a page on which sizes are dragged and curves cross.

    FLOPs, memory, bytes and cache of mechanisms, code and models, and the roofline's bound on
    time, by our closed forms. The page needs no network; its address keeps what was chosen.

    Examples:
      attnprof explore -o explore.html
      attnprof explore -a sdpa,gqa,gated-deltanet --set num_kv_heads=8
      attnprof explore my.py:MyAttention standard --model llama-3.1-8b,qwen3-8b
    """
    opt.ensure_writable(output, force=force)
    models = request.parse_models(model, "--model")
    names = request.names_of(mechanisms or (), attention)
    check_sources(*models)
    from attnprof.cli.model import ModelRequest
    from attnprof.crossovers import explorer
    from attnprof.render.html import render_explorer

    if not names and not models:
        names = list(explorer.USUAL)
    conditions = request.Conditions(causal=causal, settings=settings)
    sides = request.targets_of(names, conditions, modules)
    with opt.working("writing the page's formulas"):
        scripts = explorer.Scripts()
        registered = [side for side in sides if isinstance(side, Mechanism)]
        subjects = [explorer.mechanism_subject(mechanism, scripts) for mechanism in registered]
        for name, side in zip(names, sides, strict=True):
            if side not in registered:
                subjects.append(_code(name, side, causal, modules, scripts))
        for name in models:
            report = ModelRequest(name, explorer.PHASES, {"B": 1}).report()
            subjects.append(explorer.model_subject(name, report, scripts))
        data = explorer.page_data(subjects, scripts, request.parse_set(settings), causal=causal)
        opt.write(render_explorer(data, attnprof.__version__), output)


def _code(name: str, target: Any, causal: bool, modules: opt.Modules, scripts: Any) -> Any:
    """Return the subject of a user's module."""
    from attnprof.crossovers.explorer import code_subject
    from attnprof.trace.solve.derive import derived

    derivation = derived(target, ("forward", "train"))
    typed = {"--arg": modules.args or (), "--input": modules.inputs or ()}
    words = [f"{flag} {quote(text)}" for flag, texts in typed.items() for text in texts]
    command = " ".join(["attnprof derive", quote(name), *words, *["--causal"] * causal])
    return code_subject(
        command, derivation.report(), scripts, symbols=derivation.symbols, dtype=derivation.dtype
    )
