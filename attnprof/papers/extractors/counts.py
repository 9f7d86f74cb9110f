"""Counts and critical paths of 002's five sublayers, by definition (Eq 10 to 17, 23 to 29)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import sympy

from attnprof import registry
from attnprof.algebra.expressions import symbol
from attnprof.papers.documents import document
from attnprof.workload import Workload

DOCUMENT = document("002")
COUNTS = ("mult", "add", "div", "exp")
#: The document's names of sublayers by the mechanism that defines them.
MECHANISMS = {"self_attention": "standard", "she": "she", "he": "he", "we": "we", "me": "me"}
SUBLAYERS = tuple(MECHANISMS)
Form = Any


#: The document's l, t, d, n: context window, current length, width, heads.
SYMBOLS = L, T, D, N = tuple(symbol(name) for name in "ltdn")


def definition(sublayer: str, workload: Workload) -> Any:
    """The stages that the definition asks for; the document has no biases."""
    mechanism = registry.get(MECHANISMS[sublayer], bias=False)
    return mechanism.definition(workload, "layer")


def counts(cost: Any) -> dict[str, Any]:
    """A dot product of k terms has k-1 additions, a sum of k values too."""
    additions = cost.additions - cost.dot_outputs - cost.reduction_outputs
    found = (cost.multiplications, additions, cost.divisions, cost.exponentials)
    return dict(zip(COUNTS, found, strict=True))


@cache
def step(sublayer: str) -> dict[str, Form]:
    """What one more token at length t takes."""
    asked = Workload(T, N, D / N, phase="decode")
    counted = counts(definition(sublayer, asked).total)
    return {name: sympy.expand(count) for name, count in counted.items()}


@cache
def sequence(sublayer: str) -> dict[str, Form]:
    """What a training sequence of length l takes: its l steps; and the parameters."""
    asked = Workload(L, N, D / N, causal=True)
    sums = {name: summed(form) for name, form in step(sublayer).items()}
    return {**sums, "params": definition(sublayer, asked).parameters}


def summed(form: Form) -> Form:
    """A polynomial in t, added up over t = 1 to l."""
    return sympy.expand(sympy.summation(sympy.expand(form), (T, 1, L)))


@cache
def numbers(sublayer: str, window: int, width: int, heads: int) -> dict[str, int]:
    """A sequence's counts, their total and the parameters, step by step in whole numbers."""
    whole = Workload(window, heads, width // heads)
    steps = [whole.with_(seq_len=t, phase="decode") for t in range(1, window + 1)]
    counted = [counts(definition(sublayer, step).total) for step in steps]
    found = {name: sum(int(count[name]) for count in counted) for name in COUNTS}
    parameters = int(definition(sublayer, whole).parameters)
    return {**found, "params": parameters, "total_ops": sum(found.values())}


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
