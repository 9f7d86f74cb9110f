"""Commands on closed forms: ``cost`` by stage, ``compare`` side by side, ``heads`` by number."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from typer import Argument

from attnprof import registry
from attnprof.algebra.polynomials import divisors
from attnprof.cli import options as opt
from attnprof.cli import request
from attnprof.closed_form import cost_records as costs
from attnprof.closed_form import domain
from attnprof.closed_form import heads as by_heads
from attnprof.errors import RequestError, together
from attnprof.mechanism import Mechanism
from attnprof.record import CostRecord, Report
from attnprof.workload import Workload


@dataclass(frozen=True, kw_only=True)
class SharedTokens:
    """Options for ranks that share a sequence's tokens: number, bandwidth, FLOP/s."""

    ranks: str | None = opt.flag("SIZES", "Bytes that a rank sends where so many share the tokens.")
    bandwidth: str | None = opt.flag(
        "RATE", "With --ranks: bytes a second that a rank sends, like 450GB/s."
    )
    on: str | None = opt.flag(
        "NAME", "With --bandwidth: the device whose products hide it (default H100).", "--on",
        callback=opt.device_name,
    )  # fmt: skip

    def report(
        self, mechanisms: Sequence[Mechanism], workloads: Sequence[Workload], **shown: Any
    ) -> Report:
        """Return the bytes that ranks send; RequestError if an option of other reports is typed."""
        from attnprof.closed_form.context_parallel import Link, rank_records
        from attnprof.device.ceilings import device_named

        if wrong := [flag for flag, typed in shown.items() if typed]:
            raise RequestError(f"{wrong[0]} is of costs, not of --ranks: leave one of them out")
        counts = request.parse_sizes(self.ranks or "", "--ranks")
        link, summary = None, dict[str, Any]()
        if self.bandwidth is not None:
            device, dtype = device_named(self.on or "H100"), workloads[0].dtype
            if (rate := device.rate(dtype)) is None:
                raise RequestError(
                    f"--on {device.name}: its maker states no rate for {dtype}; type another "
                    "--dtype"
                )
            link = Link(_rate(self.bandwidth), rate)
            summary = {"bytes_per_s": link.bytes_per_s, "flops_per_s": rate,
                       "device": device.name, "source": device.source}  # fmt: skip
        points = list(product(mechanisms, workloads, counts))
        request.check_points(len(points), f"--ranks {self.ranks}")
        records = [row for at in points for row in rank_records(*at, link)]
        return Report("cost --ranks", records, summary, opt.environment())


def _rate(text: str) -> float:
    """Return the bytes a second of ``450GB/s``."""
    try:
        rate = request.parse_bytes(text.removesuffix("/s"), "--bandwidth")
    except RequestError:
        rate = 0
    if not rate:
        raise RequestError(f"--bandwidth {text}: type a rate like 450GB/s")
    return float(rate)


def cost(
    *,
    shape: request.Selection = request.Selection(attention="standard"),
    conditions: request.Conditions,
    scope: opt.ScopeOption = "layer",
    kind: opt.KindOption = None,
    quantity: opt.QuantityOption = None,
    convention: opt.ConventionOption = "flops",
    kv_heads: str | None = opt.flag("SIZE", "Grouped key and value heads."),
    kv_seq: str | None = opt.flag("SIZE", "Key length, for cross-attention."),
    free: request.FreeSizes,
    symbolic: bool = opt.switch("--symbolic", "Show the closed forms in B N h d."),
    full: bool = opt.switch("--full", "With --symbolic: for sizes of 1, too."),
    latex: bool = opt.switch("--latex", "Show the closed forms, for all sizes, in LaTeX."),
    ranks: SharedTokens,
    to: opt.DrawnOutput,
) -> None:
    """Show what a mechanism costs: FLOPs, bytes and memory.

    Formulas printed in papers stand beside ours where they speak of the same scope, phase and
    mask. Nothing is run, so --device changes nothing.

    Examples:
      attnprof cost --attention efficient --seq 4096
      attnprof cost -a sdpa --phase train --causal --seq 4096
      attnprof cost -a taylor-efficient --scope core --symbolic
      attnprof cost -a gqa,retnet --seq 1048576 --ranks 8 --bandwidth 450GB/s
    """
    quantities = request.some_of(quantity, costs.QUANTITIES, "--quantity")
    kinds = request.some_of(kind, costs.KINDS, "--kind")
    in_full = symbolic or to.fmt != opt.Format.TABLE
    selection = costs.CostQuery(quantities, kinds, convention, closed_forms=in_full, latex=latex)
    sizes = {**free.sizes}
    if kv_heads is not None:
        sizes["num_kv_heads"] = request.parse_size(kv_heads, "--kv-heads")
    if kv_seq is not None:
        sizes["kv_seq_len"] = request.parse_size(kv_seq, "--kv-seq")
    names = request.parse_names(shape.attention or "")
    mechanisms, workloads = request.closed_form_request(shape, conditions, names, **sizes)
    if ranks.on is not None and ranks.bandwidth is None:
        raise RequestError(
            f"--on {ranks.on} is the device whose products hide what ranks send: type a rate like "
            "--bandwidth 450GB/s, too, or leave --on out; for times type attnprof predict"
        )
    if ranks.ranks is not None:
        others = {"--kind": kind, "--quantity": quantity, "--latex": latex, "--full": full,
                  "--convention": convention != "flops", "--scope": scope != "layer"}  # fmt: skip
        to.deliver(ranks.report(mechanisms, workloads, **others), symbolic=symbolic)
        return
    if ranks.bandwidth is not None or to.plot is not None:
        flag = "--bandwidth" if to.plot is None else "--plot"
        raise RequestError(f"{flag} is of ranks that share the tokens: type how many, --ranks 8")
    records = _records(mechanisms, workloads, scope, selection)
    shorter = symbolic and not full and to.fmt == opt.Format.TABLE
    shown = domain.in_domain(records) if shorter else records
    forms = [mechanism.choice(workload) for mechanism in mechanisms for workload in workloads]
    choices = {"choices": list(dict.fromkeys(filter(None, forms)))} if any(forms) else {}
    summary = {"convention": convention, "sizes": sizes, **choices}
    report = Report("cost", shown, summary, opt.environment())
    to.deliver(report, quantities=quantities, symbolic=symbolic, latex=latex,
               domain=domain.domain_text if shorter else None)  # fmt: skip


def _records(
    mechanisms: Sequence[Mechanism], workloads: Sequence[Workload], scope: str,
    selection: costs.CostQuery,
) -> list[CostRecord]:  # fmt: skip
    """Return the records of every mechanism at every length; a refusal is a row with the reason."""
    records: list[CostRecord] = []
    refusals: list[RequestError] = []
    for mechanism in mechanisms:
        for workload in workloads:
            try:
                records += costs.cost_records(mechanism, workload, scope, selection)
            except RequestError as refusal:
                refusals.append(refusal)
                who = costs.identity(mechanism, workload, scope)
                records.append(CostRecord(**who, stage="total", skipped=str(refusal)))
    if refusals and len(refusals) == len(records):
        raise together(refusals)
    if records:
        return records
    names = ", ".join(mechanism.name for mechanism in mechanisms)
    if "formula" in selection.kinds:
        raise RequestError(
            f"none of {', '.join(selection.quantities)} is counted for {names} "
            f"with --convention {selection.convention}"
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


def compare(
    *,
    shape: request.Selection,
    free: request.FreeSizes,
    conditions: request.Conditions,
    scope: opt.ScopeOption = "layer",
    kind: str | None = opt.flag("KINDS", "formula (our closed form), the only kind here."),
    quantity: opt.QuantityOption = None,
    convention: opt.ConventionOption = "flops",  # noqa: ARG001 - both are columns
    to: opt.DrawnOutput,
) -> None:
    """Put mechanisms side by side and mark the cheapest.

    Without --attention these are all mechanisms. One that cannot do what is asked is a row with
    the reason. --plot draws FLOPs and peak memory over several sequence lengths.

    Examples:
      attnprof compare -a standard,sdpa,linear --seq 1024,65536
      attnprof compare --seq 4096 --phase decode
      attnprof compare -a standard,efficient --quantity flops --format csv
      attnprof compare -a standard,linear --seq 1024:65536:x4 --plot costs.png
    """
    request.some_of(kind, ("formula",), "--kind")
    shown, without = list(costs.CONTESTED), list[str]()
    if quantity is not None:
        shown = request.some_of(quantity, costs.POSSIBLE, "--quantity")
        without = costs.left_out(shown)
    if conditions.phase != "decode" and (of_steps := [x for x in shown if x.startswith("step_")]):
        raise RequestError(f"--quantity {of_steps[0]}: a decoding step has it: add --phase decode")
    names = registry.names() if shape.attention is None else request.parse_names(shape.attention)
    mechanisms, workloads = request.closed_form_request(shape, conditions, names, **free.sizes)
    if to.plot is not None and len(workloads) == 1:
        raise RequestError(
            "--plot draws costs over several sequence lengths: type them, like --seq "
            "1024:131072:x2, or leave --plot out"
        )
    records = costs.compare_records(mechanisms, workloads, scope)
    winners: dict[str, dict[str, list[str]]] = {}  # by length and quantity, who is lowest
    for one in records:
        for name in one.wins.split(",") if one.wins else ():
            winners.setdefault(str(one.seq_len), {}).setdefault(name, []).append(one.mechanism)
    answer = costs.compare_answer(records, shown)
    summary = {"winners": winners, "sizes": free.sizes, "answer": answer}
    report = Report("compare", records, summary, opt.environment())
    to.deliver(report, without=without, quantities=shown)


def heads_(
    mechanisms: list[str] | None = Argument(
        None, metavar="A B", help="Mechanisms (default taylor-direct taylor-efficient)."
    ),
    *,
    attention: opt.AttentionOption = None,
    d_model: str = opt.flag("SIZE", "Model width.", default="512"),
    seq: str = opt.flag("SIZE", "Sequence length.", default="1024"),
    heads: str | None = opt.flag("SIZES", "Only these; all divisors otherwise."),
    conditions: request.Conditions,
    scope: opt.ScopeOption = "core",
    kind: opt.KindOption = None,
    quantity: opt.QuantityOption = None,
    to: opt.DrawnOutput,
) -> None:
    """Show the cost over the number of heads, and the best number.

    FLOPs and entries (numbers held in memory) at a fixed model width. The optimum is the root of
    the cost's derivative; the best divisor is the cheapest number of heads that can be built.

    Examples:
      attnprof heads --d-model 256 --seq 1025
      attnprof heads standard linear --d-model 512 --seq 4096
      attnprof heads --heads 1,2,4,8 --plot heads.png
    """
    width, length = request.parse_size(d_model, "--d-model"), request.parse_size(seq, "--seq")
    possible = divisors(width)
    counts = possible if heads is None else sorted(request.parse_sizes(heads, "--heads"))
    if wrong := [h for h in counts if width % h]:
        more = ", …" if possible[24:] else ""
        raise RequestError(
            f"--heads {wrong[0]}: does not divide d_model {width}; "
            f"possible: {', '.join(map(str, possible[:24]))}{more}"
        )
    workload = conditions.workload(length, 1, width)
    names = request.names_of(mechanisms or (), attention) or request.TAYLORSHIFT
    kinds = request.some_of(kind, by_heads.KINDS, "--kind")
    quantities = request.some_of(quantity, by_heads.QUANTITIES, "--quantity")
    chosen = conditions.configured(list(dict.fromkeys(names)))
    curves = by_heads.curves_of(chosen, workload, scope, kinds, quantities)
    where = f"{scope}, {workload.phase}{', causal' * workload.causal}"
    sizes = f"batch {workload.batch_size}, seq {length:,}, d_model {width:,}"
    conditions_text = f"{where}, {sizes}"
    to.deliver(
        by_heads.heads_report(curves, width, length, counts, opt.environment(), conditions_text)
    )
