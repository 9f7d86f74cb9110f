"""Run a :class:`attnprof.ops.function.Function` on torch's autograd."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, clone
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from attnprof.ops.function import Function


#: Whether torch's compiler, as that of 2.11, loses the gradient of results that were written to.
_LOSES_WRITTEN = torch.__version__ < (2, 13)  # type: ignore[operator]  # of its own versions


class OwnBackward(torch.autograd.Function):
    """A function as torch's autograd runs it."""

    @staticmethod
    def forward(ctx: Any, function: "Function", settings: dict[str, Any], *operands: Any) -> Any:
        """Return the function's results."""
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
        """Return a gradient for each operand."""
        run, needs = ctx.function.run_back, ctx.needs_input_grad[2:]
        if all(grad is None for grad in grads):  # nothing came of its results
            return None, None, *(None for _ in needs)
        return None, None, *run(ctx.saved_tensors, *grads, needs=needs, **ctx.settings)


def apply(function: "Function", operands: tuple[Any, ...], settings: dict[str, Any]) -> Any:
    """Return the function's result; where autocast is on, of operands in its number format.

    Inside a function with its own backward pass autocast would cast some operands and not the
    places they are written to, so it is off there.
    """
    tensors = [x for x in operands if isinstance(x, Tensor)]
    wanted = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    if torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]  # torch's own
        wanted = False  # a tracer sees operations, whoever wants gradients
    device = tensors[0].device.type
    # the compiler of torch 2.11 cannot ask; only tensors without data have none
    has_autocast = torch.compiler.is_compiling() or torch.amp.is_autocast_available(device)
    if not has_autocast or not torch.is_autocast_enabled(device):
        return _run(function, operands, settings, wanted)
    chosen = torch.get_autocast_dtype(device)
    cast = tuple(x.to(chosen) if isinstance(x, Tensor) else x for x in operands)
    with torch.autocast(device, enabled=False):
        return _run(function, cast, settings, wanted)


def _run(
    function: "Function", operands: tuple[Any, ...], settings: dict[str, Any], wanted: bool
) -> Any:
    if wanted:
        return OwnBackward.apply(function, settings, *operands)  # type: ignore[no-untyped-call]  # torch
    with torch.no_grad():
        return function.run(*operands, keep=False, **settings)[0]
