"""The critical path of one inference step: the longest chain of dependent operations."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from attnprof.papers.extractors.counts import definition
from attnprof.workload import Workload

#: What each stage of a definition waits for, where the sublayer has it.
WAITS_FOR = {
    "scores": ("queries", "keys"),
    "scaling": ("scores",),
    "exponentials": ("scaling",),
    "row sums": ("exponentials",),
    "normalisation": ("exponentials", "row sums"),
    "weighted values": ("normalisation", "values"),
    "extraction": ("input",),
    "adjusted": ("adjustment", "extraction"),
    "output": ("weighted values", "adjusted"),
}


@cache
def critical_path(sublayer: str) -> str:
    """Its steps: ``mult;cum;div``, a sum of any length being one cumulation."""
    sizes = Workload(seq_len=4, num_heads=2, head_dim=2, phase="decode")
    longest: dict[str, tuple[str, ...]] = {}
    for stage in definition(sublayer, sizes):
        chains = [longest[name] for name in WAITS_FOR.get(stage.name, ()) if name in longest]
        longest[stage.name] = (*_longest(chains), *steps_of(stage.cost))
    return ";".join(_longest(longest.values()))


def _longest(chains: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return max(chains, key=len, default=())


def steps_of(cost: Any) -> tuple[str, ...]:
    """Kinds of operation that a stage chains, in order; a sum of any length is one cumulation."""
    taken = {
        "mult": cost.multiplications,
        "div": cost.divisions,
        "exp": cost.exponentials,
        "cum": cost.dot_outputs + cost.reduction_outputs,
    }
    return tuple(name for name, count in taken.items() if count)


def length(path: str) -> int:
    """Its number of steps."""
    return len(path.split(";"))
