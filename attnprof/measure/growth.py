"""Verify ``list``'s orders of growth: each mechanism's claim against counts at several lengths.

The exponent of a count is the slope of its logarithm over that of N, by least squares over the
longer half of the lengths, where constant and small terms have mostly died out. A term that leads
only at longer lengths, a logarithm or one with a small factor, is sought at lengths far beyond.
Entry point: :func:`verify`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnprof import registry
from attnprof.algebra.orders import fitted, order_value, stays_within
from attnprof.costs import CostTable, Number
from attnprof.measure.request import PointRequest
from attnprof.mechanism import Mechanism
from attnprof.processes.progress import tell
from attnprof.record import GrowthRecord, Report
from attnprof.units import joined, setting_text
from attnprof.workload import Workload

HEAD_DIM = 64
#: Products of a call after which no longer lengths are counted: torch's counter takes about a
#: millisecond for each, so long loops would take minutes.
MOST_PRODUCTS = 250
COUNTER = "FlopCounterMode, meta tensors"
LENGTHS = tuple(2**power for power in range(10, 17))
#: A fitted exponent may exceed its claim by this much: edges of blocks, roots rounded up.
TOLERANCE = 0.05
#: Share of a count at the longest length, below which a stage is not named as a reason.
SHARE = 0.01
DIGITS = 4
AGREES, FASTER = "agrees", "grows faster"


@dataclass(frozen=True)
class GrowthCase:
    """A mechanism with parameters, the sizes beside the length, and its claims."""

    mechanism: Mechanism
    workload: Workload
    scope: str

    @property
    def variant(self) -> dict[str, object]:
        """Return the parameters that are not the defaults."""
        defaults = type(self.mechanism)().params
        return {k: v for k, v in self.mechanism.params.items() if v != defaults[k]}

    @property
    def label(self) -> str:
        """Return the mechanism as a user types it: ``longformer impl=dense-mask``."""
        changed = (f"{name}={setting_text(value)}" for name, value in self.variant.items())
        return " ".join([self.mechanism.name, *changed])

    def orders(self, quantity: str) -> tuple[str, str, str]:
        """Return the mechanism's order, the one declared for these parameters, and why."""
        which = "memory_order" if quantity == "peak_bytes" else "time_order"
        claimed = getattr(self.mechanism, which)
        for variant in self.mechanism.variants:
            if variant.params == self.variant:
                order = getattr(variant, which)
                return claimed, order, variant.reason if order != claimed else ""
        return claimed, claimed, ""

    def table(self, n: int) -> CostTable:
        """Return the closed form at a length."""
        return self.mechanism.cost(self.workload.with_(seq_len=n), self.scope)

    def record(
        self, quantity: str, kind: str, source: str, lengths: Sequence[int], values: Sequence[int],
        *, because: Callable[[], str] = str, far: Callable[[int], int] | None = None,
    ) -> GrowthRecord:  # fmt: skip
        """Return the judged growth of a quantity; without a verdict if a value is 0.

        ``far`` gives the count at any length: then the term that leads in the end decides, too.
        """
        claimed, declared, why = self.orders(quantity)
        w = self.workload
        blank = GrowthRecord(
            mechanism=self.mechanism.name, params=self.mechanism.params, scope=self.scope,
            phase=w.phase, causal=w.causal, num_heads=w.num_heads, head_dim=w.head_dim,
            dtype=w.dtype, quantity=quantity, kind=kind, source=source,
            claimed_order=claimed, declared_order=declared,
            variant=self.label, seq_lens=list(lengths), values=list(values),
        )  # fmt: skip
        if len(lengths) < 2 or not all(values):
            return replace(blank, skipped=f"{source} finds nothing to count")
        fit = fitted(lengths, values)
        claim, limit = (
            fitted(lengths, [order_value(order, n) for n in lengths])
            for order in (claimed, declared)
        )
        within, expected = (
            fit <= exponent + TOLERANCE and (far is None or stays_within(order, far) is not False)
            for order, exponent in ((claimed, claim), (declared, limit))
        )
        return replace(
            blank, claimed_exponent=round(claim, DIGITS), found_exponent=round(fit, DIGITS),
            verdict=AGREES if within else FASTER, expected=expected,
            reason=None if within else "; ".join(filter(None, (because(), why))),
        )  # fmt: skip


def closed_form_growth(subject: GrowthCase) -> tuple[GrowthRecord, GrowthRecord]:
    """Return the growth of FLOPs and of peak memory by closed form."""
    tables = [subject.table(n) for n in LENGTHS]

    def record(
        quantity: str, count: Callable[[CostTable], Number], because: Callable[[], str]
    ) -> GrowthRecord:
        counts = [int(count(table)) for table in tables]
        return subject.record(
            quantity, "formula", "closed form", LENGTHS, counts, because=because,
            far=lambda n: int(count(subject.table(n))),
        )  # fmt: skip

    def stage_of_peak() -> str:
        live = tables[-1].live()
        return f"the peak is in {tables[-1].stages[live.index(max(live))].name}"

    return (
        record("flops", lambda table: table.flops, lambda: _steepest_stage(LENGTHS, tables)),
        record("peak_bytes", CostTable.peak, stage_of_peak),
    )


def _steepest_stage(lengths: Sequence[int], tables: Sequence[CostTable]) -> str:
    """Return which stage grows fastest, among stages that matter at the longest length."""
    by_stage: dict[str, list[int]] = defaultdict(lambda: [0] * len(lengths))
    for place, table in enumerate(tables):
        for stage in table:
            by_stage[stage.name][place] += int(stage.cost.flops)
    total = int(tables[-1].flops)
    half = len(lengths) // 2
    slopes = [
        (round(fitted(lengths[half:], counts[half:]), 1), counts[-1] / total, name)
        for name, counts in by_stage.items()
        if all(counts[half:]) and counts[-1] >= SHARE * total
    ]
    slope, share, name = max(slopes)
    return f"{name} grows like N^{slope:g}, {share:.0%} at {lengths[-1]:,} tokens"


def subjects(names: Sequence[str]) -> list[GrowthCase]:
    """Return every mechanism with its defaults and variants: one head, its core if it has one."""
    cases = []
    workload = Workload(1, 1, HEAD_DIM)
    for name in names:
        default = registry.get(name)
        settings = [{}, *(v.params for v in default.variants if v.params)]
        scope = "core" if default.abilities.attend else "layer"
        cases += [GrowthCase(default.with_params(some), workload, scope) for some in settings]
    return cases


def verify(subjects: Sequence[GrowthCase], *, environment: dict[str, Any] | None = None) -> Report:
    """Return three records a mechanism: products counted by torch, FLOPs and peak of the formula.

    The summary names those that grow ``faster`` than claimed, among them those whose
    specification does not say so (``unexpected``), and those that torch counts otherwise
    (``miscounted``).
    """
    records: list[GrowthRecord] = []
    for done, subject in enumerate(subjects):
        tell(f"counting {subject.label}", done, len(subjects))
        records += [counted_growth(subject), *closed_form_growth(subject)]
    summary: dict[str, Any] = {
        "seq_lens": list(LENGTHS),
        "faster": _labels(r for r in records if r.verdict == FASTER),
        "unexpected": _labels(r for r in records if r.expected is False),
        "miscounted": _labels(r for r in records if r.equals_formula is False),
    }
    summary["answer"] = growth_answer(summary["faster"], summary["unexpected"], len(subjects))
    return Report("list --verify", records, summary, environment or {})


def _labels(records: Iterable[GrowthRecord]) -> list[str]:
    return list(dict.fromkeys(record.variant for record in records))


def counted_growth(subject: GrowthCase, lengths: Sequence[int] = LENGTHS) -> GrowthRecord:
    """Return the growth of the FLOPs that torch counts in the real module's products."""
    from attnprof.measure.counters import count_with_torch

    mechanism, counted = subject.mechanism, dict[int, int]()
    for n in lengths:
        sizes = subject.workload.with_(seq_len=n)
        request = PointRequest.at(
            mechanism.name, sizes, scope=subject.scope, params=mechanism.params
        )
        count = count_with_torch(request, meta=True)
        counted[n] = count.counted.total()
        if count.calls.total() > MOST_PRODUCTS:
            break
    record = subject.record(
        "matmul_flops", "measured", COUNTER, list(counted), list(counted.values())
    )
    ours = all(subject.table(n).matmul_flops == flops for n, flops in counted.items())
    return replace(record, equals_formula=ours)


def growth_answer(faster: Sequence[str], unexpected: Sequence[str], count: int) -> str:
    """Return how many of ``count`` mechanisms grow no faster than claimed, and which do.

    ``unexpected`` are those of ``faster`` whose documentation does not say so.
    """
    if not faster:
        return f"All {count} grow no faster with the length than they claim."
    why = f"{joined(unexpected)} without saying so" if unexpected else "for reasons told below"
    return (
        f"{count - len(faster)} of {count} grow no faster with the length than they claim; "
        f"{joined(faster)} {'grows' if len(faster) == 1 else 'grow'} faster, {why}."
    )
