"""A derivation as a report: a record a formula, and in the summary where the costs arise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnprof.record import DeriveRecord, Report
from attnprof.trace.evaluation import evaluate
from attnprof.trace.events import QUANTITIES, Trace
from attnprof.trace.report.cuda_allocator import cublas_workspace, predict_cuda
from attnprof.trace.report.derivation import Derivation, Formula, PhaseForms
from attnprof.trace.report.origins import operations, peak_moment, steps, subtotals


def report_of(
    derivation: Derivation,
    quantities: Sequence[str] = QUANTITIES,
    *,
    environment: Mapping[str, Any] | None = None,
    in_steps: bool = False,
    **asked: Any,
) -> Report:
    """Records of the quantities by phase; the summary has the rest.

    ``asked`` is what the reader wants to see again; ``in_steps`` adds every operation in order.
    """
    records = [
        _record(derivation, forms, forms.formulas[quantity])
        for forms in derivation.phases.values()
        for quantity in quantities
    ]
    summary = {
        "name": derivation.name,
        "symbols": list(derivation.symbols),
        "at": dict(derivation.asked),
        "inputs": list(derivation.inputs),
        "dtype": derivation.dtype,
        **asked,
        "notes": list(derivation.notes),
        "phases": {
            phase: {
                **_found(derivation, forms),
                "notes": list(forms.notes),
                **_origins(derivation, forms, in_steps=in_steps),
            }
            for phase, forms in derivation.phases.items()
        },
    }
    return Report("derive", records, summary, environment or {})


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
        **_found(derivation, forms),
    )


def _found(derivation: Derivation, forms: PhaseForms) -> dict[str, Any]:
    """How a phase was found: shapes of the runs have their sizes in the order of the symbols."""
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
    """What ``sympy.sympify`` reads, given the symbols."""
    return None if expression is None else str(expression)


def _value(formula: Formula, asked: Mapping[str, int]) -> Any:
    if formula.expression is None:
        return formula.value
    return value_at(formula.expression, asked)


def value_at(expression: Any, sizes: Mapping[str, int]) -> Any:
    """The value where every symbol of the expression has a size, else None."""
    if expression is None:
        return None
    names = {symbol.name for symbol in getattr(expression, "free_symbols", ())}
    return evaluate(expression, sizes) if names <= set(sizes) and sizes else None


def _origins(derivation: Derivation, forms: PhaseForms, *, in_steps: bool) -> dict[str, Any]:
    """Where a phase's costs arise."""
    if forms.trace is None:
        return {}
    at = derivation.asked if set(derivation.asked) == set(derivation.symbols) else {}
    how = (forms.trace, forms.phase, at)
    found = {
        "peak": _peak(forms.formulas["peak_bytes"], *how),
        "operations": operations(*how),
        "lines": subtotals(*how),
    }
    return {**found, "steps": steps(*how)} if in_steps else found


def _cuda(trace: Trace, phase: str, at: Mapping[str, int]) -> dict[str, int]:
    """What the same tensors would take on a CUDA device, cuBLAS's own memory apart."""
    peaks = predict_cuda(trace, phase, at)
    return {
        "requested_bytes": peaks.requested,
        "allocated_bytes": peaks.allocated,
        "reserved_bytes": peaks.reserved,
        "cublas_workspace_bytes": cublas_workspace((8, 0)),
        "cublas_workspace_bytes_hopper": cublas_workspace((9, 0)),
    }


def _peak(formula: Formula, trace: Trace, phase: str, at: Mapping[str, int]) -> dict[str, Any]:
    """The polynomials of the peak; where a shape is asked, their values and the moment."""
    expression = formula.expression
    is_max = type(expression).__name__ == "Max"
    found: dict[str, Any] = {
        "regimes": [
            {"expression": text(regime), "value": value_at(regime, at)}
            for regime in (expression.args if is_max else [expression])
        ]
    }
    if at:
        moment = peak_moment(trace, phase, at)
        # a trace of interpolated counts may not say what each operation holds
        if moment.get("bytes") == _value(formula, at):
            found |= {**moment, "cuda": _cuda(trace, phase, at)}
    return found
