"""Run a :class:`attnprof.ops.function.Function` on torch's autograd: :func:`apply`."""

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, clone
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from attnprof.ops.function import Function


#: Whether torch.compile loses gradients of results that were written in place: before torch 2.13.
_LOSES_WRITTEN = torch.__version__ < (2, 13)  # type: ignore[operator]  # of its own versions


class OwnBackward(torch.autograd.Function):
    """A :class:`Function` as torch's autograd runs it."""

    @staticmethod
    def forward(ctx: Any, function: "Function", settings: dict[str, Any], *operands: Any) -> Any:
        """Return the results; save what the function's backward pass needs."""
        results, saved = function.run(*operands, keep=True, **settings)
        ctx.function, ctx.settings = function, settings
        ctx.save_for_backward(*saved)
        if isinstance(results, tuple) and not all(x.is_floating_point() for x in results):
            ctx.set_materialize_grads(False)  # whole numbers get no zeros for a gradient
        if _LOSES_WRITTEN and torch.compiler.is_compiling():
            return tuple(map(clone, results)) if isinstance(results, tuple) else clone(results)
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return a gradient for each operand, and None for the function and its settings."""
        run, needs = ctx.function.run_back, ctx.needs_input_grad[2:]
        if all(grad is None for grad in grads):  # no result was used
            return None, None, *(None for _ in needs)
        return None, None, *run(ctx.saved_tensors, *grads, needs=needs, **ctx.settings)


def apply(function: "Function", operands: tuple[Any, ...], settings: dict[str, Any]) -> Any:
    """Return the function's result, differentiable if an operand requires a gradient.

    Where autocast is on, operands are cast first and it is off inside: it would cast operands of
    single operations, but not the tensors that they write to.
    """
    tensors = [x for x in operands if isinstance(x, Tensor)]
    needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    if torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]  # torch's own
        needs_grad = False  # the tracer has to see single operations
    device = tensors[0].device.type
    autocast_off: Any = nullcontext()
    # torch.compile of 2.11 cannot trace the question; meta tensors have no autocast
    has_autocast = torch.compiler.is_compiling() or torch.amp.is_autocast_available(device)
    if has_autocast and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        operands = tuple(x.to(dtype) if isinstance(x, Tensor) else x for x in operands)
        autocast_off = torch.autocast(device, enabled=False)
    with autocast_off:
        if needs_grad:
            return OwnBackward.apply(function, settings, *operands)  # type: ignore[no-untyped-call]  # torch
        with torch.no_grad():
            return function.run(*operands, keep=False, **settings)[0]
