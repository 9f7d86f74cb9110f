"""``attnprof cost``: closed forms and numbers, stage by stage."""

from collections.abc import Sequence

from typer import Option

from attnprof.cli import options as opt
from attnprof.cli import request
from attnprof.closed_form.cost_records import (
    KINDS,
    QUANTITIES,
    Asked,
    cost_records,
    domain_text,
    identity,
    in_domain,
)
from attnprof.errors import RequestError, together
from attnprof.mechanism import Mechanism
from attnprof.record import CostRecord, Report
from attnprof.workload import Workload


def cost(
    *,
    shape: request.Selection = request.Selection(attention="standard"),
    conditions: request.Conditions,
    scope: opt.ScopeOption = "layer",
    kind: opt.KindOption = None,
    quantity: opt.QuantityOption = None,
    convention: opt.ConventionOption = "flops",
    kv_heads: str | None = Option(None, metavar="SIZE", help="Grouped key and value heads."),
    kv_seq: str | None = Option(None, metavar="SIZE", help="Key length, for cross-attention."),
    free: request.FreeSizes,
    symbolic: bool = Option(False, "--symbolic", help="Show the closed forms in B N h d."),
    full: bool = Option(False, "--full", help="With --symbolic: for sizes of 1, too."),
    latex: bool = Option(False, "--latex", help="Show the closed forms, for all sizes, in LaTeX."),
    to: opt.Output,
) -> None:
    """Show what a mechanism costs: FLOPs, bytes and memory.

    Formulas printed in papers stand beside ours where they speak of the same scope, phase and
    mask. Nothing is run, so --device changes nothing.

    Examples:
      attnprof cost --attention efficient --seq 4096
      attnprof cost -a standard,linear --seq 1024,65536 --quantity flops
      attnprof cost -a sdpa --phase train --causal --seq 4096
      attnprof cost -a taylor-efficient --scope core --symbolic
    """
    quantities = request.some_of(quantity, QUANTITIES, "--quantity")
    kinds = request.some_of(kind, KINDS, "--kind")
    in_full = symbolic or to.fmt != opt.Format.TABLE
    asked = Asked(quantities, kinds, convention, closed_forms=in_full, latex=latex)
    mechanisms, workloads = request.closed_form_request(
        shape, conditions, request.parse_names(shape.attention or ""),
        num_kv_heads=None if kv_heads is None else request.parse_size(kv_heads, "--kv-heads"),
        kv_seq_len=None if kv_seq is None else request.parse_size(kv_seq, "--kv-seq"),
        **free.sizes,
    )  # fmt: skip
    records = _records(mechanisms, workloads, scope, asked)
    shorter = symbolic and not full and to.fmt == opt.Format.TABLE
    shown = in_domain(records) if shorter else records
    told = [its.choice(workload) for its in mechanisms for workload in workloads]
    choices = {"choices": list(dict.fromkeys(filter(None, told)))} if any(told) else {}
    report = Report("cost", shown, {"convention": convention, **choices}, opt.environment())
    to.deliver(report, quantities=quantities, symbolic=symbolic, latex=latex,
               domain=domain_text if shorter else None)  # fmt: skip


def _records(
    mechanisms: Sequence[Mechanism], workloads: Sequence[Workload], scope: str, asked: Asked
) -> list[CostRecord]:
    """Return the records of every mechanism at every length; a refusal is a row with the reason."""
    records: list[CostRecord] = []
    refusals: list[RequestError] = []
    for mechanism in mechanisms:
        for workload in workloads:
            try:
                records += cost_records(mechanism, workload, scope, asked)
            except RequestError as refusal:
                refusals.append(refusal)
                who = identity(mechanism, workload, scope)
                records.append(CostRecord(**who, stage="total", skipped=str(refusal)))
    if refusals and len(refusals) == len(records):
        raise together(refusals)
    if records:
        return records
    names = ", ".join(mechanism.name for mechanism in mechanisms)
    if "formula" in asked.kinds:
        raise RequestError(
            f"none of {', '.join(asked.quantities)} is counted for {names} "
            f"with --convention {asked.convention}"
        )
    forms = [
        f"{form.source} {form.quantity} ({form.scope}, {form.phase}"
        + (", one head)" if form.heads == "one" else ")")
        for mechanism in mechanisms
        for form in mechanism.published()
    ]
    printed = f"printed: {'; '.join(forms)}" if forms else "the documents print none"
    raise RequestError(
        f"no published formula of {names} speaks of this scope, phase, mask and batch; {printed}"
    )
