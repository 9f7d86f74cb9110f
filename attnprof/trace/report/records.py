"""A derivation as a report: a record for each formula; the summary says where costs arise."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from attnprof.record import DeriveRecord, Report
from attnprof.trace.events import KINDS, QUANTITIES, Call, Trace, added, flops_of, grouped, times_of
from attnprof.trace.report.cuda_allocator import cublas_workspace, predict_cuda
from attnprof.trace.report.derivation import Derivation, Formula, PhaseForms
from attnprof.trace.report.headlines import answer, apart
from attnprof.trace.report.submodules import submodules
from attnprof.trace.request.target import LARGE, Sizes
from attnprof.trace.sizes import evaluate


def report_of(
    derivation: Derivation,
    quantities: Sequence[str] = QUANTITIES,
    *,
    environment: Mapping[str, Any] | None = None,
    in_steps: bool = False,
    **asked: Any,
) -> Report:
    """Return records of the quantities by phase; the summary has the rest.

    ``asked`` are fields of the request that the summary repeats; ``in_steps`` adds every operation.
    """
    records = [
        _record(derivation, forms, forms.formulas[quantity])
        for forms in derivation.phases.values()
        for quantity in quantities
    ]
    at = derivation.asked if set(derivation.asked) == set(derivation.symbols) else {}
    phases = {}
    for phase, forms in derivation.phases.items():
        how = (forms.trace, phase, at)
        phases[phase] = {
            "answer": _headline(forms) if "N" in derivation.symbols else "",
            **_method_fields(derivation, forms),
            "notes": [*forms.notes, *apart(forms, derivation.phases.values())],
            "peak": {
                "bound": forms.bound("peak_bytes"),
                **_peak(forms.formulas["peak_bytes"], *how),
            },
            "operations": _without_withheld(operations(*how), forms),
            "lines": _without_withheld(subtotals(*how), forms),
            "modules": _without_withheld(modules(*how), forms),
            **({"steps": _without_withheld(steps(*how), forms)} if in_steps else {}),
        }
    summary = {
        "name": derivation.name,
        "symbols": list(derivation.symbols),
        "at": dict(derivation.asked),
        "inputs": list(derivation.inputs),
        "dtype": derivation.dtype,
        **asked,
        "notes": list(derivation.notes),
        "phases": phases,
    }
    return Report("derive", records, summary, environment or {})


def _headline(forms: PhaseForms) -> str:
    floors = [name for name in QUANTITIES if forms.bound(name) == "at least"]
    return answer(forms, forms.domain, floors, (forms.verified_at or ({},))[-1])


def _record(derivation: Derivation, forms: PhaseForms, formula: Formula) -> DeriveRecord:
    import sympy

    expression = formula.expression
    return DeriveRecord(
        name=derivation.name,
        phase=forms.phase,
        quantity=formula.quantity,
        expression=text(expression),
        latex=None if expression is None else str(sympy.latex(expression)),
        bound=forms.bound(formula.quantity),
        value=_value(formula, derivation.asked),
        withheld=formula.withheld,
        **_method_fields(derivation, forms),
    )


def _method_fields(derivation: Derivation, forms: PhaseForms) -> dict[str, Any]:
    """Return how a phase was found; shapes have their sizes in the order of the symbols."""
    return {
        "method": forms.method,
        "domain": list(forms.domain),
        "verified_at": [
            {name: shape[name] for name in derivation.symbols if name in shape}
            for shape in forms.verified_at
        ],
        "uncounted": list(forms.uncounted),
    }


def text(expression: Any) -> str | None:
    """Return an expression as text that ``sympy.sympify`` reads, given the symbols."""
    return None if expression is None else str(expression)


def _value(formula: Formula, sizes: Sizes) -> Any:
    return formula.value if formula.expression is None else value_at(formula.expression, sizes)


def value_at(expression: Any, sizes: Sizes) -> Any:
    """Return an expression's value if every symbol of it has a size, else None."""
    names = {symbol.name for symbol in getattr(expression, "free_symbols", ())}
    known = expression is not None and sizes and names <= set(sizes)
    return evaluate(expression, sizes) if known else None


def _peak(formula: Formula, trace: Trace, phase: str, at: Sizes) -> dict[str, Any]:
    """Return the polynomials of the peak; at a shape also their values and the moment of it."""
    whole = formula.expression
    regimes = whole.args if type(whole).__name__ == "Max" else [whole]
    fields = {"regimes": [{"expression": text(one), "value": value_at(one, at)} for one in regimes]}
    moment = peak_moment(trace, phase, at) if at else {}
    # a trace of interpolated counts may not say what each operation holds
    if not at or moment.get("bytes") != _value(formula, at):
        return fields
    # what the same tensors would take on a CUDA device, cuBLAS's own memory apart
    cuda = {
        **{f"{kind}_bytes": size for kind, size in asdict(predict_cuda(trace, phase, at)).items()},
        "cublas_workspace_bytes": cublas_workspace((8, 0)),
        "cublas_workspace_bytes_hopper": cublas_workspace((9, 0)),
    }
    return {**fields, **moment, "cuda": cuda}


# -- where costs arise: by operation, by line of the user's code, step by step ------------


def operations(trace: Trace, phase: str, at: Sizes) -> list[dict[str, Any]]:
    """Return totals by ATen operation, most FLOPs first (then bytes), at a long sequence."""
    groups = grouped(trace.part(phase), lambda call: call.op)
    costs = {op: (flops_of(calls), _moved(calls)) for op, calls in groups.items()}
    long = defaultdict(lambda: 100, LARGE)
    order = sorted(groups, key=lambda op: [evaluate(x, long) for x in costs[op]], reverse=True)
    return [{"operation": op, **_row(groups[op], at)} for op in order]


def subtotals(trace: Trace, phase: str, at: Sizes) -> list[dict[str, Any]]:
    """Return totals by line of the user's code, in the order it ran."""
    groups = grouped(trace.part(phase), lambda call: call.line)
    return [{"line": line, **_row(calls, at)} for line, calls in groups.items()]


def modules(trace: Trace, phase: str, at: Sizes) -> list[dict[str, Any]]:
    """Return the costs of each submodule in the order of ``named_modules``; none of a function."""
    quantities = ("flops", "flops_itself", "parameters", "peak_bytes")
    parts = submodules(trace, phase)
    return [
        {
            "module": part.name,
            "times": part.times,
            **{name: text(getattr(part, name)) for name in quantities},
            **{f"{name}_value": value_at(getattr(part, name), at) for name in quantities},
        }
        for part in (parts if len(parts) > 1 else ())
    ]


def steps(trace: Trace, phase: str, at: Sizes) -> list[dict[str, Any]]:
    """Return every operation in the order it ran; a row may stand for several ``calls``."""
    return [
        {
            "operation": call.op,
            "part": call.part,
            "line": call.line,
            **{kind: str(call.counts.get(kind, 0)) for kind in KINDS},
            "allocates": str(added([call.takes])),
            "frees_before": str(added([call.gives])),
            "uncounted": call.uncounted,
            **_row([call], at),
        }
        for call in trace.part(phase)
    ]


#: Fields of rows by operation, line or module that are withheld with a quantity.
_PARTS = {
    "flops": ("flops", "flops_value", "flops_itself", "flops_itself_value"),
    "bytes_moved": ("bytes_moved", "bytes_value"),
    "peak_bytes": ("allocates", "frees_before", "peak_bytes", "peak_bytes_value"),
}  # fmt: skip


def _without_withheld(rows: list[dict[str, Any]], forms: PhaseForms) -> list[dict[str, Any]]:
    """Return the rows without costs of a quantity whose formula was withheld."""
    names = [name for name, formula in forms.formulas.items() if formula.withheld]
    gone = {part for name in names for part in _PARTS.get(name, (name,))}
    without = {part: None if "value" in part else "no formula" for part in gone}
    return [
        {**row, **{part: without[part] for part in gone & row.keys() if row[part] not in ("0", 0)}}
        for row in rows
    ]


def _moved(calls: Iterable[Call]) -> Any:
    return added([call.bytes_moved for call in calls])


def _row(calls: list[Call], at: Sizes) -> dict[str, Any]:
    """Return the totals of some calls; without a shape their number may be an expression's text."""
    flops, moved, times = flops_of(calls), _moved(calls), times_of(calls)
    if times is not None:
        open_ended = getattr(times, "free_symbols", ()) and not at
        times = str(times) if open_ended else int(evaluate(times, at))
    return {
        "calls": times,
        "flops": str(flops),
        "bytes_moved": str(moved),
        "flops_value": evaluate(flops, at) if at else None,
        "bytes_value": evaluate(moved, at) if at else None,
    }


def peak_moment(trace: Trace, phase: str, at: Sizes) -> dict[str, Any]:
    """Return during which operation the most is held at a shape, and how many bytes."""
    held, most, during = 0, -1, None
    for call in trace.calls:
        held += evaluate(call.takes, at) - evaluate(call.gives, at)
        now = held + evaluate(call.workspace, at)
        if now > most and (phase != "backward" or call.part == "backward"):
            most, during = now, call
    if during is None:
        return {}
    return {"operation": during.op, "part": during.part, "line": during.line, "bytes": most}
