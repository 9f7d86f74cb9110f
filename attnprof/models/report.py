"""A model's costs as a report: by phase, part and kind of layer, in numbers and in closed form."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnprof.errors import AttnprofError, CannotRunError
from attnprof.models.costs import LayerKind, by_kind, by_part
from attnprof.models.memory import cache_bytes, training_memory
from attnprof.models.parts import PARTS, ModulePlace, places
from attnprof.models.share import half_length
from attnprof.models.whole import WholeModel
from attnprof.record import ModelRecord, Report
from attnprof.trace.events import Trace, added, totals
from attnprof.trace.report.derivation import PhaseForms
from attnprof.trace.report.records import text
from attnprof.trace.solve.count import count
from attnprof.trace.solve.derive import derived


@dataclass(frozen=True)
class PhaseRun:
    """A phase of a model at the asked sizes, and its formulas; ``missing`` is why it has none."""

    phase: str
    trace: Trace
    forms: PhaseForms | None
    missing: str = ""


@dataclass(frozen=True)
class Model:
    """A subject as it is built: every module's place, its layers by kind, its parameters."""

    places: Mapping[str, ModulePlace]
    kinds: Sequence[LayerKind]
    parameters: int
    active: int

    @classmethod
    def of(cls, subject: WholeModel, traces: Sequence[Trace]) -> "Model":
        """That of a subject, with layers told apart by what runs say."""
        import torch

        with torch.device("meta"):
            model = subject.build()
        where = places(model)
        entries = sum(weights.numel() for weights in model.parameters())
        resting = sum(
            weights.numel() for name, weights in model.named_parameters() if ".experts." in name
        )
        active = entries - resting * (subject.experts - subject.chosen) // subject.experts
        kinds = by_kind(model, where, traces, subject.layer_types)
        return cls(where, kinds, entries, active)


def model_report(
    subject: WholeModel,
    phases: Sequence[str],
    sizes: Mapping[str, int],
    *,
    optimizer: str = "adamw",
    environment: Mapping[str, Any] | None = None,
) -> Report:
    """What a model costs in some phases at ``sizes`` (B and N), and by formula in B and N.

    A phase that it does not have is left out with a note, unless there is no other: then that is a
    :class:`CannotRunError`.
    """
    runs, notes = list[PhaseRun](), list(subject.notes)
    for phase in phases:
        try:
            runs.append(_run(subject, phase, sizes))
        except CannotRunError as error:
            if len(phases) == 1:
                raise
            notes.append(f"no {phase}: {error}")
    model = Model.of(subject, [run.trace for run in runs])
    records = [row for run in runs for row in _records(run, model)]
    summary: dict[str, Any] = {
        "name": subject.name,
        "dtype": subject.dtype,
        "at": dict(sizes),
        "parameters": model.parameters,
        "active_parameters": model.active,
        "layers": {kind.name: kind.count for kind in model.kinds if kind.name},
        "phases": {run.phase: _found(run) for run in runs},
    }
    first = next((run for run in runs if run.phase == "forward"), None)
    summary["attention_half_seq_len"] = None if first is None else _half(first, model)
    if subject.caches and {"forward", "decode"} & {*phases}:
        rows, summary["cache_domain"] = _cache(subject, sizes, notes)
        records += rows
    if any(run.phase == "train" for run in runs):
        train = next(run for run in runs if run.phase == "train")
        summary["memory"] = training_memory(subject, train.trace, optimizer)
    return Report("model", records, {**summary, "notes": notes}, environment or {})


def _run(subject: WholeModel, phase: str, sizes: Mapping[str, int]) -> PhaseRun:
    target = subject.target(phase)
    asked = {name: sizes[name] for name in target.symbols}
    trace = count(target, asked, phase)
    try:
        near = {name: size for name, size in asked.items() if size > 1}
        forms = derived(replace(target, step=target), (phase,), near).phases[phase]
    except AttnprofError as error:
        return PhaseRun(phase, trace, None, str(error))
    return PhaseRun(phase, trace, forms)


def _found(run: PhaseRun) -> dict[str, Any]:
    if run.forms is None:
        return {"missing": run.missing}
    forms = run.forms
    return {
        "method": forms.method,
        "domain": list(forms.domain),
        "verified_at": [dict(shape) for shape in forms.verified_at],
        "uncounted": list(forms.uncounted),
        "notes": list(forms.notes),
    }


def _records(run: PhaseRun, model: Model) -> Iterator[ModelRecord]:
    """By kind of layer and part, then the whole."""
    numbers = by_part(run.trace, run.phase, model.places, model.kinds)
    formulas: Mapping[Any, Mapping[str, Any]] = {}
    if run.forms is not None and run.forms.method != "counted":
        formulas = by_part(run.forms.trace, run.phase, model.places, model.kinds)
    for (kind, part), values in numbers.items():
        own = formulas.get((kind, part), {})
        for quantity, value in values.items():
            yield ModelRecord(
                part=part, layer_kind=kind.name, count=kind.count, phase=run.phase,
                quantity=quantity, expression=_shown(run, quantity, own.get(quantity)), value=value,
            )  # fmt: skip
    whole = run.forms.formulas if run.forms is not None else {}
    for quantity, value in totals(run.trace, run.phase).items():
        formula = whole.get(quantity)
        yield ModelRecord(
            part="total", layer_kind="", count=1, phase=run.phase, quantity=quantity,
            expression=None if formula is None else text(formula.expression), value=value,
        )  # fmt: skip


def _shown(run: PhaseRun, quantity: str, expression: Any) -> str | None:
    """A part's formula, unless that of the whole was withheld."""
    if run.forms is None or run.forms.formulas[quantity].withheld:
        return None
    return text(expression)


def _half(run: PhaseRun, model: Model) -> int | None:
    if run.forms is None or "N" not in {s for shape in run.forms.verified_at for s in shape}:
        return None
    flops = {part: list[Any]() for part in PARTS}
    for (_, part), values in by_part(run.forms.trace, run.phase, model.places, model.kinds).items():
        flops[part].append(values["flops"])
    return half_length(added(flops["attention"]), added([x for own in flops.values() for x in own]))


def _cache(
    subject: WholeModel, sizes: Mapping[str, int], notes: list[str]
) -> tuple[list[ModelRecord], list[str]]:
    """By kind of layer, then the whole; and where the formulas hold."""
    try:
        found, domain = cache_bytes(subject, sizes)
    except AttnprofError as error:
        notes.append(f"no size of the cache: {error}")
        return [], []
    rows = [
        ModelRecord(
            part="attention" if kind else "total", layer_kind=kind, count=number, phase="decode",
            quantity="cache_bytes", expression=expression, value=value,
        )
        for kind, number, expression, value in found
    ]  # fmt: skip
    return rows, list(domain)
