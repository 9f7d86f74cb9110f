"""Fit how counts grow with the length, and judge them by the growth that a mechanism claims.

The exponent of a count is the slope of its logarithm over that of N, by least squares over the
longer half of the lengths, where constant and small terms have mostly died out. A term that leads
only at longer lengths, a logarithm or one with a small factor, is sought at lengths far beyond.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from attnprof.algebra.orders import fitted, keeps, order_value
from attnprof.costs import CostTable, Number
from attnprof.mechanism import Mechanism
from attnprof.record import GrowthRecord
from attnprof.units import setting_text
from attnprof.workload import Workload

LENGTHS = tuple(2**power for power in range(10, 17))
#: A found exponent may lie above its claim by this much: edges of blocks, roots rounded up.
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
        for known in self.mechanism.variants:
            if known.params == self.variant:
                order = getattr(known, which)
                return claimed, order, known.reason if order != claimed else ""
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
            fit <= known + TOLERANCE and (far is None or keeps(order, far) is not False)
            for order, known in ((claimed, claim), (declared, limit))
        )
        return replace(
            blank, claimed_exponent=round(claim, DIGITS), found_exponent=round(fit, DIGITS),
            verdict=AGREES if within else FASTER, expected=expected,
            reason=None if within else "; ".join(filter(None, (because(), why))),
        )  # fmt: skip


def closed_form_growth(
    subject: GrowthCase, lengths: Sequence[int] = LENGTHS
) -> tuple[GrowthRecord, GrowthRecord]:
    """Return the growth of FLOPs and of peak memory by closed form."""
    tables = [subject.table(n) for n in lengths]

    def record(
        quantity: str, count: Callable[[CostTable], Number], because: Callable[[], str]
    ) -> GrowthRecord:
        counts = [int(count(table)) for table in tables]
        return subject.record(
            quantity, "formula", "closed form", lengths, counts, because=because,
            far=lambda n: int(count(subject.table(n))),
        )  # fmt: skip

    def stage_of_peak() -> str:
        live = tables[-1].live()
        return f"the peak is in {tables[-1].stages[live.index(max(live))].name}"

    return (
        record("flops", lambda table: table.flops, lambda: _steepest_stage(lengths, tables)),
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
