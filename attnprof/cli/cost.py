"""``attnprof cost``: closed forms and numbers, stage by stage."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

from typer import Option

from attnprof.cli import options as opt
from attnprof.cli.options import Format
from attnprof.cli.output import deliver, ensure_writable, environment
from attnprof.cli.request import Request, closed_form_request, one_of, some_of
from attnprof.errors import RequestError
from attnprof.record import CostRecord, Report
from attnprof.symbolic.costing import (
    CONVENTIONS,
    KINDS,
    QUANTITIES,
    Asked,
    cost_records,
    identity,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

SymbolicOption = Annotated[bool, Option("--symbolic", help="Show the closed forms in B N h d.")]
LatexOption = Annotated[bool, Option("--latex", help="Show the closed forms in LaTeX.")]


def cost(
    *,
    attention: opt.AttentionsOption = "standard",
    seq: opt.SeqsOption = "1024",
    d_model: opt.DModelOption = None,
    heads: opt.HeadsOption = None,
    batch: opt.BatchOption = "1",
    d: opt.HeadDimOption = None,
    scope: opt.ScopeOption = "layer",
    phase: opt.PhaseOption = "forward",
    kind: opt.KindOption = None,
    quantity: opt.QuantityOption = None,
    convention: opt.ConventionOption = "flops",
    causal: opt.CausalOption = False,
    dtype: opt.DtypeOption = "float32",
    device: opt.DeviceOption = "auto",  # noqa: ARG001 - arithmetic needs no device
    settings: opt.SetOption = None,
    kv_heads: opt.KvHeadsOption = None,
    kv_seq: opt.KvSeqOption = None,
    symbolic: SymbolicOption = False,
    latex: LatexOption = False,
    fmt: opt.FormatOption = Format.TABLE,
    output: opt.OutputOption = None,
    force: opt.ForceOption = False,
) -> None:
    """Closed forms and numbers by stage: operations, bytes moved, peak memory, parameters.

    Published formulas stand beside ours where they speak of the same scope, phase and mask.
    Closed forms do not depend on --device.

    Example: attnprof cost --attention efficient --seq 4096 --symbolic
    """
    ensure_writable(output, force=force)
    asked = Asked(
        _quantities(quantity, convention),
        some_of(kind, KINDS, "--kind"),
        convention,
        closed_forms=symbolic or fmt != Format.TABLE,
        latex=latex,
    )
    request = closed_form_request(
        attention, seq, d_model=d_model, heads=heads, d=d, batch=batch, scope=scope, phase=phase,
        causal=causal, dtype=dtype, settings=settings, num_kv_heads=kv_heads, kv_seq=kv_seq,
    )  # fmt: skip
    report = Report("cost", _records(request, asked), {"convention": convention}, environment())
    deliver(report, fmt, output, partial(_tables, asked=asked))


def _quantities(text: str | None, convention: str) -> list[str]:
    one_of(convention, CONVENTIONS, "--convention")
    return some_of(text, QUANTITIES, "--quantity")


def _records(request: Request, asked: Asked) -> list[CostRecord]:
    """Records of every mechanism at every length; one that refuses is a row with its reason.

    Raises the refusal itself where nothing at all could be counted.
    """
    records: list[CostRecord] = []
    refusals: list[RequestError] = []
    for mechanism in request.mechanisms:
        for workload in request.workloads:
            try:
                records += cost_records(mechanism, workload, request.scope, asked)
            except RequestError as refusal:
                refusals.append(refusal)
                who = identity(mechanism, workload, request.scope)
                records.append(CostRecord(**who, stage="total", skipped=str(refusal)))
    if len(refusals) == len(records) and refusals:
        raise refusals[0]
    if not records:
        raise RequestError(_nothing(request, asked))
    return records


def _nothing(request: Request, asked: Asked) -> str:
    forms = [
        f"{form.source} {form.quantity} ({form.scope}, {form.phase}"
        + (", one head)" if form.heads == "one" else ")")
        for mechanism in request.mechanisms
        for form in mechanism.published()
    ]
    names = ", ".join(mechanism.name for mechanism in request.mechanisms)
    if "formula" in asked.kinds:
        return (
            f"none of {', '.join(asked.quantities)} is counted for {names} "
            f"with --convention {asked.convention}"
        )
    printed = f"printed: {'; '.join(forms)}" if forms else "the documents print none"
    return f"no published formula of {names} speaks of this scope, phase, mask and batch; {printed}"


def _tables(report: Report, asked: Asked) -> list[RenderableType]:
    from attnprof.cli.cost_tables import cost_tables

    return cost_tables([r for r in report.records if isinstance(r, CostRecord)], asked)
