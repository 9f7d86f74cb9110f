"""Rows of implementations.py, the CSV they stand in, and the tables made of them."""

from __future__ import annotations

import csv
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from statistics import median

from implementations_cases import BATCH, HEADS, WIDTH, cases

ALLOCATORS = {
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

    @property
    def key(self) -> tuple[str, int, str, str]:
        """What is measured once: case, length, phase, allocator."""
        return self.mechanism, self.seq_len, self.phase, self.allocator


def saved(path: Path) -> list[Row]:
    """Rows of the CSV, in the order of cases and lengths; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        kinds = {field.name: TYPES[str(field.type)] for field in fields(Row)}
        found = [
            Row(**{name: kinds[name](value) for name, value in line.items()})
            for line in csv.DictReader(file)
        ]
    order = [case.mechanism for case in cases()]
    found = [row for row in found if row.mechanism in order]
    allocators = list(ALLOCATORS)
    return sorted(
        found,
        key=lambda r: (allocators.index(r.allocator), order.index(r.mechanism), r.seq_len, r.phase),
    )


TYPES = {"str": str, "int": int, "float": float}


def append(path: Path, row: Row) -> None:
    """One more line, written at once: a run that is cut short loses nothing."""
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if fresh:
            writer.writerow([field.name for field in fields(Row)])
        writer.writerow(asdict(row).values())


def rewrite(path: Path, rows: list[Row]) -> None:
    """The CSV with these rows alone, in order."""
    path.unlink(missing_ok=True)
    for row in rows:
        append(path, row)


def report(rows: list[Row]) -> str:
    """The tables as Markdown."""
    names = ["torch", "performer-pytorch", "linformer", "nystrom-attention", "local-attention",
             "reformer-pytorch", "transformers"]  # fmt: skip
    found = ", ".join(f"{name} {version(name)}" for name in names)
    head = [
        "# attnprof against public implementations", "",
        (f"Ratio of thread CPU time, ours / reference: below 1 is faster. float32, d_model "
        f"{WIDTH}, {HEADS} heads, batch {BATCH}, one thread, pairs in random order, no dropout, "
        f"CPU {platform.machine()}; {found}."), "",
        ("Median, and first to third quartile in brackets; *forward* under inference mode, *train* "
        "= forward and the gradients of inputs and parameters. Memory: peak of the allocator. "
        "Written by `reports/implementations.py`, which says how to install the references; "
        "`implementations.csv` has all columns."), "",
    ]  # fmt: skip
    return "\n".join(
        [
            *head,
            *by_mechanism(rows),
            *by_case(rows),
            *(x for a in ALLOCATORS for x in table(rows, a)),
            "",
        ]
    )


PARTS = [(a, p) for a in ALLOCATORS for p in ("forward", "train")]


def medians(rows: list[Row]) -> list[float]:
    """Median ratios for each allocator and phase; nan where nothing was measured."""
    found = [[r.ratio for r in rows if (r.allocator, r.phase) == part] for part in PARTS]
    return [median(some) if some else float("nan") for some in found]


def grouped(rows: list[Row], name: Callable[[Row], str]) -> dict[str, list[Row]]:
    """Rows by a name, in the order the names first come."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(name(row), []).append(row)
    return groups


def line(first: str, columns: list[float], *more: str) -> str:
    """A line of a table."""
    return "| " + " | ".join([first, *(f"{c:.2f}" for c in columns), *more]) + " |"


def by_mechanism(rows: list[Row]) -> list[str]:
    """One value a mechanism: the median over its cases and lengths; then over mechanisms."""
    lines = ["## Medians by mechanism", "",
             "Over a mechanism's cases and lengths; the last line is the median of the lines.", "",
             "| mechanism | " + " | ".join(f"{p}, {a}" for a, p in PARTS) + " | cases | lengths |",
             "|" + "---|" * 7]  # fmt: skip
    columns = []
    for mechanism, group in grouped(rows, lambda row: row.mechanism.split()[0]).items():
        columns.append(medians(group))
        count = len({row.mechanism for row in group})
        lengths = ", ".join(map(str, sorted({row.seq_len for row in group})))
        lines.append(line(mechanism, columns[-1], str(count), lengths))
    total = [median(column) for column in zip(*columns, strict=True)]
    return [*lines, line("**median over mechanisms**", total, "", ""), "", *NOTES]


NOTES = [
    ("Not compared: `sparse`. No package that installs from the registry and runs on a CPU has "
     "the Sparse Transformer's patterns (the authors' kernels are for GPUs alone)."), "",
    ("`reformer`, not causal, multiplies each row with 224 keys (causal: 160), the references with "
     "128: they cut chunks from all buckets in a row, which lets later tokens move earlier "
     "outputs; ours are cut within a bucket. Where memory costs no time, that decides."), "",
    ("The default allocator of glibc keeps blocks of up to 32 MiB once one as large was freed: its "
     "ratios depend on what ran before in the process, those without mmap do not."), "",
]  # fmt: skip


def by_case(rows: list[Row]) -> list[str]:
    """One line a case, medians over its lengths, against its target."""
    lines = ["## Medians by case", "", "| case | reference | target | "
             + " | ".join(f"{p}, {a}" for a, p in PARTS) + " | most memory | |",
             "|" + "---|" * 9]  # fmt: skip
    columns = []
    for mechanism, group in grouped(rows, lambda row: row.mechanism).items():
        columns.append(medians(group))
        memory = max(r.own_peak_bytes / r.reference_peak_bytes for r in group)
        met = all(ratio <= group[0].target for ratio in columns[-1]) and memory <= 1
        first = f"{mechanism} | {group[0].reference} | {group[0].target}"
        lines.append(line(first, columns[-1], f"{memory:.2f}", "met" if met else "missed"))
    total = [median(column) for column in zip(*columns, strict=True)]
    slowest = max(rows, key=lambda r: r.ratio)
    return [
        *lines, line("median over cases | | 0.7", total, "", ""), "",
        (f"Slowest single comparison: {slowest.mechanism} against {slowest.reference}, "
        f"{slowest.seq_len} tokens, {slowest.phase}, {slowest.allocator}: {slowest.ratio:.2f}."),
        "",
    ]  # fmt: skip


def table(rows: list[Row], allocator: str) -> list[str]:
    """All comparisons with one allocator."""
    lines = [f"## Allocator: {allocator}", ""]
    setting = " ".join(f"{k}={v}" for k, v in ALLOCATORS[allocator].items())
    lines += [f"`{setting}`", ""] if setting else []
    lines += [("| mechanism (settings) | reference | tokens | phase | ratio | ours, ms | "
              "reference, ms | peak, ours → reference, MiB | pairs |"),
              "|" + "---|" * 9]  # fmt: skip
    for r in (r for r in rows if r.allocator == allocator):
        own, other = r.own_peak_bytes / 2**20, r.reference_peak_bytes / 2**20
        lines.append(
            f"| {r.mechanism} ({r.settings}) | {r.reference} | {r.seq_len} | {r.phase} "
            f"| {r.ratio:.2f} [{r.ratio_q1:.2f}, {r.ratio_q3:.2f}] | {r.own_s * 1e3:.1f} "
            f"| {r.reference_s * 1e3:.1f} | {own:.1f} → {other:.1f} | {r.pairs} |"
        )
    return [*lines, ""]
