"""Closed forms as JavaScript, for a page on which sizes are dragged and curves cross.

A subject of the page is a mechanism, a user's code, or a model. Its costs become functions of
B, N, h and d, each text once. A cost without a formula is missing, with the reason.
:func:`page_data` is the entry point.
"""

import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from shlex import quote
from typing import Any

from attnprof.algebra.expressions import expanded, expression_of, rules_of
from attnprof.algebra.maxima import maximum_of
from attnprof.algebra.parser import parse
from attnprof.closed_form.cost_records import symbolic
from attnprof.closed_form.quantities import state_bytes
from attnprof.device.ceilings import GPUS
from attnprof.errors import RequestError
from attnprof.mechanism import Mechanism
from attnprof.processes.progress import tell
from attnprof.record import DeriveRecord, ModelRecord, Report
from attnprof.units import label
from attnprof.workload import SYMBOLS, Workload

#: Quantities that can be drawn: name in records, name on the page.
QUANTITIES = {
    "flops": "FLOPs", "bytes_moved": "bytes moved", "peak_bytes": "peak memory",
    "state_bytes": "cache", "time_s": "time (at least)",
}  # fmt: skip
PHASES = ("forward", "train", "decode")
DTYPES = ("float32", "bfloat16", "float16")
#: The page's sizes, with their names and the most that can be chosen.
SIZES = {"N": ("tokens", 2**24), "d": ("head width", 1024), "h": ("heads", 256),
         "B": ("batch", 4096)}  # fmt: skip
START = {"N": 4096, "d": 128, "h": 32, "B": 1, "phase": "forward", "dtype": "bfloat16",
         "on": "H100", "q": "flops"}  # fmt: skip
#: Mechanisms on the page by default: those that people choose between, and their baseline.
USUAL = (
    "standard", "sdpa", "gqa", "mla", "sliding-window", "topk", "differential", "gated-deltanet",
    "kimi-delta", "mamba2", "linear", "efficient", "taylorshift",
)  # fmt: skip
#: How many subjects are drawn before any is chosen.
FIRST = 4


@dataclass
class Scripts:
    """JavaScript functions of B, N, h and d; equal ones are one."""

    texts: dict[str, int] = field(default_factory=dict)

    def add(self, expression: Any) -> int | None:
        """Return the place of an expression's function; None if it has further symbols."""
        import sympy

        expression = expanded(sympy.sympify(expression))
        if {one.name for one in expression.free_symbols} - set(SYMBOLS):
            return None
        text = sympy.jscode(expression)
        return self.texts.setdefault(text, len(self.texts))

    def script(self) -> str:
        """Return the elements of an array of functions, one a line."""
        return ",\n".join(f"(B,N,h,d)=>{text}" for text in self.texts)


@dataclass
class PageSubject:
    """A row of the page: its forms by quantity and condition, as places among the scripts.

    A condition is a phase, a mask (0 or 1) where it matters, and bytes of an entry where the number
    format is not fixed as ``dtype``. ``reasons`` say by phase (and mask) why there is none.
    """

    name: str
    title: str
    kind: str
    command: str = ""
    symbols: Sequence[str] = ()
    dtype: str = ""
    forms: dict[str, dict[str, int]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def put(self, quantity: str, condition: str, place: int | None) -> None:
        """Note where a form is."""
        if place is not None:
            self.forms.setdefault(quantity, {})[condition] = place


def mechanism_subject(mechanism: Mechanism, scripts: Scripts) -> PageSubject:
    """Return a mechanism's layer in all phases, with and without a mask, by bytes of an entry."""
    tell(f"writing {mechanism.name}")
    subject = PageSubject(mechanism.name, label(mechanism.title, mechanism.params), "mechanism")
    masks = (False, True) if _mask_matters(mechanism) else (False,)
    for phase, causal in [*product(PHASES[:2], masks), ("decode", False)]:
        condition = f"{phase} {causal:d}" if len(masks) > 1 and phase != "decode" else phase
        sizes = symbolic(Workload(2, 2, 2, 2, phase=phase, causal=causal))
        try:
            for dtype in DTYPES[:2]:
                w = sizes.with_(dtype=dtype)
                for quantity, value in _costs(mechanism, w).items():
                    subject.put(quantity, f"{condition} {w.item_size}", scripts.add(value))
        except RequestError as refusal:
            subject.reasons[condition] = str(refusal)
        except (TypeError, ValueError):
            subject.reasons[condition] = "it has no closed form for all sizes"
    return subject


def _costs(mechanism: Mechanism, w: Workload) -> dict[str, Any]:
    table = mechanism.cost(w)
    total = table.total
    values = {"flops": total.flops, "bytes_moved": total.bytes_moved, "peak_bytes": table.peak()}
    if mechanism.abilities.decode:
        values["state_bytes"] = state_bytes(mechanism, w, table.state_entries)
    return values


def _mask_matters(mechanism: Mechanism) -> bool:
    """Return whether a mask changes a layer's cost, or is refused."""
    costs = []
    for causal in (False, True):
        try:
            table = mechanism.cost(Workload(300, 2, 8, causal=causal))
        except RequestError:
            return True
        costs.append((table.total, table.peak()))
    return costs[0] != costs[1]


def _with_formulas(
    subject: PageSubject, rows: Iterable[Any], scripts: Scripts, numbers: Any
) -> PageSubject:
    """Return the subject with the formulas of records; ``numbers`` stand for their symbols.

    Numbers enter before a maximum is taken, so that sympy compares no symbolic parts: it is slow.
    """
    rules = {
        **rules_of(),
        "max": lambda *parts: maximum_of(parts),
        "**": operator.pow,  # of experts that are met: (1 - k/E)**(B*N)
    }
    for row in rows:
        quantity = "state_bytes" if row.quantity == "cache_bytes" else row.quantity
        if quantity not in QUANTITIES or row.expression is None:
            continue
        tree = parse(row.expression, longest=len(row.expression), stored=True)
        form = expression_of(tree, rules=rules, meanings=numbers)
        subject.put(quantity, row.phase, scripts.add(form))
    cache = subject.forms.get("state_bytes", {})
    for phase in PHASES if cache else ():  # it does not depend on the phase
        cache.setdefault(phase, next(iter(cache.values())))
    for phase in PHASES:
        if phase not in subject.forms.get("flops", {}):
            subject.reasons[phase] = f"no formula of {phase}; its command may have the number"
    return subject


def model_subject(source: str, report: Report, scripts: Scripts) -> PageSubject:
    """Return a model, from its report: of all layers, in B and N."""
    import sympy

    summary = report.summary
    layers = {name: sympy.Integer(n) for name, n in summary["at"].items() if name not in SYMBOLS}
    subject = PageSubject(
        summary["name"], f"{summary['name']}, {summary['parameters']:,} parameters", "model",
        f"attnprof model {quote(source)}", dtype=summary["dtype"],
        notes=[f"the whole model, {summary['dtype']}: d and h are its own"],
    )  # fmt: skip
    rows = [row for row in report.of(ModelRecord) if row.part == "total"]
    for phase, how in summary["phases"].items():
        if domain := how.get("domain"):
            subject.notes.append(f"{phase} for {'; '.join(domain)}")
    if any(row.bound == "at least" for row in rows):
        subject.notes.append("some operations are not counted: at least")
    return _with_formulas(subject, rows, scripts, layers)


def code_subject(
    source: str, report: Report, scripts: Scripts, *, symbols: Sequence[str], dtype: str
) -> PageSubject:
    """Return a user's code, from its derivation; ``source`` is the command without sizes."""
    name = report.of(DeriveRecord)[0].name
    domain = "; ".join(dict.fromkeys(one for row in report.of(DeriveRecord) for one in row.domain))
    subject = PageSubject(
        name, name, "code", source, symbols, dtype,
        notes=[f"derived in {dtype}{f' for {domain}' if domain else ''}"],
    )  # fmt: skip
    return _with_formulas(subject, report.of(DeriveRecord), scripts, {})


def page_data(
    subjects: Sequence[PageSubject], scripts: Scripts, settings: Mapping[str, Any], *,
    causal: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Return the page's data: subjects, devices, choices, functions, and the first choice."""
    if not subjects:
        raise RequestError("nothing to explore: type --attention standard,linear")
    names = [one.name for one in subjects]
    if double := next((name for name in names if names.count(name) > 1), None):
        raise RequestError(f"{double} is there twice: leave one of them out")
    devices = {
        gpu.name: {"bytes_per_s": gpu.bytes_per_s, "source": gpu.source,
                   "flops_per_s": {one: r for one, r in gpu.flops_per_s.items() if one in DTYPES}}
        for gpu in GPUS
    }  # fmt: skip
    options = {
        "q": ("quantity", QUANTITIES), "phase": ("phase", PHASES), "dtype": ("format", DTYPES),
        "on": ("device", devices),
    }  # fmt: skip
    choices = [
        {"name": name, "title": title,
         "options": [(one, QUANTITIES.get(one, one)) for one in possible]}
        for name, (title, possible) in options.items()
    ]  # fmt: skip
    sizes = [
        {"symbol": name, "title": title, "most": most, "doublings": most.bit_length() - 1}
        for name, (title, most) in SIZES.items()
    ]
    shared = {"subjects": [vars(one) for one in subjects], "quantities": list(QUANTITIES.items())}
    page = {
        **shared, "devices": devices, "choices": list(options),
        "start": {"a": names[:FIRST], **START, "causal": causal},
        "settings": " ".join(f"--set {quote(f'{k}={v}')}" for k, v in settings.items()),
    }  # fmt: skip
    data = json.dumps(page, ensure_ascii=False).replace("</", "<\\/")
    return {**shared, "names": names, "sizes": sizes, "choices": choices,
            "forms": scripts.script(), "data": data}  # fmt: skip
