"""A module's call as something to measure: a forward pass, or a step of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from attnprof.measure.subject import Subject
from attnprof.trace.run.runs import first_tensor, tensors_of


def subject_of(
    module: Any, positional: Sequence[Any], named: Mapping[str, Any], phase: str
) -> Subject:
    """Return a call as subject; in training the inputs of floating point get gradients, too."""
    weights = list(module.parameters()) if isinstance(module, nn.Module) else []
    if isinstance(module, nn.Module):
        module.train(phase != "forward")
    leaves = [x for x in tensors_of([*positional, *named.values()]) if x.is_floating_point()]
    leaves += weights

    def clear() -> None:
        for leaf in leaves:
            leaf.grad = None

    def forward() -> object:
        with torch.no_grad():
            return module(*positional, **named)

    if phase == "forward":
        return Subject(module, clear, clear, forward, leaves=leaves)
    for leaf in leaves:
        leaf.requires_grad_()
    ones = torch.ones_like(first_tensor(module(*positional, **named))).detach()

    def train() -> None:
        result = module(*positional, **named)  # held while the backward pass runs
        first_tensor(result).backward(ones)

    return Subject(module, clear, clear, train, leaves=leaves)
