"""Derivations of a spread of modules: method, domain, values of formulas, what runs say of them.

The cases are those of ``shapes.py``, ``mechanisms.py``, ``foreign.py`` and
``transformers_models.py`` in ``reports/derive`` that are quick, with each way to a formula among
them. Formulas are kept as their values at ``POINTS``, as a formula may be written in other words;
a point outside of the domain says so. At two random shapes of the domain formulas are held against
runs on fake tensors; own mechanisms, besides, against their closed form at a dozen.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BOTH = ("forward", "train")
#: Mechanism, scope, causal, phases.
MECHANISMS: tuple[tuple[str, str, bool, tuple[str, ...]], ...] = (
    ("linear", "core", True, BOTH), ("linear", "core", False, ("decode",)),
    ("linformer", "layer", False, BOTH), ("longformer", "core", True, ("forward",)),
    ("performer", "core", True, ("train",)), ("nystromformer", "core", False, ("forward",)),
    ("she", "layer", False, BOTH), ("taylor-efficient", "core", True, ("train",)),
    ("taylorshift", "core", True, ("train",)), ("reformer", "core", False, ("forward",)),
)  # fmt: skip
#: Sizes at which formulas are evaluated, one column a shape; other sizes than these are ``OTHERS``.
POINTS = {
    "B": (2, 3, 2, 5, 3, 4), "N": (9, 64, 256, 421, 768, 4096), "h": (2, 6, 4, 3, 8, 16),
    "d": (8, 5, 16, 7, 32, 64),
}  # fmt: skip
OTHERS = 4, 8, 16, 7, 12, 64
#: What ``reports/derive/shapes.py`` derives.
WRITTEN = (
    "taylor-direct", "we", "Llama", "GPT2", "ModernBert", "recurrence", "chunked", "padded",
    "Strict", "Stack", "Experts", "blockwise", "state_space_duality", "retention", "log_linear",
    "parts", "running", "Bags", "ordered", "Pyramid", "Convolutions", "Fourier", "solved",
    "Losses", "sevenths", "RelativeTable", "Grouped", "Windows", "Masked", "Cross",
)  # fmt: skip
#: Modules of torch and transformers, by the plainest request.
FOREIGN = (
    "torch.nn:GRU", "torch.nn:LSTM", "torch.nn:TransformerDecoderLayer",
    "transformers:LlamaAttention", "transformers:GPT2Block", "transformers:T5Attention",
    "transformers:MixtralSparseMoeBlock", "transformers:Swinv2SelfAttention",
)  # fmt: skip
#: Models of transformers with tiny configurations.
MODELS = ("Nystromformer", "DebertaV2")


def cases() -> dict[str, Callable[[], Iterator[str]]]:
    """Return what derives each case, by name."""
    makers: dict[str, Callable[[], Iterator[str]]] = {}
    for name, scope, causal, phases in MECHANISMS:
        label = " ".join([name, scope, *["causal"] * causal, *phases])
        makers[label] = partial(mechanism, name, scope, causal, phases)
    makers |= {name: partial(written, name) for name in WRITTEN}
    makers |= {name: partial(foreign, name) for name in FOREIGN}
    return makers | {f"model {name}": partial(model, name) for name in MODELS}


def files(only: str) -> Iterator[tuple[str, str]]:
    """Yield a name and the lines of each case, made in a process of its own."""
    sys.path.insert(0, str(ROOT / "reports"))
    import derive.shapes  # noqa: F401 - once for all processes

    context = multiprocessing.get_context("fork")
    names = [name for name in cases() if only in name]
    with context.Pool(1, maxtasksperchild=1) as pool:
        for name, text in zip(names, pool.imap(lines, names, chunksize=1), strict=True):
            yield f"derivation_{name.replace(' ', '_').replace(':', '.')}.txt", text


def lines(name: str) -> str:
    """Return what a case has to say, a line for each thing."""
    return "\n".join(cases()[name]()) + "\n"


def mechanism(name: str, scope: str, causal: bool, phases: tuple[str, ...]) -> Iterator[str]:
    """Yield what a mechanism's derivation says, and its closed form of it."""
    from derive import mechanisms

    from attnprof import registry
    from attnprof.trace.request.lookup import mechanism_target

    spec = registry.get(name, **(mechanisms.TO_DECODE.get(name, {}) if "decode" in phases else {}))
    target = mechanism_target(spec, scope, causal=causal)

    def closed(_derivation: Any, forms: Any) -> Iterator[str]:
        for off, by in mechanisms.comparisons(spec, scope, causal, forms):
            yield f"closed form: {off or 'equal'}" + (f", peak {by:+}" if by else "")

    yield from phase_lines(target, phases, closed)


def written(name: str) -> Iterator[str]:
    """Yield what is said of code written for the reports."""
    from derive.shapes import listed

    make = next(make for _, names, make in listed() if names == name)
    yield from phase_lines(make(), BOTH, against_runs)


def foreign(name: str) -> Iterator[str]:
    """Yield what is said of a module of somebody's, by its name alone."""
    from attnprof.errors import AttnprofError
    from attnprof.trace.request.lookup import target_of

    try:
        target = target_of(name)
    except AttnprofError as error:
        yield f"refused: {error}"
        return
    yield from (f"note: {note}" for note in target.notes)
    yield from phase_lines(target, BOTH, against_runs)


def model(name: str) -> Iterator[str]:
    """Yield what is said of a small model of transformers."""
    from derive.transformers_models import build_model

    from attnprof.trace.request.lookup import target_of

    target = target_of(partial(build_model, name), name=name, inputs=["input_ids: B, N int64"])
    yield from phase_lines(target, BOTH, against_runs)


def phase_lines(
    target: Any, phases: tuple[str, ...], held: Callable[[Any, Any], Iterator[str]]
) -> Iterator[str]:
    """Yield method, domain, notes and formulas of each phase, and what they are held against."""
    from attnprof.errors import AttnprofError
    from attnprof.trace.solve.derive import derived

    for phase in phases:
        yield f"# {phase}"
        try:
            derivation = derived(target, (phase,))
        except AttnprofError as error:
            yield f"refused: {error}"
            continue
        forms = derivation.phases[phase]
        yield f"method: {forms.method}"
        yield f"domain: {'; '.join(forms.domain)}"
        yield from (f"note: {note}" for note in forms.notes)
        for quantity, formula in forms.formulas.items():
            yield f"{quantity}: {forms.bound(quantity) if formula.expression is not None else None}"
        yield from values(derivation, forms)
        yield from held(derivation, forms)


def values(derivation: Any, forms: Any) -> Iterator[str]:
    """Yield the values of all formulas of a phase at each of the points inside its domain."""
    from attnprof.algebra.values import evaluate

    for place, other in enumerate(OTHERS):
        sizes = {
            name: POINTS[name][place] if name in POINTS else other for name in derivation.symbols
        }
        values_by_quantity = {
            quantity: evaluate(formula.expression, sizes)
            for quantity, formula in (forms.formulas if forms.holds(sizes) else {}).items()
            if formula.expression is not None
        }
        yield f"at {sizes}: {values_by_quantity or 'outside'}"


def against_runs(derivation: Any, forms: Any) -> Iterator[str]:
    """Yield what runs at two random shapes of the domain say of the formulas."""
    from derive import shapes as report

    report.SHAPES = 2
    for sizes, counted in report.runs(derivation, forms, 7):
        wrong = report.differences(forms, sizes, counted)
        yield f"at {sizes}: {'; '.join(wrong) or f'{len(counted)} as counted'}"
