"""Time and memory of recent mechanisms against the texts that their authors publish for a CPU.

Both sides run in one process, at the same shapes, in turns of random order; a ratio is ours /
theirs: of thread CPU time on one thread, of wall-clock time on two. fla's functions are read by
the paths of their files. Into an environment that has attnprof and torch::

    pip install --no-deps fla-core==0.6.0 einops==0.8.2 transformers==5.23
    python reports/run.py speed/public_texts
    python reports/run.py speed/public_texts mla --set SECONDS=5.0
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from rows import grouped, table
from speed.compared import COLUMNS, MEANING, SIZES, Row, cells, comparisons
from speed.public_text_cases import cases as listed

PACKAGES = ("torch", "transformers", "fla-core")
LENGTHS, THREADS_OF = (512, 1024), (1, 2)
#: Seconds of a comparison.
SECONDS = 2.0
#: What the median over mechanisms is held against.
TARGET = 0.7


def name_of(row: Row) -> str:
    """Return the case of a row."""
    return f"{row.mechanism}, {row.threads} threads"


def cases() -> dict[str, tuple[str, int]]:
    """Return mechanism and threads of each case, by name."""
    pairs = [(case.mechanism, threads) for threads in THREADS_OF for case in listed()]
    return {f"{name}, {threads} threads": (name, threads) for name, threads in pairs}


def rows(_: str, setting: tuple[str, int]) -> Iterator[Row]:
    """Yield the comparisons of a case: both phases at each length."""
    name, threads = setting
    case = next(case for case in listed() if case.mechanism == name)
    for n in (n for n in LENGTHS if n <= case.longest):
        yield from comparisons(case, n, SECONDS, threads)


def page(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# Recent mechanisms against their public texts"
    yield (
        f"Ratio of times, ours / theirs: below 1 is faster. {SIZES}, causal, in turns of random "
        f"order. {MEANING} Thread CPU time on one thread, wall-clock time on two. The script says "
        "how to install the texts. `topk` copies the 256 keys that a row picks, as `impl=auto` "
        "does above 2,048 tokens; at these lengths that takes the masked form."
    )
    for part in (summary(rows), by_mechanism(rows), by_pair(rows)):
        yield ""
        yield from part


def summary(rows: list[Row]) -> Iterator[str]:
    """Yield the median over mechanisms of their medians, by phase and threads, and the slowest."""
    for (threads, phase), group in grouped(rows, lambda row: (row.threads, row.phase)).items():
        medians = {
            name: median(row.ratio for row in some)
            for name, some in grouped(group, lambda row: row.mechanism).items()
        }
        above = sorted((x, name) for name, x in medians.items() if x > 1)
        slower = ", ".join(f"{name} {x:.2f}" for x, name in above) or "none"
        over_all = median(medians.values())
        verdict = "met" if over_all <= TARGET else "missed"
        yield (
            f"* {phase}, {threads} thread{'s' * (threads > 1)}: {over_all:.2f} at the median over "
            f"{len(medians)} comparisons ({TARGET}: {verdict}); slower: {slower}."
        )


def by_mechanism(rows: list[Row]) -> Iterator[str]:
    """Yield the median and the largest ratio over lengths, and of peaks the largest."""
    parts = sorted({(row.threads, row.phase) for row in rows})
    lines = []
    for (mechanism, reference, settings), group in grouped(
        rows, lambda row: (row.mechanism, row.reference, row.settings)
    ).items():
        medians = []
        for part in parts:
            ratios = [row.ratio for row in group if (row.threads, row.phase) == part]
            medians.append(f"{median(ratios):.2f} ({max(ratios):.2f})" if ratios else "")
        memory = max(row.memory for row in group)
        lines.append((mechanism, reference, settings, *medians, f"{memory:.2f}"))
    heads = " | ".join(f">{phase}, {threads}" for threads, phase in parts)
    yield "Median over lengths, and the largest in brackets, by phase and threads; memory: the"
    yield "largest ratio of peaks."
    yield ""
    yield from table(f"mechanism | text | settings | {heads} | >memory", lines)


def by_pair(rows: list[Row]) -> Iterator[str]:
    """Yield all comparisons."""
    yield from table(
        f"mechanism | text | threads | tokens | phase | {COLUMNS}",
        ((r.mechanism, r.reference, r.threads, r.seq_len, r.phase, *cells(r)) for r in rows),
    )
