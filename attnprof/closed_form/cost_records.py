"""Turn closed forms of mechanisms into records: stage by stage, and totals side by side.

The same ``cost()`` runs twice: on the numbers of a workload, and on the symbols B N h d (and g, M
for grouped heads and another key length). Entry points: :func:`cost_records`,
:func:`compare_records`, and :func:`compare_answer`, which puts these into a sentence.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from attnprof.algebra.expressions import expression_latex, expression_text, symbol
from attnprof.algebra.values import evaluate
from attnprof.closed_form.quantities import STEP_BYTES, state_bytes, step_bytes
from attnprof.costs import COST_FIELDS, Cost, CostTable, Number
from attnprof.errors import AttnprofError, RequestError
from attnprof.mechanism import Mechanism
from attnprof.ops.layout import ViewError
from attnprof.record import CompareRecord, CostRecord
from attnprof.record.report import SIZES
from attnprof.units import format_ratio, joined, plural, words_of
from attnprof.workload import SYMBOLS, Published, Workload

#: Multiplications, additions, divisions, exponentials and other operations; all counts of a stage.
COUNTED = COST_FIELDS[:5]
EXECUTED = (*COUNTED, "flops", "matmul_flops", "bytes_moved")
MEMORY = ("peak_bytes", "peak_entries")
#: Every quantity, in the order shown.
QUANTITIES = (
    *COUNTED, "flops", "matmul_flops", "operations", "bytes_moved", *MEMORY,
    "parameters", "state_entries",
)  # fmt: skip
KINDS = ("formula", "published")
CONVENTIONS = ("flops", "operations")
TOTAL = "total"
#: The mechanism that others are compared with, if it takes part.
BASE = "standard"


@dataclass(frozen=True)
class Row:
    """The quantities of one stage, or of all stages together (``total``).

    ``part`` is the pass, ``forward`` or ``backward``; ``place`` tells where in the mechanism's text
    the stage was recorded, and is empty in a total and in definitions.
    """

    part: str
    stage: str
    values: dict[str, Number]
    place: tuple[object, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """Return what the row has in common with that of other sizes: its place, or its name."""
        return self.part, repr(self.place) if self.place else self.stage

    @property
    def base(self) -> tuple[str, str]:
        """Return part and name of the stage; the name of ``scores (2)`` is ``scores``."""
        return self.part, self.stage.partition(" (")[0]


def executed_rows(mechanism: Mechanism, workload: Workload, scope: str) -> list[Row]:
    """Return the costs that the implementation executes, by stage; the total is last.

    ``peak_bytes`` and ``peak_entries`` of a stage are alive while it runs. Where half precision has
    stages that copy into another format, a count of entries has fewer stages, and only the total
    has ``peak_entries``.
    """
    table = mechanism.cost(workload, scope)
    entries = mechanism.cost(workload.with_(dtype="entry"), scope)
    live = [table.live()]
    if len(entries.stages) == len(table.stages):
        live.append(entries.live())
    rows = [
        Row(*name, {**_counts(stage.cost), **dict(zip(MEMORY, memory, strict=False))}, stage.place)
        for name, stage, memory in zip(
            _unique_names(table), table.stages, zip(*live, strict=True), strict=True
        )
    ]
    total = {
        **_counts(table.total), "peak_bytes": table.peak(), "peak_entries": entries.peak(),
        "parameters": table.parameters,
    }  # fmt: skip
    if mechanism.abilities.decode:
        total["state_entries"] = table.state_entries
    return [*rows, Row("", TOTAL, total)]


def defined_rows(mechanism: Mechanism, workload: Workload, scope: str) -> list[Row]:
    """Return the definition's operations by stage: k-1 additions a dot product, n-1 a sum."""
    table = mechanism.definition(workload, scope)
    stages = zip(_unique_names(table), table.stages, strict=True)
    rows = [Row(*name, _operations(stage.cost)) for name, stage in stages]
    return [*rows, Row("", TOTAL, _operations(table.total))]


def defined_total(mechanism: Mechanism, workload: Workload, scope: str) -> Number | None:
    """Return the definition's operations; None if it has none (a backward pass)."""
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


def _unique_names(table: CostTable) -> list[tuple[str, str]]:
    """Return part and name of each stage; a name that occurs again becomes ``name (2)``."""
    # a stage called total is ``total (2)``
    uses: Counter[tuple[str, str]] = Counter({(stage.part, TOTAL): 1 for stage in table.stages})
    keys = []
    for part, name in ((stage.part, stage.name) for stage in table.stages):
        uses[part, name] += 1
        count = uses[part, name]
        keys.append((part, name if count == 1 else f"{name} ({count})"))
    return keys


# -- symbols ---------------------------------------------------------------------------
def symbolic(workload: Workload) -> Workload:
    """Return a request with its sizes as the positive symbols B N h d (and g, M)."""
    return workload.with_(**{field: symbol(name) for name, field in symbols_of(workload).items()})


def symbols_of(workload: Workload) -> dict[str, str]:
    """Return the fields of a request that become symbols, by symbol."""
    optional = {"g": "num_kv_heads", "M": "kv_seq_len"}
    fields = {n: field for n, field in optional.items() if getattr(workload, field) is not None}
    return {**SYMBOLS, **fields}


#: :func:`executed_rows` or :func:`defined_rows`.
RowsOf = Callable[[Mechanism, Workload, str], list[Row]]


@cache
def _symbolic_rows(rows_of: RowsOf, mechanism: Mechanism, sizes: Workload, scope: str) -> list[Row]:
    """Return the rows of a symbolic workload; none if the mechanism cannot count with symbols."""
    try:
        return rows_of(mechanism, sizes, scope)
    except (AttnprofError, TypeError, ViewError):  # TypeError: a comparison of symbols
        return []


# -- records ---------------------------------------------------------------------------
@dataclass(frozen=True)
class CostQuery:
    """A selection of costs: quantities, kinds, convention, and whether with closed forms."""

    quantities: Sequence[str] = QUANTITIES
    kinds: Sequence[str] = KINDS
    convention: str = "flops"
    closed_forms: bool = True
    latex: bool = False

    @property
    def in_symbols(self) -> bool:
        """Return whether closed forms are shown, as text or in LaTeX."""
        return self.closed_forms or self.latex

    def texts(self, form: Any) -> dict[str, Any]:
        """Return a closed form as fields of a record; empty if there is none."""
        if form is None:
            return {}
        latex = expression_latex(form) if self.latex else None
        return {"expression": expression_text(form), "latex": latex}


def cost_records(
    mechanism: Mechanism, workload: Workload, scope: str, query: CostQuery
) -> list[CostRecord]:
    """Return the records of a mechanism and workload, our formulas first, then printed ones.

    Raises :class:`RequestError` if the mechanism refuses the workload.
    """
    mechanism.check(workload, scope)
    records: list[CostRecord] = []
    if "formula" in query.kinds:
        records += _formula_records(
            executed_rows if query.convention == "flops" else defined_rows,
            mechanism, workload, scope, query,
        )  # fmt: skip
        if query.convention == "flops" and defined_total(mechanism, workload, scope) is not None:
            total = replace(query, quantities=[q for q in query.quantities if q == "operations"])
            records += _formula_records(defined_rows, mechanism, workload, scope, total, first=-1)
    if "published" in query.kinds:
        forms = applicable(mechanism, workload, scope)
        records += [_published_record(form, mechanism, workload, scope, query) for form in forms]
    return [record for record in records if record.quantity in query.quantities]


def applicable(mechanism: Mechanism, w: Workload, scope: str) -> list[Published]:
    """Return the printed formulas that hold for a request: of one sequence, scope, phase, mask."""
    if w.batch_size != 1 or w.kv_seq_len is not None or w.kv_heads != w.num_heads:
        return []
    return [
        form
        for form in mechanism.published()
        if (form.scope, form.phase, form.causal) == (scope, w.phase, w.causal)
        and (form.heads != "one" or w.num_heads == 1)
    ]


def _formula_records(
    rows_of: RowsOf, mechanism: Mechanism, workload: Workload, scope: str, query: CostQuery,
    first: int = 0,
) -> list[CostRecord]:  # fmt: skip
    """Return the records of rows from the ``first`` on, with closed forms where there are any.

    A mechanism with two branches runs one of them at the request's sizes, and in symbols both, one
    of which counts 0. Then stages of one name are added; their peaks cannot be, and have no form.
    A form with another value at the request's sizes than the count in numbers is left out.
    """
    rows, forms = rows_of(mechanism, workload, scope)[first:], list[Row]()
    if query.in_symbols:
        forms = _symbolic_rows(rows_of, mechanism, symbolic(workload), scope)[first:]
    count, form_count = (Counter(row.base for row in side) for side in (rows, forms))
    forms_by_key: dict[tuple[str, str, str], Any] = {}
    for row in forms:
        for name, value in row.values.items():
            if row.place or count[row.base] == form_count[row.base]:
                forms_by_key[*row.key, name] = value
            elif count[row.base] == 1 and name not in MEMORY:
                forms_by_key[*row.base, name] = forms_by_key.get((*row.base, name), 0) + value
    sizes = {name: getattr(workload, field) for name, field in symbols_of(workload).items()}

    def form(row: Row, name: str) -> Any:
        expression = forms_by_key.get((*row.key, name))
        holds = expression is not None and evaluate(expression, sizes) == row.values[name]
        return expression if holds else None

    request = identity(mechanism, workload, scope)
    return [
        CostRecord(
            **request, part=row.part or None, stage=row.stage, quantity=name, kind="formula",
            value=value, convention="flops" if rows_of is executed_rows else "operations",
            **query.texts(form(row, name)),
        )
        for row in rows
        for name, value in row.values.items()
        if name in query.quantities
    ]  # fmt: skip


def _published_record(
    form: Published, mechanism: Mechanism, workload: Workload, scope: str, query: CostQuery
) -> CostRecord:
    sizes, value = symbolic(workload).with_(batch_size=1), form.formula(workload)
    if form.heads == "one":
        sizes = sizes.with_(num_heads=1)
    return CostRecord(
        **identity(mechanism, workload, scope), stage=TOTAL, quantity=form.quantity,
        kind="published", convention=form.convention, source=form.source,
        value=int(value) if value == int(value) else float(value),
        **query.texts(form.formula(sizes) if query.in_symbols else None),
    )  # fmt: skip


def identity(mechanism: Mechanism, workload: Workload, scope: str) -> dict[str, Any]:
    """Return the fields of a record that identify its request."""
    return {
        "mechanism": mechanism.name, "params": mechanism.params, "scope": scope,
        **{name: getattr(workload, name) for name in ("phase", "causal", *SIZES, "dtype")},
    }  # fmt: skip


# -- side by side ----------------------------------------------------------------------
#: Columns of ``compare``, in each of which the lowest mechanism wins.
CONTESTED = (
    "flops", "matmul_flops", "operations", "bytes_moved", "peak_bytes", "parameters", "state_bytes",
)  # fmt: skip
#: Columns with a winner, the bytes of a decoding step among them, which are shown on request.
LOWEST_WINS = (*CONTESTED, STEP_BYTES)
#: All columns; a step's FLOPs of products for each byte have no winner.
POSSIBLE = (*LOWEST_WINS, "step_intensity")


def compare_records(
    mechanisms: Sequence[Mechanism], workloads: Sequence[Workload], scope: str
) -> list[CompareRecord]:
    """Return a record a mechanism and workload; ``wins`` names the quantities it is lowest in.

    Mechanisms with the same lowest value all win, unless all mechanisms have it. One that refuses
    the workload has a record with the reason. Raises :class:`RequestError` if all refuse.
    """
    totals: list[CompareRecord] = []
    for workload in workloads:
        records = [_totals(mechanism, workload, scope) for mechanism in mechanisms]
        values = {name: {getattr(x, name) for x in records} - {None} for name in LOWEST_WINS}
        lowest = {name: min(numbers) for name, numbers in values.items() if len(numbers) > 1}
        for record in records:
            won = [name for name, least in lowest.items() if getattr(record, name) == least]
            totals.append(replace(record, wins=",".join(won)))
    if all(record.skipped for record in totals):
        raise RequestError(totals[0].skipped or "")
    return totals


def left_out(quantities: Sequence[str]) -> list[str]:
    """Return the fields of a :class:`CompareRecord` that are no such quantity, nor a ratio."""
    intensity = ["arithmetic_intensity"] * (not {"flops", "bytes_moved"} <= {*quantities})
    return [*(name for name in POSSIBLE if name not in quantities), *intensity]


def _totals(mechanism: Mechanism, workload: Workload, scope: str) -> CompareRecord:
    request = identity(mechanism, workload, scope)
    try:
        table = mechanism.cost(workload, scope)
        parameters = mechanism.parameters(workload, scope)
    except RequestError as refusal:
        return CompareRecord(**request, skipped=str(refusal))
    total, decodes = table.total, mechanism.abilities.decode
    decoding = workload.phase == "decode"
    moved = step_bytes(mechanism, workload, scope) if decoding else None
    return CompareRecord(
        **request, flops=total.flops, matmul_flops=total.matmul_flops,
        operations=defined_total(mechanism, workload, scope), bytes_moved=total.bytes_moved,
        peak_bytes=table.peak(), parameters=parameters,
        state_bytes=state_bytes(mechanism, workload, table.state_entries) if decodes else None,
        step_bytes=moved, step_intensity=total.matmul_flops / moved if moved else None,
        arithmetic_intensity=total.flops / total.bytes_moved if total.bytes_moved else None,
    )  # fmt: skip


def compare_answer(records: Sequence[CompareRecord], quantities: Sequence[str]) -> str:
    """Return how mechanisms compare in FLOPs and memory at the longest length.

    Two are compared with each other: *At 4,096 tokens linear needs 0.21× the FLOPs and 0.038× the
    memory of standard.* Of several, the lowest in each quantity is named. The base is ``standard``
    if it takes part, else the first. The answer is empty if it would need a missing number.
    """
    longest = max((row.seq_len for row in records), default=0)
    rows = [row for row in records if not row.skipped and row.seq_len == longest]
    compared = [name for name in ("flops", "peak_bytes") if name in quantities] or quantities[:1]
    if len(rows) < 2 or any(getattr(row, name) is None for name in compared for row in rows):
        return ""
    base = next((row for row in rows if row.mechanism == BASE), rows[0])
    others = [row for row in rows if row is not base]
    clause = (
        _compare_several(compared, rows, base) if others[1:]
        else _compare_two(compared, others[0], base)
    )  # fmt: skip
    return f"At {plural(longest, 'token')} {clause}." if clause else ""


def _compare_two(compared: Sequence[str], row: CompareRecord, base: CompareRecord) -> str:
    """Return how much one mechanism needs of each quantity, as multiples of the base.

    A quantity that the base does not need at all has no multiple and is left out.
    """
    sides = {
        words_of(name, row.phase)[2]: (getattr(row, name), getattr(base, name)) for name in compared
    }
    same = [noun for noun, (value, base_value) in sides.items() if value == base_value]
    needs = [
        f"{format_ratio(value, base_value)}× {'its' if same else 'the'} {noun}"
        for noun, (value, base_value) in sides.items() if value != base_value and base_value
    ]  # fmt: skip
    if same:
        needs = [f"the same {joined(same)} as {base.mechanism}", *needs]
        return f"{row.mechanism} needs {joined(needs)}"
    return f"{row.mechanism} needs {joined(needs)} of {base.mechanism}" if needs else ""


def _compare_several(
    compared: Sequence[str], rows: Sequence[CompareRecord], base: CompareRecord
) -> str:
    """Return the mechanisms that need least of each quantity, and how much that is of the base."""
    needs_of: dict[str, list[str]] = {}
    for name in compared:
        _, least, noun = words_of(name, base.phase)
        lowest = min(getattr(row, name) for row in rows)
        best = [row.mechanism for row in rows if getattr(row, name) == lowest]
        who = f"{joined(best)} need{'s' * (len(best) == 1)}"
        need = f"{least} {noun}"
        if len(best) == len(rows):
            who, need = "all need", f"the same {noun}"
        elif base.mechanism not in best:
            pronoun = "those" if noun.endswith("s") else "that"
            need += f" ({format_ratio(lowest, getattr(base, name))}× {pronoun} of {base.mechanism})"
        needs_of.setdefault(who, []).append(need)
    return joined(f"{who} {joined(needs)}" for who, needs in needs_of.items())
