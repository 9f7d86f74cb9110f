"""A derivation as a report: a record for each formula; the summary says where costs arise."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from math import inf
from operator import itemgetter
from typing import Any

from attnprof.algebra.orders import leading_terms, total
from attnprof.algebra.values import evaluate
from attnprof.record import DeriveRecord, Report
from attnprof.trace.events import KINDS, QUANTITIES, Call, Trace, added, flops_of, times_of
from attnprof.trace.report.cuda_allocator import CUBLAS_WORKSPACE, HOPPER_WORKSPACE, predict_cuda
from attnprof.trace.report.derivation import Derivation, Formula, PhaseForms, curves_of, submodules
from attnprof.trace.request.target import LARGE, Sizes
from attnprof.trace.sizes import live_bytes
from attnprof.units import grouped


def report_of(
    derivation: Derivation,
    quantities: Sequence[str] = QUANTITIES,
    *,
    environment: Mapping[str, Any] | None = None,
    in_steps: bool = False,
    with_curves: bool = False,
    **request: Any,
) -> Report:
    """Return a record for each quantity and phase; the summary has notes, peaks, rows by operation.

    ``request`` are further fields of the summary; ``in_steps`` adds every operation,
    ``with_curves`` what a figure draws.
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
            "answer": answer(forms) if "N" in derivation.symbols else "",
            **_method_fields(derivation, forms),
            "notes": [*forms.notes, *disjoint_lengths(forms, derivation.phases.values())],
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
        **request,
        "notes": list(derivation.notes),
        "phases": phases,
        **({"curves": curves_of(derivation)} if with_curves else {}),
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
    has_value = expression is not None and sizes and names <= set(sizes)
    return evaluate(expression, sizes) if has_value else None


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
        "cublas_workspace_bytes": CUBLAS_WORKSPACE,
        "cublas_workspace_bytes_hopper": HOPPER_WORKSPACE,
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
    parts = {part for name in names for part in _PARTS.get(name, (name,))}
    blank = {part: None if "value" in part else "no formula" for part in parts}
    return [
        {**row, **{part: blank[part] for part in parts & row.keys() if row[part] not in ("0", 0)}}
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
    place, most = max(live_bytes(trace, phase, at), key=itemgetter(1), default=(None, 0))
    if place is None:
        return {}
    call = trace.calls[place]
    return {"operation": call.op, "part": call.part, "line": call.line, "bytes": most}


# -- sentences: how costs grow with the length N, and up to which length that is known -----
# "FLOPs grow with N**2, about 4*B*N**2*h*d for long inputs": only if the formulas hold for all long
# inputs; else the sentence says up to which N. A total that leaves something out is "at least".
#: Operations in a formula beyond which it takes too long to find how it grows.
LONG = 300
#: Conditions that bound the lengths of a domain from above, and from below.
_ENDS = re.compile(r"N (<=|<|=) (.+)|(.+) (>=|>) N")
_BEGINS = re.compile(r"(?:\w+, )*N(?:, \w+)* (>=|>|=) (\d+)|(\d+) (<=|<) N")
#: A quantity's name, its verbs, and its unit, for sentences.
_WORDS = {
    "flops": ("FLOPs", "grow", "do", "are", ""),
    "peak_bytes": ("peak memory", "grows", "does", "is", " bytes"),
}


def answer(forms: PhaseForms) -> str:
    """Return how FLOPs and peak memory grow with the length N; empty if unknown.

    In a bounded domain, sides of a maximum are compared at its longest N and the last shape that
    the formulas were verified at.
    """
    ends = ends_of(forms.domain)
    if any(condition.startswith("N = ") for condition in ends):
        return ""
    shape = (forms.verified_at or ({},))[-1]
    longest = lengths_of(forms.domain)[1]
    sizes = defaultdict(lambda: 100, {**LARGE, **shape, "N": longest}) if ends else None
    sentence = "; ".join(filter(None, [_growth(forms, name, sizes) for name in _WORDS]))
    return f"Where {' and '.join(ends)}, {sentence}" if ends and sentence else sentence


def _growth(forms: PhaseForms, quantity: str, sizes: Mapping[str, Any] | None) -> str:
    """Return how one quantity grows, for all long inputs or up to the N of ``sizes``."""
    import sympy

    what, grows, does, are, unit = _WORDS[quantity]
    floor = forms.bound(quantity) == "at least"
    expression = _side(forms.formulas[quantity].expression, sizes)
    if expression is None or sympy.count_ops(expression) > LONG:
        return ""
    terms = leading_terms(expression, ["N"])
    about = sympy.expand(total(terms or ()))
    if terms is None and isinstance(expression, sympy.Max):  # no side wins: it grows as their sum
        terms = leading_terms(sympy.Add(*expression.args), ["N"])
    if terms is None or not about.free_symbols <= getattr(expression, "free_symbols", set()):
        return ""
    order = total(terms, factors=False)
    if not order.free_symbols:
        least = f"{what} {are} at least an amount that does not depend on N"
        return least if floor else f"{what} {does} not depend on N"
    least = "at least " * floor
    where = "for long inputs" if sizes is None else f"at N = {sizes['N']}"
    is_close = about and (sizes is None or _is_close(about, expression, sizes))
    amount = f", {least}about {about}{unit} {where}" if is_close else ""
    return f"{what} {grows} {least}with {order}{amount}"


def _side(expression: Any, sizes: Mapping[str, Any] | None) -> Any:
    """Return the case of a formula, or the side of its maximum, that holds at the longest N."""
    import sympy

    if isinstance(expression, sympy.Piecewise) and sizes is None:
        *few, last = expression.args
        plain = all(str(getattr(holds, "lts", "")) == "N" for _, holds in few)
        return last[0] if plain else expression
    if sizes is None or sizes["N"] == inf:
        return expression
    if isinstance(expression, sympy.Max):
        return max(expression.args, key=lambda side: evaluate(side, sizes))
    if isinstance(expression, sympy.Piecewise):
        at = {name: sympy.Integer(sizes[str(name)]) for name in expression.free_symbols}
        return next((x for x, holds in expression.args if holds.subs(at) is sympy.true), None)
    return expression


def _is_close(about: Any, expression: Any, sizes: Mapping[str, Any]) -> bool:
    """Return whether the leading terms are a formula's value up to a quarter."""
    if sizes["N"] == inf:
        return False
    value = evaluate(expression, sizes)
    return bool(abs(evaluate(about, sizes) - value) <= value / 4)


def disjoint_lengths(forms: PhaseForms, phases: Iterable[PhaseForms]) -> Iterator[str]:
    """Yield a note for every other phase whose formulas share no length with these."""
    first, last = lengths_of(forms.domain)
    for other in phases:
        low, high = lengths_of(other.domain)
        if max(first, low) > min(last, high):
            yield (
                f"this holds for {_span(forms)}, the formulas of {other.phase} for {_span(other)}: "
                "no length has both, as the code does something else beyond each and runs of the "
                f"one phase say nothing of the other; --phase {forms.phase} --at N=... asks for "
                "this one at another length"
            )


def _span(forms: PhaseForms) -> str:
    """Return the conditions of a phase on the length, as text."""
    of_length = (x for x in forms.domain if _ENDS.fullmatch(x) or _BEGINS.fullmatch(x))
    return "; ".join(of_length)


def ends_of(domain: Iterable[str]) -> list[str]:
    """Return conditions that bound N from above; of several numbers the smallest."""
    ends = [condition for condition in domain if _ENDS.fullmatch(condition)]
    return [end for end in ends if lengths_of([end])[1] in (inf, lengths_of(ends)[1])]


def lengths_of(domain: Iterable[str]) -> tuple[Any, Any]:
    """Return the shortest and the longest N of a domain, as far as its conditions are numbers."""
    first: Any = 1
    last: Any = inf
    for condition in domain:
        if match := _ENDS.fullmatch(condition):
            sign, number = match[1] or match[4], match[2] or match[3]
            if number.isdigit():
                last = min(last, int(number) - (sign in "<>"))
        if match := _BEGINS.fullmatch(condition):
            sign, number = match[1] or match[4], match[2] or match[3]
            first = max(first, int(number) + (sign in "<>"))
    return first, last
