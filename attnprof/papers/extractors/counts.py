"""Counts and critical paths of 002's five sublayers, by definition (Eq 10 to 17, 23 to 29)."""

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
def step(sublayer: str) -> dict[str, Any]:
    """What one more token at length t takes."""
    asked = Workload(T, N, D / N, phase="decode")
    counted = counts(definition(sublayer, asked).total)
    return {name: sympy.expand(count) for name, count in counted.items()}


@cache
def sequence(sublayer: str) -> dict[str, Any]:
    """What a training sequence of length l takes: its l steps; and the parameters."""
    asked = Workload(L, N, D / N, causal=True)
    sums = {name: summed(form) for name, form in step(sublayer).items()}
    return {**sums, "params": definition(sublayer, asked).parameters}


def summed(form: Any) -> Any:
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


#: A token at the end of Table 7's window, with the figures' own two heads.
WIDTH, WINDOW = 128, 128
TOKEN = Workload(WINDOW, 2, WIDTH // 2, phase="decode")
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


def steps(sublayer: str) -> list[dict[str, Any]]:
    """What one more token takes, step by step; a sum of any length is one cumulation.

    ``way`` are the steps on the longest way to a step and itself, ``chain`` their operations.
    """
    found: dict[str, dict[str, Any]] = {}
    for stage in definition(sublayer, TOKEN):
        cost = stage.cost
        taken = {
            "mult": cost.multiplications,
            "div": cost.divisions,
            "exp": cost.exponentials,
            "cum": cost.dot_outputs + cost.reduction_outputs,
        }
        waits = [name for name in WAITS_FOR.get(stage.name, ()) if name in found]
        last = max(waits[::-1], key=lambda name: len(found[name]["chain"]), default=None)
        way, chain = (found[last]["way"], found[last]["chain"]) if last else ([], [])
        kinds = [name for name, count in taken.items() if count]
        found[stage.name] = {
            "step": stage.name, "waits": waits, "cost": cost, "operations": ";".join(kinds),
            "way": [*way, stage.name], "chain": [*chain, *kinds],
        }  # fmt: skip
    return list(found.values())


def last_step(sublayer: str) -> dict[str, Any]:
    """The step that ends last: its chain is the critical path."""
    return max(steps(sublayer), key=lambda step: len(step["chain"]))


def critical_path(sublayer: str) -> str:
    """Its operations: ``mult;cum;div``."""
    return ";".join(last_step(sublayer)["chain"])


def length(path: str) -> int:
    """Its number of steps."""
    return len(path.split(";"))
