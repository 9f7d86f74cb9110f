"""Bring a decoder's state to a token late in a sequence without running those before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn


def positioned(
    module: nn.Module,
    state: Any,
    tokens: int,
    rows: Callable[[], Sequence[Tensor]],
    after_each: Callable[[int], None] | None = None,
) -> Any:
    """The state after so many tokens, from a fresh one: shapes and counters as real steps leave.

    A state that has ``advance(tokens)``, or consists of caches, is filled at once with
    random rows; any other one by real steps on ``rows()``, ``after_each`` told how many are done.
    """
    parts = _advancing(state)
    if parts:
        for part in parts:
            part.advance(tokens)
        return state
    step: Any = module.step
    with torch.no_grad():
        for done in range(tokens):
            _, state = step(*rows(), state)
            if after_each:
                after_each(done + 1)
    return state


def _advancing(state: Any) -> list[Any]:
    """What advances at once: the state, or its caches if it holds nothing else; else nothing."""
    if hasattr(state, "advance"):
        return [state]
    if not is_dataclass(state):
        return []
    parts = [getattr(state, item.name) for item in fields(state)]
    return parts if all(hasattr(part, "advance") for part in parts) else []


class DecodingStep(nn.Module):
    """One step of a module from a state, as a module: ``forward(*rows)`` → (y, new state)."""

    def __init__(self, module: nn.Module, state: Any) -> None:
        super().__init__()
        self.module = module
        self.state = state

    def forward(self, *rows: Tensor) -> tuple[Tensor, Any]:
        """The token's rows, as the module's ``step`` takes them."""
        step: Any = self.module.step
        out: tuple[Tensor, Any] = step(*rows, self.state)
        return out
