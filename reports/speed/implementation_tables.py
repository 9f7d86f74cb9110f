"""The rows of implementations.py, and the tables made of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from rows import grouped, table
from speed.implementation_cases import BATCH, HEADS, WIDTH

PHASES = ("forward", "train")
ALLOCATORS: dict[str, dict[str, str]] = {
    "default": {},
    "no mmap": {
        "MALLOC_MMAP_THRESHOLD_": "8589934592",
        "MALLOC_TRIM_THRESHOLD_": "8589934592",
        "MALLOC_TOP_PAD_": "268435456",
    },
}


@dataclass(frozen=True)
class Row:
    """One comparison; times are seconds of one call, peaks bytes beyond what was live before."""

    mechanism: str
    reference: str
    settings: str
    seq_len: int
    phase: str
    allocator: str
    pairs: int
    ratio: float
    ratio_q1: float
    ratio_q3: float
    own_s: float
    reference_s: float
    own_peak_bytes: int
    reference_peak_bytes: int
    target: float


def page(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# attnprof against public implementations"
    yield (
        "Ratio of thread CPU time, ours / reference: below 1 is faster. float32, d_model "
        f"{WIDTH}, {HEADS} heads, batch {BATCH}, one thread, pairs in random order, no dropout."
    )
    yield ""
    yield (
        "Median, and first to third quartile in brackets; *forward* under inference mode, *train* "
        "= forward and the gradients of inputs and parameters. Memory: peak of the allocator. "
        "The script says how to install the references."
    )
    yield ""
    yield from by_mechanism(rows)
    yield from by_case(rows)
    for allocator in ALLOCATORS:
        yield from by_pair(rows, allocator)


PARTS = [(a, p) for a in ALLOCATORS for p in PHASES]


HEADS_OF_PARTS = " | ".join(f"{phase}, {allocator}" for allocator, phase in PARTS)


def medians(rows: list[Row]) -> list[float]:
    """Median ratios for each allocator and phase; nan where nothing was measured."""
    ratios = [[r.ratio for r in rows if (r.allocator, r.phase) == part] for part in PARTS]
    return [median(some) if some else float("nan") for some in ratios]


def ratios(columns: list[float]) -> list[str]:
    """Return ratios as cells."""
    return [f"{ratio:.2f}" for ratio in columns]


def by_mechanism(rows: list[Row]) -> Iterator[str]:
    """Yield one value a mechanism: the median over its cases and lengths; then over mechanisms."""
    yield from ("## Medians by mechanism", "")
    yield "Over a mechanism's cases and lengths; the last line is the median of the lines."
    yield ""
    columns, lines = [], []
    for mechanism, group in grouped(rows, lambda row: row.mechanism.split()[0]).items():
        columns.append(medians(group))
        count = len({row.mechanism for row in group})
        lengths = ", ".join(map(str, sorted({row.seq_len for row in group})))
        lines.append((mechanism, *ratios(columns[-1]), count, lengths))
    total = [median(column) for column in zip(*columns, strict=True)]
    lines.append(("**median over mechanisms**", *ratios(total), "", ""))
    yield from table(f"mechanism | {HEADS_OF_PARTS} | cases | lengths", lines)
    yield ""
    yield from NOTES


NOTES = [
    ("Not compared: `sparse`. No package that installs from the registry and runs on a CPU has "
     "the Sparse Transformer's patterns (the authors' kernels are for GPUs alone)."), "",
    ("`reformer`, not causal, multiplies each row with 224 keys (causal: 160), the references with "
     "128: they cut chunks from all buckets in a row, which lets later tokens move earlier "
     "outputs; ours are cut within a bucket. Where memory costs no time, that decides."), "",
    ("The default allocator of glibc keeps blocks of up to 32 MiB once one as large was freed: its "
     "ratios depend on what ran before in the process, those without mmap do not."), "",
]  # fmt: skip


def by_case(rows: list[Row]) -> Iterator[str]:
    """Yield one line a case, medians over its lengths, against its target."""
    yield from ("## Medians by case", "")
    columns, lines = [], []
    for mechanism, group in grouped(rows, lambda row: row.mechanism).items():
        columns.append(medians(group))
        memory = max(r.own_peak_bytes / r.reference_peak_bytes for r in group)
        met = all(ratio <= group[0].target for ratio in columns[-1]) and memory <= 1
        first = mechanism, group[0].reference, group[0].target
        said = "met" if met else "missed"
        lines.append((*first, *ratios(columns[-1]), f"{memory:.2f}", said))
    total = [median(column) for column in zip(*columns, strict=True)]
    lines.append(("median over cases", "", "0.7", *ratios(total), "", ""))
    yield from table(f"case | reference | target | {HEADS_OF_PARTS} | most memory | ", lines)
    slowest = max(rows, key=lambda r: r.ratio)
    yield ""
    yield (
        f"Slowest single comparison: {slowest.mechanism} against {slowest.reference}, "
        f"{slowest.seq_len} tokens, {slowest.phase}, {slowest.allocator}: {slowest.ratio:.2f}."
    )
    yield ""


def by_pair(rows: list[Row], allocator: str) -> Iterator[str]:
    """Yield all comparisons with one allocator."""
    yield from (f"## Allocator: {allocator}", "")
    setting = " ".join(f"{k}={v}" for k, v in ALLOCATORS[allocator].items())
    yield from (f"`{setting}`", "") if setting else ()
    yield from table(
        "mechanism (settings) | reference | tokens | phase | ratio | ours, ms | reference, ms "
        "| peak, ours → reference, MiB | pairs",
        (
            (f"{r.mechanism} ({r.settings})", r.reference, r.seq_len, r.phase,
             f"{r.ratio:.2f} [{r.ratio_q1:.2f}, {r.ratio_q3:.2f}]", f"{r.own_s * 1e3:.1f}",
             f"{r.reference_s * 1e3:.1f}",
             f"{r.own_peak_bytes / 2**20:.1f} → {r.reference_peak_bytes / 2**20:.1f}", r.pairs)
            for r in rows if r.allocator == allocator
        ),
    )  # fmt: skip
    yield ""
