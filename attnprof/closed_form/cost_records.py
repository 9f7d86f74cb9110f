"""Closed forms of a mechanism as records: every stage and the total, quantity by quantity.

The same ``cost()`` runs twice: on the numbers of a workload, and on the symbols
B N h d (and g, M for grouped heads and another key length).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attnprof.algebra.text import expression_latex, expression_text
from attnprof.costs import Cost, CostTable, Number
from attnprof.errors import AttnprofError
from attnprof.mechanism import Mechanism
from attnprof.published import Published
from attnprof.record import CostRecord
from attnprof.workload import Workload

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
    import sympy

    def symbol(name: str) -> Any:
        return sympy.Symbol(name, positive=True)

    return workload.with_(
        batch_size=symbol("B"),
        seq_len=symbol("N"),
        num_heads=symbol("h"),
        head_dim=symbol("d"),
        num_kv_heads=None if workload.num_kv_heads is None else symbol("g"),
        kv_seq_len=None if workload.kv_seq_len is None else symbol("M"),
    )


Writer = Callable[[Mechanism, Workload, str], list[Row]]


def expressions(
    write: Writer, mechanism: Mechanism, workload: Workload, scope: str, rows: list[Row]
) -> dict[tuple[str, str, str], Any]:
    """Closed forms by part, stage and quantity; none where a mechanism needs plain sizes.

    Symbols keep every branch of a mechanism that switches, so a stage may stand there twice:
    its counts add up (one of them is zero). What is held does not add and has no form then.
    """
    try:
        forms = write(mechanism, symbolic(workload), scope)
    except (TypeError, ValueError, AttnprofError):
        return {}
    plain, general = _times(rows), _times(forms)
    found: dict[tuple[str, str, str], Any] = {}
    for row in forms:
        base = _base(row)
        for name, value in row.values.items():
            if row.place or plain[base] == general[base]:
                found[*row.key, name] = value
            elif plain[base] == 1 and name not in MEMORY:
                found[*base, name] = found.get((*base, name), 0) + value
    return found


def _base(row: Row) -> tuple[str, str]:
    return row.part, row.stage.partition(" (")[0]


def _times(rows: list[Row]) -> Counter[tuple[str, str]]:
    return Counter(_base(row) for row in rows)


# -- records ---------------------------------------------------------------------------
@dataclass(frozen=True)
class Asked:
    """What to show: quantities, kinds, convention, and whether closed forms are wanted."""

    quantities: Sequence[str] = QUANTITIES
    kinds: Sequence[str] = KINDS
    convention: str = "flops"
    closed_forms: bool = True
    latex: bool = False


def cost_records(
    mechanism: Mechanism, workload: Workload, scope: str, asked: Asked
) -> list[CostRecord]:
    """The records of one mechanism and workload, formula rows first.

    Raises :class:`attnprof.errors.RequestError` where the mechanism refuses the request.
    """
    mechanism.check(workload, scope)
    make = _Maker(mechanism, workload, scope, asked)
    records: list[CostRecord] = []
    if "formula" in asked.kinds:
        write = executed_rows if asked.convention == "flops" else defined_rows
        records += make.formula(write)
        if asked.convention == "flops" and "operations" in asked.quantities:
            records += make.operations()
    if "published" in asked.kinds:
        records += [make.published(form) for form in applicable(mechanism, workload, scope)]
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


@dataclass(frozen=True)
class _Maker:
    """Makes the records of one mechanism and workload."""

    mechanism: Mechanism
    workload: Workload
    scope: str
    asked: Asked

    def formula(self, write: Writer, only: str = "") -> list[CostRecord]:
        rows = write(self.mechanism, self.workload, self.scope)
        forms = {}
        if self.asked.closed_forms or self.asked.latex:
            forms = expressions(write, self.mechanism, self.workload, self.scope, rows)
        convention = "flops" if write is executed_rows else "operations"
        return [
            self.record(row, name, value, convention, forms.get((*row.key, name)))
            for row in rows
            if not only or row.stage == only
            for name, value in row.values.items()
            if name in self.asked.quantities
        ]

    def operations(self) -> list[CostRecord]:
        """The definition's total beside what is executed, where there is a definition."""
        if defined_total(self.mechanism, self.workload, self.scope) is None:
            return []
        rows = self.formula(defined_rows, only=TOTAL)
        return [record for record in rows if record.quantity == "operations"]

    def published(self, form: Published) -> CostRecord:
        expression = None
        if self.asked.closed_forms or self.asked.latex:
            sizes = symbolic(self.workload).with_(batch_size=1)
            if form.heads == "one":
                sizes = sizes.with_(num_heads=1)
            expression = form.formula(sizes)
        row = Row("", TOTAL, {})
        value = _number(form.formula(self.workload))
        return self.record(row, form.quantity, value, form.convention, expression, form.source)

    def record(
        self,
        row: Row,
        quantity: str,
        value: Number,
        convention: str,
        expression: Any,
        source: str | None = None,
    ) -> CostRecord:
        shown = expression is not None
        return CostRecord(
            **identity(self.mechanism, self.workload, self.scope),
            part=row.part or None,
            stage=row.stage,
            quantity=quantity,
            kind="published" if source else "formula",
            convention=convention,
            source=source,
            expression=expression_text(expression) if shown else None,
            latex=expression_latex(expression) if shown and self.asked.latex else None,
            value=value,
        )


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


def _number(value: Any) -> int | float:
    """A printed formula's value: an integer where it is one."""
    return int(value) if value == int(value) else float(value)
