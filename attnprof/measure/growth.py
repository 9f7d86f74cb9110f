"""Verify ``list``'s orders of growth: each mechanism's claim against counts at several lengths."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from attnprof import registry
from attnprof.closed_form.answers import growth_answer
from attnprof.closed_form.growth import FASTER, LENGTHS, GrowthCase, closed_form_growth
from attnprof.measure.counters import count_with_torch
from attnprof.measure.request import PointRequest
from attnprof.processes.progress import tell
from attnprof.record import GrowthRecord, Report
from attnprof.workload import Workload

HEAD_DIM = 64
#: torch's counter takes about a millisecond a product with what surrounds it: no longer lengths
#: are counted for a mechanism that loops, once a call has seen this many.
MOST_PRODUCTS = 250
COUNTER = "FlopCounterMode, meta tensors"


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


def verify(
    subjects: Sequence[GrowthCase],
    *,
    environment: dict[str, Any] | None = None,
) -> Report:
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
