"""A function with its own backward pass, written as two plain functions."""

from collections.abc import Callable
from inspect import signature
from typing import Any

from attnprof.ops.tensor import Tensor


class Function:
    """A differentiable function of tensors, run by torch's autograd or by the counting tensors'.

    ``forward(*operands, [keep,] **settings)`` returns the result (or a tuple of results) and a
    tuple of the tensors (or None) saved for the backward pass; ``keep`` is False if there will be
    none. ``backward(saved, *grads, [needs,] **settings)`` returns a gradient, or None, for each
    operand; ``needs`` has a bool for each operand. Neither is itself differentiated. Operands are
    tensors or None, settings plain values.
    """

    def __init__(
        self,
        forward: Callable[..., tuple[Any, tuple[Any, ...]]],
        backward: Callable[..., tuple[Any, ...]],
    ) -> None:
        self.forward, self.backward = forward, backward
        self._takes_keep = "keep" in signature(forward).parameters
        self._takes_needs = "needs" in signature(backward).parameters

    def run(self, *operands: Any, keep: bool, **settings: Any) -> tuple[Any, tuple[Any, ...]]:
        """Run the forward pass; return its results and the tensors saved for the backward pass."""
        options = {"keep": keep} if self._takes_keep else {}
        return self.forward(*operands, **options, **settings)

    def run_back(
        self, saved: tuple[Any, ...], *grads: Any, needs: tuple[bool, ...], **settings: Any
    ) -> tuple[Any, ...]:
        """Run the backward pass; return a gradient for each operand."""
        options = {"needs": needs} if self._takes_needs else {}
        return self.backward(saved, *grads, **options, **settings)

    def __call__(self, *operands: Any, **settings: Any) -> Any:
        """Return the result of the forward pass, with the backward pass attached to it."""
        if any(isinstance(x, Tensor) for x in operands):
            return self._counted(operands, settings)
        from attnprof.ops.on_torch import apply

        return apply(self, operands, settings)

    def _counted(self, operands: tuple[Tensor | None, ...], settings: dict[str, Any]) -> Any:
        recording = [x for x in operands if x is not None and x.requires_grad]
        keep = bool(recording) and recording[0].counter.grad
        detached = [None if x is None else x.detach() for x in operands]
        results, kept = self.run(*detached, keep=keep, **settings)
        if keep:
            saved = tuple(None if x is None else x.detach() for x in kept)
            run = self.run_back
            needs = tuple(x is not None and x.requires_grad for x in operands)
            first, *others = results if isinstance(results, tuple) else (results,)
            first.attach(
                operands, lambda *grads: run(saved, *grads, needs=needs, **settings), *others
            )
        return results
