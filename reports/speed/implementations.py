"""Time and memory of attnprof's mechanisms against the public implementation of each.

Both sides run in one process on one thread, at the same shapes and weights' sizes, in pairs of
random order; a ratio is ours / reference in thread CPU time, below 1 is faster. Peaks are those
of torch's CPU allocator. Everything is done twice: with glibc's default allocator, and with one
that neither maps large blocks nor gives memory back (each in a process with its settings).

The references are no dependencies of attnprof. Into an environment that has attnprof and torch::

    pip install --no-deps performer-pytorch==1.1.4 linformer==0.2.3 nystrom-attention==0.0.14 \
        local-attention==1.11.2 reformer-pytorch==1.4.4 transformers==5.23
    pip install einops axial-positional-embedding colt5-attention product-key-memory \
        hyper-connections tokenizers huggingface_hub safetensors regex
    python reports/run.py speed/implementations
    python reports/run.py speed/implementations longformer --set SECONDS=10.0
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from itertools import product
from statistics import median
from typing import Any

from rows import fresh, grouped, table
from speed import implementation_cases as listed
from speed.compared import COLUMNS, MEANING, PHASES, SIZES, Row, cells, comparisons

PACKAGES = (
    "torch", "performer-pytorch", "linformer", "nystrom-attention", "local-attention",
    "reformer-pytorch", "transformers",
)  # fmt: skip
LENGTHS = (512, 2048, 4096)
#: Least seconds of a comparison.
SECONDS = 3.0
ALLOCATORS: dict[str, dict[str, str]] = {
    "default": {},
    "no mmap": {
        "MALLOC_MMAP_THRESHOLD_": "8589934592",
        "MALLOC_TRIM_THRESHOLD_": "8589934592",
        "MALLOC_TOP_PAD_": "268435456",
    },
}


def name_of(row: Row) -> str:
    """Return the case of a row."""
    return f"{row.mechanism}, {row.seq_len} tokens, {row.allocator}"


def cases() -> dict[str, tuple[str, int, str]]:
    """Return mechanism, length and allocator of each case, by name."""
    points = [
        (case.mechanism, n, allocator)
        for allocator, case, n in product(ALLOCATORS, listed.cases(), LENGTHS)
        if n <= case.longest
    ]
    return {
        f"{name}, {n} tokens, {allocator}": (name, n, allocator) for name, n, allocator in points
    }


def rows(_: str, case: tuple[str, int, str]) -> Iterator[Row]:
    """Yield both phases; the C library reads its settings when a process starts."""
    environment = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **ALLOCATORS[case[2]]}
    for values in fresh(measured, *case, SECONDS, **environment):
        yield Row(*values)


def measured(name: str, n: int, allocator: str, seconds: float) -> list[tuple[Any, ...]]:
    """Return the fields of the rows of a case."""
    case = next(case for case in listed.cases() if case.mechanism == name)
    return [astuple(row) for row in comparisons(case, n, seconds, 1, allocator)]


# -- the page -------------------------------------------------------------------------------
def page(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# attnprof against public implementations"
    yield (
        f"Ratio of thread CPU time, ours / theirs: below 1 is faster. {SIZES}, one thread, pairs "
        "in random order, no dropout."
    )
    yield ""
    yield (
        f"Median, and first to third quartile in brackets; {MEANING} Memory: peak of the "
        "allocator. The script says how to install the references."
    )
    yield ""
    yield from by_mechanism(rows)
    yield from by_case(rows)
    for allocator in ALLOCATORS:
        yield from by_pair([row for row in rows if row.allocator == allocator], allocator)


PARTS = [(a, p) for a in ALLOCATORS for p in PHASES]
HEADS_OF_PARTS = " | ".join(f"{phase}, {allocator}" for allocator, phase in PARTS)
NOTES = [
    ("Not compared: `sparse`. No package that installs from the registry and runs on a CPU has "
     "the Sparse Transformer's patterns (the authors' kernels are for GPUs alone)."), "",
    ("`reformer`, not causal, multiplies each row with 224 keys (causal: 160), the references with "
     "128: they cut chunks from all buckets in a row, which lets later tokens move earlier "
     "outputs; ours are cut within a bucket. Where memory costs no time, that decides."), "",
    ("The default allocator of glibc keeps blocks of up to 32 MiB once one as large was freed: its "
     "ratios depend on what ran before in the process, those without mmap do not."), "",
]  # fmt: skip


def medians(rows: list[Row]) -> list[float]:
    """Return median ratios for each allocator and phase; nan where nothing was measured."""
    ratios = [[r.ratio for r in rows if (r.allocator, r.phase) == part] for part in PARTS]
    return [median(some) if some else float("nan") for some in ratios]


def ratio_cells(columns: list[float]) -> list[str]:
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
        lines.append((mechanism, *ratio_cells(columns[-1]), count, lengths))
    total = [median(column) for column in zip(*columns, strict=True)]
    lines.append(("**median over mechanisms**", *ratio_cells(total), "", ""))
    yield from table(f"mechanism | {HEADS_OF_PARTS} | cases | lengths", lines)
    yield ""
    yield from NOTES


def by_case(rows: list[Row]) -> Iterator[str]:
    """Yield one line a case, medians over its lengths, against its target."""
    yield from ("## Medians by case", "")
    columns, lines = [], []
    for mechanism, group in grouped(rows, lambda row: row.mechanism).items():
        columns.append(medians(group))
        memory, target = max(row.memory for row in group), group[0].target
        met = all(ratio <= target for ratio in columns[-1]) and memory <= 1
        lines.append((
            mechanism, group[0].reference, target, *ratio_cells(columns[-1]), f"{memory:.2f}",
            "met" if met else "missed",
        ))  # fmt: skip
    total = [median(column) for column in zip(*columns, strict=True)]
    lines.append(("median over cases", "", "0.7", *ratio_cells(total), "", ""))
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
        f"mechanism (settings) | reference | tokens | phase | {COLUMNS}",
        ((f"{r.mechanism} ({r.settings})", r.reference, r.seq_len, r.phase, *cells(r))
         for r in rows),
    )  # fmt: skip
    yield ""
