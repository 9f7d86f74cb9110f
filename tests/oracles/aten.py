"""What torch dispatches, counted by attnprof's own recorder and rules, which know no mechanism.

Independent of closed forms and of counting tensors, not of ``derive``: recorder and rules stand on
tests of their own (``tests/trace/test_rules_*.py`` by hand, ``test_in_place.py`` and
``test_workspaces.py`` by torch's allocator). Real and fake tensors both work. An
operation that is not counted is in ``Counts.unknown``; a test that finds one there must fail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from attnprof.trace.events import KINDS, Call
from attnprof.trace.run.recorder import Recorder

__all__ = [
    "KINDS", "Counts", "OperationCounter", "count", "count_core", "count_layer", "count_training",
]  # fmt: skip


@dataclass(frozen=True)
class Counts:
    """What was executed, in the fields of ``attnprof.costs.Cost`` that an operation can show."""

    calls: tuple[Call, ...]

    @property
    def unknown(self) -> set[str]:
        return {call.uncounted for call in self.calls if call.uncounted}

    @property
    def bytes_moved(self) -> int:
        return sum(call.bytes_moved for call in self.calls)

    @property
    def flops(self) -> int:
        return sum(count for kind, count in self.by_kind().items() if kind != "matmul_flops")

    def by_kind(self) -> dict[str, int]:
        totals = dict.fromkeys(KINDS, 0)
        for call in self.calls:
            for kind in totals.keys() & call.counts.keys():
                totals[kind] += call.counts[kind]
        return totals

    def __getattr__(self, name: str) -> int:
        if name in KINDS:
            return self.by_kind()[name]
        raise AttributeError(name)


class OperationCounter(Recorder):
    """Counts every ATen operation that runs inside it."""

    @property
    def result(self) -> Counts:
        return Counts(tuple(self.trace.calls))


def count(run: Callable[[], Any]) -> Counts:
    """What a call executes."""
    with OperationCounter() as counter:
        run()
    return counter.result


def count_layer(layer: torch.nn.Module, x: torch.Tensor, phase: str, **options: Any) -> Counts:
    """Counts of a layer on x: ``forward``, ``backward`` or ``train``, gradients not yet filled."""
    return count_core(layer, (x,), phase, **options)


def count_core(
    module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], phase: str, **options: Any
) -> Counts:
    """The same for a module of several inputs, which all need a gradient."""
    if phase == "forward":
        with torch.no_grad():
            return count(lambda: module(*inputs, **options))
    return count_training(module, inputs, **options)[phase]


def count_training(
    module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], **options: Any
) -> dict[str, Counts]:
    """Phases ``backward`` and ``train`` of one run."""
    module.zero_grad(set_to_none=True)
    leaves = [x.detach().requires_grad_() for x in inputs]
    counter = OperationCounter()
    with counter:
        y = module(*leaves, **options)
    ones = torch.ones_like(y)
    counter.part = "backward"
    with counter:
        y.backward(ones)
    trace = counter.trace
    return {phase: Counts(tuple(trace.part(phase))) for phase in ("backward", "train")}
