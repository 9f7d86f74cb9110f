"""A model's costs as a report: by phase, part and kind of layer, as numbers and closed forms.

Formulas also give curves over the length: FLOPs by part and bytes of the cache. Entry point:
:func:`model_report`.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnprof.algebra.values import evaluate
from attnprof.errors import AttnprofError, CannotRunError
from attnprof.models.costs import by_part, calls_by_part, half_length, weights_met
from attnprof.models.engine import difference
from attnprof.models.forms import Model, ModelForms, at_layers
from attnprof.models.memory import (
    CacheForms,
    cache_bytes,
    peak_fields,
    training_memory,
    ungraded_note,
)
from attnprof.models.parts import PARTS
from attnprof.models.phases import PhaseRun, run_of, with_forms
from attnprof.models.whole import NoCacheError, WholeModel
from attnprof.processes.progress import tell
from attnprof.record import ModelRecord, Report
from attnprof.trace.events import Trace, added, bound, left_out, reservations, totals
from attnprof.trace.report.records import ends_of, text
from attnprof.trace.run.limits import Shares
from attnprof.workload import ITEM_SIZES

#: Points of a curve, which reaches from a 64th of the asked length to 64 times it.
_POINTS, _AROUND = 49, 64


def _shares(run: PhaseRun, sizes: Mapping[str, int], model: Model) -> dict[str, Any] | None:
    """Return FLOPs by part at lengths where a phase's formulas hold; None if they have no N."""
    forms, counted = run.forms, Counter[str]()
    if forms is None or not any("N" in shape for shape in forms.verified_at):
        return None
    for (_, part), values in by_part(run.trace, run.phase, model.places, model.kinds).items():
        counted[part] += values["flops"]

    def flops(sizes: Mapping[str, int]) -> Mapping[str, int]:
        sums = Counter[str]()
        for (_, part), values in forms.parts.items():
            sums[part] += evaluate(values.get("flops", 0), {**sizes, **forms.layers})
        return +sums

    curve, at = _curve(flops, forms.holds, sizes, +counted)
    parts = {part: [x.get(part, 0) for x in at] for part in dict.fromkeys(k for x in at for k in x)}
    return {**curve, "parts": parts} if len(at) > 1 and parts else None


def _growth(cache: CacheForms, sizes: Mapping[str, int], counted: int) -> dict[str, Any] | None:
    """Return bytes of the cache at lengths where its formula holds; None if there are none.

    ``counted`` are the bytes in a run at the asked sizes.
    """
    if cache.whole is None:
        return None

    def held_at(at: Mapping[str, int]) -> Any:
        return evaluate(cache.whole, {**at, **cache.layers})

    curve, cache_bytes = _curve(held_at, cache.holds, sizes, counted)
    return {**curve, "bytes": cache_bytes} if len(cache_bytes) > 1 and any(cache_bytes) else None


def _curve(
    value: Callable[[Mapping[str, int]], Any], holds: Callable[[Any], bool],
    sizes: Mapping[str, int], counted: Any,
) -> tuple[dict[str, Any], list[Any]]:  # fmt: skip
    """Return lengths around the asked one at which formulas hold, with a batch, and values there.

    Formulas that hold from a batch of 2 on are evaluated at 2, unless at 1 they give the number
    that was ``counted`` in a run.
    """
    steps = (_AROUND ** (2 * i / (_POINTS - 1) - 1) for i in range(_POINTS))
    near = dict.fromkeys(max(1, round(sizes["N"] * step)) for step in steps)
    lengths, shown = [n for n in near if holds({**sizes, "N": n})], sizes
    if not lengths and sizes["B"] == 1:  # a size of 1 is often outside the domain
        two = {**sizes, "B": 2}
        lengths = [n for n in near if holds({**two, "N": n})]
        shown = sizes if value(sizes) == counted else two
    curve = {"batch_size": shown["B"], "seq_len": lengths}
    return curve, [value({**shown, "N": n}) for n in lengths]


#: Default limit on processor seconds, after which no more formulas are derived.
LIMIT_S = 180.0


def model_report(
    subject: WholeModel, phases: Sequence[str], sizes: Mapping[str, int], *,
    optimizer: str = "adamw", limit_s: float = LIMIT_S,
    environment: Mapping[str, Any] | None = None,
) -> Report:  # fmt: skip
    """Return the report on a model's phases: numbers at ``sizes`` (B and N), formulas in B and N.

    A phase that the model does not have, or that does not run, is left out with a note; if no phase
    runs, the first error is raised, :class:`CannotRunError` or :class:`RequestError`. Numbers come
    first; formulas get the rest of ``limit_s`` seconds of processor time.
    """
    shares = Shares(limit_s)
    runs, failed = _runs(subject, phases, sizes, limit_s)
    notes = [*subject.notes, *(f"no {phase}: {error}" for phase, error in failed.items())]
    if "prefill" in phases and not subject.last_logits:
        notes.append("prefill is its forward pass: it takes no logits_to_keep")
    model = Model.of(subject, [run.trace for run in runs])
    keeps = _has_cache(subject, phases, failed.get("decode"))
    shares.tasks = len(runs) + keeps
    kept = _cache(subject, sizes, model, shares, notes) if keeps else None
    runs = _with_forms(runs, subject, model, sizes, shares)
    records = [row for run in runs for row in _records(run, model)]
    layers = {name: n for run in runs if run.forms for name, n in run.forms.layers.items()}
    shares_of_parts = {run.name: _shares(run, sizes, model) for run in runs}
    summary: dict[str, Any] = {
        "name": subject.name,
        "dtype": subject.dtype,
        "view": subject.view,
        "at": {name: sizes[name] for name in subject.target().symbols} | layers,
        "parameters": model.parameters,
        "active_parameters": model.active,
        "layers": {name: number for name, number in model.layers.items() if name},
        "phases": {run.name: _phase_fields(run, subject, sizes) for run in runs},
        "logits": {run.name: logits for run in runs if (logits := subject.logits_of(run.name))},
        "curves": {"shares": {name: x for name, x in shares_of_parts.items() if x}, "cache": None},
    }
    first = next((run for run in runs if run.phase == "forward"), None)
    summary["attention_half_seq_len"] = None if first is None else _half_length(first, sizes)
    ends = [] if first is None or first.forms is None else ends_of(first.forms.domain)
    summary["attention_half_domain"] = ends
    if kept is not None:
        rows, cache = kept
        summary["cache_domain"] = list(cache.domain)
        summary["at"] |= cache.layers
        if rows:
            summary["curves"]["cache"] = _growth(cache, sizes, int(rows[-1].value or 0))
        records += rows
        decoded = [run for run in runs if run.phase == "decode"]
        if rows and decoded:
            least = _least_traffic(subject, model, decoded[0], sizes.get("B", 1), rows[-1].value)
            summary["phases"]["decode"]["least_traffic"] = least
    if train := next((run for run in runs if run.phase == "train"), None):
        summary["memory"] = training_memory(subject, model.few(subject), train.trace, optimizer)
        summary["memory_bound"] = bound(train.trace, "train", "peak_bytes")
        notes += ungraded_note(subject, train.trace)
    records = [replace(row, view=subject.view) for row in records]
    return Report("model", records, {**summary, "notes": notes}, environment or {})


def _has_cache(subject: WholeModel, phases: Sequence[str], error: AttnprofError | None) -> bool:
    """Return whether the cache is asked for, and there is one."""
    missing = isinstance(error, NoCacheError if subject.caches else AttnprofError)
    keeps_tokens = subject.caches or subject.steps is not None
    return keeps_tokens and not missing and bool({"forward", "prefill", "decode"} & {*phases})


def _runs(
    subject: WholeModel, phases: Sequence[str], sizes: Mapping[str, int], limit_s: float
) -> tuple[list[PhaseRun], dict[str, AttnprofError]]:
    """Return the phases that run, and errors of the others; raise the first one if none runs."""
    runs, failed = list[PhaseRun](), dict[str, AttnprofError]()
    for phase in phases:
        tell(f"running {subject.name}: {phase}")
        try:
            runs.append(
                run_of(subject, phase, sizes, limit_s, other_phase=runs[0].trace if runs else None)
            )
        except AttnprofError as error:
            failed[phase] = error
    if not runs:
        first = next(iter(failed.values()))
        others = [phase for phase in ("forward", "train", "decode") if phase not in phases]
        if not others or not isinstance(first, CannotRunError) or "type " in str(first):
            raise first
        raise CannotRunError(
            f"{first}; type another phase: --phase {' or '.join(others)}"
        ) from first
    return runs, failed


def _with_forms(
    runs: Sequence[PhaseRun], subject: WholeModel, model: Model, sizes: Mapping[str, int],
    shares: Shares,
) -> list[PhaseRun]:  # fmt: skip
    """Return the runs with formulas; short runs come first and leave unused time to the others."""
    by_length = sorted(runs, key=lambda run: len(run.trace.calls))
    forms = {run.name: with_forms(run, subject, model, sizes, shares) for run in by_length}
    return [forms[run.name] for run in runs]


def _phase_fields(run: PhaseRun, subject: WholeModel, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return a phase's fields: formulas or why none, its peak, the difference to other views."""
    forms = run.forms
    fields: dict[str, Any] = {
        "missing": run.missing,
        "uncounted": list(left_out(run.trace, run.phase)),
        "notes": [*run.trace.notes, *reservations(run.trace, run.phase)],
    }
    if forms is not None:
        shapes = [dict(shape) for shape in forms.verified_at]
        fields = {
            "method": forms.method, "domain": list(forms.domain), "verified_at": shapes,
            "uncounted": list(forms.uncounted), "notes": list(forms.notes),
        }  # fmt: skip
    peak = peak_fields(run.trace, run.phase, forms, sizes)
    return fields | {
        "peak": peak, "other_views": difference(subject, run.trace, run.phase, sizes),
    }  # fmt: skip


def _records(run: PhaseRun, model: Model) -> Iterator[ModelRecord]:
    """Yield rows by kind of layer and part, then of the whole; kinds of one name are one."""
    numbers = by_part(run.trace, run.phase, model.places, model.kinds)
    forms = run.forms or ModelForms("", {}, {})
    met, rows = list[Any](), defaultdict[Any, list[Any]](list)
    calls = calls_by_part(run.trace, run.phase, model.places, model.kinds)
    for (kind, part), values in numbers.items():
        closed = dict(forms.parts.get((kind, part), {}))
        resting, entries = model.resting.get((kind, part), 0), values["parameters"]
        values["active_parameters"] = entries - resting
        if "parameters" in closed:  # a token meets the same share in all layers
            closed["active_parameters"] = _share(closed["parameters"], entries - resting, entries)
        met.append(closed.get("active_parameters"))
        trace = Trace(calls[kind, part], routes=run.trace.routes if resting else [])
        rows[kind.name, part].append((values, closed, trace))
    for (name, part), parts in rows.items():
        traces = [trace for _, _, trace in parts]
        joint = Trace([call for trace in traces for call in trace.calls], routes=traces[0].routes)
        for quantity in parts[0][0]:
            terms = [closed.get(quantity) for _, closed, _ in parts]
            yield ModelRecord(
                part=part, layer_kind=name, count=model.layers[name], phase=run.name,
                quantity=quantity, expression=None if None in terms else text(added(terms)),
                value=added([values[quantity] for values, _, _ in parts]),
                bound=bound(joint, run.phase, quantity),
            )  # fmt: skip
    whole = dict(forms.whole)
    if "parameters" in whole and None not in met:
        whole["active_parameters"] = added(met)
    values = {**totals(run.trace, run.phase), "active_parameters": model.active}
    for quantity, value in values.items():
        yield ModelRecord(
            part="total", layer_kind="", count=1, phase=run.name, quantity=quantity,
            expression=text(whole.get(quantity)), value=value,
            bound=bound(run.trace, run.phase, quantity),
        )  # fmt: skip


def _share(size: Any, part: int, whole: int) -> Any:
    """Return a number or an expression times ``part / whole``."""
    import sympy

    return size if part == whole else sympy.expand(size * sympy.Rational(part, whole))


def _half_length(run: PhaseRun, sizes: Mapping[str, int]) -> int | None:
    """Return the length from which on attention is half of the FLOPs; None without formulas."""
    forms = run.forms
    if forms is None or not forms.parts or "N" not in {x for at in forms.verified_at for x in at}:
        return None
    flops = {part: list[Any]() for part in PARTS}
    for (_, part), values in forms.parts.items():
        flops[part].append(at_layers(values.get("flops", 0), forms.layers))
    whole = added([x for terms in flops.values() for x in terms])

    def holds(length: int) -> bool:
        at = {name: max(2, size) for name, size in {**sizes, "N": length}.items()}
        return forms.holds(at)

    return half_length(added(flops["attention"]), whole, holds)


def _cache(
    subject: WholeModel, sizes: Mapping[str, int], model: Model, shares: Shares, notes: list[str]
) -> tuple[list[ModelRecord], CacheForms]:
    """Return bytes of the cache by kind of layer, then of the whole, and where formulas hold."""
    try:
        rows, forms = cache_bytes(subject, sizes, model, shares)
    except AttnprofError as error:
        notes.append(f"no size of the cache: {error}")
        return [], CacheForms()
    if forms.missing:
        notes.append(f"no formula of the cache: {forms.missing}")
    if subject.no_step:
        notes.append(f"cache_bytes is that of the other layers: {subject.no_step}")
    return rows, forms


def _least_traffic(
    subject: WholeModel, model: Model, run: PhaseRun, tokens: int, cache: Any
) -> dict[str, int]:
    """Return bytes of the cache and of weights that decoded tokens use, each read once."""
    modules = {call.module for call in run.trace.part("decode")}
    met = weights_met(model.weights, modules, subject.experts, subject.chosen, tokens)
    return {"weights": met * ITEM_SIZES[subject.dtype], "cache": int(cache)}
