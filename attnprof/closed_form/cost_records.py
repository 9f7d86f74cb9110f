"""Closed forms of a mechanism as records: every stage and the total, quantity by quantity.

The same ``cost()`` runs twice: on the numbers of a workload, and on the symbols
B N h d (and g, M for grouped heads and another key length).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from attnprof.algebra.expressions import expression_latex, expression_text, symbol
from attnprof.costs import Cost, CostTable, Number
from attnprof.errors import AttnprofError
from attnprof.mechanism import Mechanism
from attnprof.published import Published
from attnprof.record import CostRecord
from attnprof.workload import SYMBOLS, Workload

COUNTED = ("multiplications", "additions", "divisions", "exponentials", "other")
EXECUTED = (*COUNTED, "flops", "matmul_flops", "bytes_moved")
MEMORY = ("peak_bytes", "peak_entries")
WHOLE = ("parameters", "state_entries")
#: Every quantity, in the order shown.
QUANTITIES = (*COUNTED, "flops", "matmul_flops", "operations", "bytes_moved", *MEMORY, *WHOLE)
KINDS = ("formula", "published")
CONVENTIONS = ("flops", "operations")
TOTAL = "total"


@dataclass(frozen=True)
class Row:
    """The quantities of one stage, or of all stages together (``total``)."""

    part: str
    stage: str
    values: dict[str, Number]
    place: tuple[object, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """What it is called by at other sizes, too: its place in a text, or its name."""
        return self.part, repr(self.place) if self.place else self.stage


def executed_rows(mechanism: Mechanism, workload: Workload, scope: str) -> list[Row]:
    """What the implementation executes, by stage; the total is last.

    A stage's ``peak_bytes`` and ``peak_entries`` are what is held while it runs.
    """
    table = mechanism.cost(workload, scope)
    entries = mechanism.cost(workload.with_(dtype="entry"), scope)
    held = zip(table.live(), entries.live(), strict=True)
    rows = [
        Row(
            part, name, {**_counts(stage.cost), **dict(zip(MEMORY, live, strict=True))}, stage.place
        )
        for (part, name), stage, live in zip(_unique(table), table.stages, held, strict=True)
    ]
    whole = {
        **_counts(table.total),
        "peak_bytes": table.peak(),
        "peak_entries": entries.peak(),
        "parameters": table.parameters,
    }
    if mechanism.abilities.decode:
        whole["state_entries"] = table.state_entries
    return [*rows, Row("", TOTAL, whole)]


def defined_rows(mechanism: Mechanism, workload: Workload, scope: str) -> list[Row]:
    """What the definition asks for: k-1 additions a dot product, n-1 a sum."""
    table = mechanism.definition(workload, scope)
    rows = [
        Row(part, name, _operations(stage.cost))
        for (part, name), stage in zip(_unique(table), table.stages, strict=True)
    ]
    return [*rows, Row("", TOTAL, _operations(table.total))]


def _defined_whole(mechanism: Mechanism, workload: Workload, scope: str) -> list[Row]:
    """Its operations in all, beside what is executed."""
    last = defined_rows(mechanism, workload, scope)[-1]
    return [replace(last, values={"operations": last.values["operations"]})]


def defined_total(mechanism: Mechanism, workload: Workload, scope: str) -> Number | None:
    """Operations of the definition; None where there is none (a backward pass)."""
    try:
        return mechanism.definition(workload, scope).operations
    except AttnprofError:
        return None


def _counts(cost: Cost) -> dict[str, Number]:
    return {name: getattr(cost, name) for name in EXECUTED}


def _operations(cost: Cost) -> dict[str, Number]:
    counts = {name: getattr(cost, name) for name in COUNTED}
    counts["additions"] = cost.additions - cost.dot_outputs - cost.reduction_outputs
    return {**counts, "operations": cost.operations}


def _unique(table: CostTable) -> list[tuple[str, str]]:
    """Part and name of each stage; the second of a name is ``name (2)``.

    A stage called as the row of all stages is (``total``) gets a number, too.
    """
    seen: Counter[tuple[str, str]] = Counter({(stage.part, TOTAL): 1 for stage in table.stages})
    keys = []
    for stage in table.stages:
        seen[stage.part, stage.name] += 1
        count = seen[stage.part, stage.name]
        keys.append((stage.part, stage.name if count == 1 else f"{stage.name} ({count})"))
    return keys


# -- symbols ---------------------------------------------------------------------------
def symbolic(workload: Workload) -> Workload:
    """The same request with its sizes as the positive symbols B N h d (and g, M)."""
    optional = {"g": "num_kv_heads", "M": "kv_seq_len"}
    given = {n: field for n, field in optional.items() if getattr(workload, field) is not None}
    names = {**SYMBOLS, **given}
    return workload.with_(**{field: symbol(name) for name, field in names.items()})


Writer = Callable[[Mechanism, Workload, str], list[Row]]


def expressions(
    write: Writer, mechanism: Mechanism, workload: Workload, scope: str, rows: list[Row]
) -> dict[tuple[str, str, str], Any]:
    """Closed forms by part, stage and quantity; none where a mechanism needs plain sizes.

    Symbols keep every branch of a mechanism that switches, so a stage may stand there twice:
    its counts add up (one of them is zero). What is held does not add and has no form then.
    """
    forms = _in_symbols(write, mechanism, symbolic(workload), scope)
    plain, general = (Counter(map(_base, side)) for side in (rows, forms))
    found: dict[tuple[str, str, str], Any] = {}
    for row in forms:
        base = _base(row)
        for name, value in row.values.items():
            if row.place or plain[base] == general[base]:
                found[*row.key, name] = value
            elif plain[base] == 1 and name not in MEMORY:
                found[*base, name] = found.get((*base, name), 0) + value
    return found


@cache
def _in_symbols(write: Writer, mechanism: Mechanism, sizes: Workload, scope: str) -> list[Row]:
    """The rows of a symbolic workload: the same for every length that is asked for."""
    try:
        return write(mechanism, sizes, scope)
    except (TypeError, ValueError, AttnprofError):
        return []


def _base(row: Row) -> tuple[str, str]:
    return row.part, row.stage.partition(" (")[0]


# -- records ---------------------------------------------------------------------------
@dataclass(frozen=True)
class Asked:
    """What to show: quantities, kinds, convention, and whether closed forms are wanted."""

    quantities: Sequence[str] = QUANTITIES
    kinds: Sequence[str] = KINDS
    convention: str = "flops"
    closed_forms: bool = True
    latex: bool = False

    @property
    def in_symbols(self) -> bool:
        """Whether closed forms are shown in any way."""
        return self.closed_forms or self.latex

    def texts(self, form: Any) -> dict[str, Any]:
        """A closed form as a record shows it; nothing where there is none."""
        if form is None:
            return {}
        latex = expression_latex(form) if self.latex else None
        return {"expression": expression_text(form), "latex": latex}


def cost_records(
    mechanism: Mechanism, workload: Workload, scope: str, asked: Asked
) -> list[CostRecord]:
    """The records of one mechanism and workload, formula rows first.

    Raises :class:`attnprof.errors.RequestError` where the mechanism refuses the request.
    """
    mechanism.check(workload, scope)
    records: list[CostRecord] = []
    if "formula" in asked.kinds:
        executed = asked.convention == "flops"
        writers = [executed_rows if executed else defined_rows]
        if executed and defined_total(mechanism, workload, scope) is not None:
            writers.append(_defined_whole)
        for write in writers:
            records += _formula(write, mechanism, workload, scope, asked)
    if "published" in asked.kinds:
        forms = applicable(mechanism, workload, scope)
        records += [_published(form, mechanism, workload, scope, asked) for form in forms]
    order = {name: place for place, name in enumerate(asked.quantities)}
    return [record for record in records if record.quantity in order]


def applicable(mechanism: Mechanism, workload: Workload, scope: str) -> list[Published]:
    """The printed forms that speak of this request: one sequence, same scope, phase, mask."""
    w = workload
    if w.batch_size != 1 or w.kv_seq_len is not None or w.kv_heads != w.num_heads:
        return []
    return [
        form
        for form in mechanism.published()
        if (form.scope, form.phase, form.causal) == (scope, w.phase, w.causal)
        and (form.heads != "one" or w.num_heads == 1)
    ]


def _formula(
    write: Writer, mechanism: Mechanism, workload: Workload, scope: str, asked: Asked
) -> list[CostRecord]:
    rows = write(mechanism, workload, scope)
    forms = expressions(write, mechanism, workload, scope, rows) if asked.in_symbols else {}
    who = identity(mechanism, workload, scope)
    convention = "flops" if write is executed_rows else "operations"
    return [
        CostRecord(
            **who, part=row.part or None, stage=row.stage, quantity=name, kind="formula",
            convention=convention, value=value, **asked.texts(forms.get((*row.key, name))),
        )
        for row in rows
        for name, value in row.values.items()
        if name in asked.quantities
    ]  # fmt: skip


def _published(
    form: Published, mechanism: Mechanism, workload: Workload, scope: str, asked: Asked
) -> CostRecord:
    sizes, value = symbolic(workload).with_(batch_size=1), form.formula(workload)
    if form.heads == "one":
        sizes = sizes.with_(num_heads=1)
    return CostRecord(
        **identity(mechanism, workload, scope), stage=TOTAL, quantity=form.quantity,
        kind="published", convention=form.convention, source=form.source,
        value=int(value) if value == int(value) else float(value),
        **asked.texts(form.formula(sizes) if asked.in_symbols else None),
    )  # fmt: skip


def identity(mechanism: Mechanism, workload: Workload, scope: str) -> dict[str, Any]:
    """The fields that say which request a record answers."""
    w = workload
    return {
        "mechanism": mechanism.name,
        "params": mechanism.params,
        "scope": scope,
        "phase": w.phase,
        "causal": w.causal,
        "batch_size": w.batch_size,
        "seq_len": w.seq_len,
        "d_model": w.d_model,
        "num_heads": w.num_heads,
        "head_dim": w.head_dim,
        "dtype": w.dtype,
    }
