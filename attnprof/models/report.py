"""A model's costs as a report: by phase, part and kind of layer, in numbers and in closed form."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from attnprof.errors import AttnprofError, RequestError
from attnprof.models.cache import CacheBytes, CacheForms, cache_bytes
from attnprof.models.costs import LayerKind, by_kind, by_part
from attnprof.models.curves import growth, shares
from attnprof.models.forms import (
    LAYERS,
    ModelForms,
    Repeated,
    UnlikeError,
    at_layers,
    of_whole,
    repeated,
)
from attnprof.models.memory import training_memory
from attnprof.models.parts import PARTS, ModulePlace, places
from attnprof.models.share import half_length
from attnprof.models.whole import NoCacheError, WholeModel
from attnprof.record import ModelRecord, Report
from attnprof.trace.events import Trace, added, totals
from attnprof.trace.report.records import text
from attnprof.trace.solve.budget import is_patient, patience
from attnprof.trace.solve.count import count
from attnprof.trace.solve.derive import derived

#: Seconds of processor time that formulas of a phase may take, unless said otherwise.
LIMIT_S = 60.0


@dataclass(frozen=True)
class PhaseRun:
    """A phase of a model at the asked sizes, and its formulas; ``missing`` is why it has none."""

    phase: str
    trace: Trace
    forms: ModelForms | None = None
    missing: str = ""


@dataclass(frozen=True)
class Model:
    """A subject as it is built: every module's place, its layers by kind, its parameters."""

    places: Mapping[str, ModulePlace]
    kinds: Sequence[LayerKind]
    parameters: int
    active: int
    repeated: Repeated | None = field(repr=False)

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
        return cls(where, kinds, entries, active, repeated(subject, model, where, kinds))


def model_report(
    subject: WholeModel,
    phases: Sequence[str],
    sizes: Mapping[str, int],
    *,
    optimizer: str = "adamw",
    limit_s: float = LIMIT_S,
    environment: Mapping[str, Any] | None = None,
) -> Report:
    """What a model costs in some phases at ``sizes`` (B and N), and by formula in B and N.

    A phase that it does not have, or that does not run, is left out with a note, unless there is no
    other: then that is an error, :class:`CannotRunError` or :class:`RequestError`. Formulas of a
    phase get ``limit_s`` seconds of processor time: numbers are there without them, too.
    """
    runs, failed = list[PhaseRun](), dict[str, AttnprofError]()
    for phase in phases:
        try:
            runs.append(_run(subject, phase, sizes))
        except AttnprofError as error:
            failed[phase] = error
    if not runs:
        raise next(iter(failed.values()))
    notes = [*subject.notes, *(f"no {phase}: {error}" for phase, error in failed.items())]
    model = Model.of(subject, [run.trace for run in runs])
    for place, run in enumerate(runs):
        with patience(limit_s):
            found = _with_forms(run, subject, model, sizes)
            if not is_patient() and (found.forms is None or found.forms.method == "counted"):
                missing = f"they take more than {limit_s:g} s of processor time: raise --limit"
                found = replace(found, forms=None, missing=missing)
            runs[place] = found
    records = [row for run in runs for row in _records(run, model)]
    summary: dict[str, Any] = {
        "name": subject.name,
        "dtype": subject.dtype,
        "at": {**sizes, **_layers(runs)},
        "parameters": model.parameters,
        "active_parameters": model.active,
        "layers": {kind.name: kind.count for kind in model.kinds if kind.name},
        "phases": {run.phase: _found(run) for run in runs},
        "curves": _curves(runs, sizes),
    }
    first = next((run for run in runs if run.phase == "forward"), None)
    summary["attention_half_seq_len"] = None if first is None else _half(first)
    keeps = subject.caches and not isinstance(failed.get("decode"), NoCacheError)
    if keeps and {"forward", "decode"} & {*phases}:
        with patience(limit_s):
            rows, cache = _cache(subject, sizes, model, notes)
        summary["cache_domain"] = list(cache.domain)
        layers = summary["at"].get(LAYERS)
        whole = rows[-1].expression if rows else None
        summary["curves"]["cache"] = growth(whole, cache.holds, sizes, layers)
        records += [_cache_record(row) for row in rows]
    if any(run.phase == "train" for run in runs):
        train = next(run for run in runs if run.phase == "train")
        few = subject if model.repeated is None else model.repeated.few
        summary["memory"] = training_memory(subject, few, train.trace, optimizer)
    return Report("model", records, {**summary, "notes": notes}, environment or {})


def _run(subject: WholeModel, phase: str, sizes: Mapping[str, int]) -> PhaseRun:
    """A run of all layers; it is held against one on real tensors where formulas are derived."""
    target = subject.target(phase)
    asked = {name: sizes[name] for name in target.symbols}
    try:
        return PhaseRun(phase, count(target, asked, phase, held=False))
    except RequestError as error:
        if not subject.longest or asked.get("N", 0) <= subject.longest:
            raise
        raise RequestError(
            f"{subject.name} takes at most {subject.longest} tokens, as its configuration says: "
            f"type --seq {subject.longest} or less, not {asked['N']}"
        ) from error


def _with_forms(
    run: PhaseRun, subject: WholeModel, model: Model, sizes: Mapping[str, int]
) -> PhaseRun:
    target, phase = subject.target(run.phase), run.phase
    asked = {name: sizes[name] for name in target.symbols}
    if model.repeated is not None:
        try:
            return replace(run, forms=model.repeated.forms(phase, asked, run.trace))
        except (UnlikeError, AttnprofError):
            pass  # what a few layers do not show, all of them may
    run = replace(run, trace=count(target, asked, phase))
    try:
        near = {name: size for name, size in asked.items() if size > 1}
        forms = derived(replace(target, step=target), (phase,), near).phases[phase]
    except AttnprofError as error:
        return replace(run, missing=str(error))
    return replace(run, forms=of_whole(forms, model.places, model.kinds))


def _layers(runs: Sequence[PhaseRun]) -> dict[str, int]:
    """The number of layers, where formulas have a symbol for it."""
    told = [run.forms.layers for run in runs if run.forms is not None and run.forms.layers]
    return {LAYERS: told[0]} if told else {}


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
    forms = run.forms or ModelForms("", {}, {})
    for (kind, part), values in numbers.items():
        own = forms.parts.get((kind, part), {})
        for quantity, value in values.items():
            yield ModelRecord(
                part=part, layer_kind=kind.name, count=kind.count, phase=run.phase,
                quantity=quantity, expression=text(own.get(quantity)), value=value,
            )  # fmt: skip
    for quantity, value in totals(run.trace, run.phase).items():
        yield ModelRecord(
            part="total", layer_kind="", count=1, phase=run.phase, quantity=quantity,
            expression=text(forms.whole.get(quantity)), value=value,
        )  # fmt: skip


def _half(run: PhaseRun) -> int | None:
    forms = run.forms
    if forms is None or "N" not in {name for shape in forms.verified_at for name in shape}:
        return None
    flops = {part: list[Any]() for part in PARTS}
    for (_, part), values in forms.parts.items():
        flops[part].append(at_layers(values.get("flops", 0), forms.layers))
    return half_length(added(flops["attention"]), added([x for own in flops.values() for x in own]))


def _cache(
    subject: WholeModel, sizes: Mapping[str, int], model: Model, notes: list[str]
) -> tuple[list[CacheBytes], CacheForms]:
    """By kind of layer, then the whole; and where the formulas hold."""
    try:
        return cache_bytes(subject, sizes, model.repeated)
    except AttnprofError as error:
        notes.append(f"no size of the cache: {error}")
        return [], CacheForms()


def _cache_record(row: CacheBytes) -> ModelRecord:
    return ModelRecord(
        part="attention" if row.kind else "total", layer_kind=row.kind, count=row.count,
        phase="decode", quantity="cache_bytes", expression=text(row.expression), value=row.value,
    )  # fmt: skip


def _curves(runs: Sequence[PhaseRun], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Shares of each phase's FLOPs over length, where formulas tell."""
    found = {run.phase: shares(run.forms, sizes) for run in runs}
    return {"shares": {phase: curve for phase, curve in found.items() if curve}, "cache": None}
