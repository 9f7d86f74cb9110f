"""The kernels of recurrent mixers in the engine's view, as operations of torch.

One operation computes all rows of a prompt and the state after it, another one token, in place of
the state. On real tensors the texts of :mod:`attnprof.blocks.mixers` give their results, on tensors
without values they give shapes. Their costs are those of :mod:`attnprof.trace.rules.engine`.
"""

from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey, _PreserveDispatchKeyGuard
from torch._C import _dispatch_tls_set_dispatch_key_excluded as set_excluded

from attnprof.blocks.mixers import MIXERS


@torch.library.custom_op("attnprof::mixer", mutates_args=())
def mixer(
    kind: str, operands: list[Tensor], state: Tensor | None, rows: int, form: str, keeps: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows, the state after them, and memory of the states that a backward pass reads.

    ``kind`` is one of :data:`MIXERS`, ``form`` chunkwise (``rows`` tokens a chunk) or recurrent;
    ``state`` is the one before, zeros if None. ``keeps``: there is a backward pass.
    """
    like = operands[MIXERS[kind].like]
    wide = torch.promote_types(like.dtype, torch.float32)
    shape = MIXERS[kind].state(operands)
    end = like.new_zeros(shape, dtype=wide) if state is None else state.to(wide, copy=True)
    out = MIXERS[kind].text(*operands, end, rows=rows, form=form)
    kept = _kept(kind, operands, rows, keeps)
    return out.to(like.dtype).contiguous(), end.to(_state_format(kind, operands)), kept


@torch.library.custom_op("attnprof::mixer_step", mutates_args={"state"})
def mixer_step(kind: str, operands: list[Tensor], state: Tensor) -> Tensor:
    """Return the row of one token, which moves the state in place."""
    held = state.to(torch.promote_types(state.dtype, torch.float32))
    out: Tensor = MIXERS[kind].text(*operands, held, rows=1, form="recurrent")
    if held is not state:
        state.copy_(held)
    return out.to(operands[MIXERS[kind].like].dtype).contiguous()


@torch.library.custom_op("attnprof::mixer_backward", mutates_args=())
def mixer_backward(
    grad_out: Tensor, kind: str, operands: list[Tensor],
    states: Tensor,  # noqa: ARG001 - read by a kernel, and made again here
    rows: int, form: str, needs: list[bool],
) -> list[Tensor]:  # fmt: skip
    """Return the gradients of operands that need one, an empty tensor for others."""
    with _PreserveDispatchKeyGuard(), torch.enable_grad():
        set_excluded(DispatchKey.AutogradFunctionality, False)
        leaves = [x.detach().requires_grad_(need) for x, need in zip(operands, needs, strict=True)]
        like = leaves[MIXERS[kind].like]
        wide = torch.promote_types(like.dtype, torch.float32)
        state = like.new_zeros(MIXERS[kind].state(leaves), dtype=wide)
        out = MIXERS[kind].text(*leaves, state, rows=rows, form=form)
        asked = [x for x in leaves if x.requires_grad]
        grads = iter(torch.autograd.grad(out, asked, grad_out.to(out.dtype)))
    return [
        next(grads).contiguous() if need else x.new_empty(0)
        for x, need in zip(operands, needs, strict=True)
    ]


def _state_format(kind: str, operands: list[Tensor]) -> Any:
    """Return the number format of a state: that of values in lightning attention, else wide."""
    like = operands[MIXERS[kind].like].dtype
    return like if kind == "lightning" else torch.promote_types(like, torch.float32)


def _kept(kind: str, operands: list[Tensor], rows: int, keeps: bool) -> Tensor:
    """Return memory for a wide state at the start of each chunk; none if not kept."""
    like = operands[MIXERS[kind].like]
    wide = torch.promote_types(like.dtype, torch.float32)
    shape = -(-MIXERS[kind].length(operands) // rows), *MIXERS[kind].state(operands)
    return like.new_empty(shape if keeps else (0,), dtype=wide)


def _rows(kind: str, operands: list[Tensor]) -> Tensor:
    like = operands[MIXERS[kind].like]
    return like.new_empty(like.shape)


@mixer.register_fake
def _(kind: Any, operands: Any, _state: Any, rows: Any, _form: Any, keeps: Any) -> Any:
    like = operands[MIXERS[kind].like]
    end = like.new_empty(MIXERS[kind].state(operands), dtype=_state_format(kind, operands))
    return _rows(kind, operands), end, _kept(kind, operands, rows, keeps)


@mixer_step.register_fake
def _(kind: Any, operands: Any, _: Any) -> Any:
    return _rows(kind, operands)


@mixer_backward.register_fake
def _(_grad: Any, _kind: Any, operands: Any, *rest: Any) -> Any:
    needs = rest[-1]
    return [x.new_empty(x.shape if need else (0,)) for x, need in zip(operands, needs, strict=True)]


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.kind, operands, _, ctx.rows, ctx.form, _ = inputs
    ctx.save_for_backward(*operands, output[2])
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grad_out: Any, _end: Any, _states: Any) -> Any:
    *operands, states = ctx.saved_tensors
    needs = list(ctx.needs_input_grad[1])
    grads = mixer_backward(grad_out, ctx.kind, operands, states, ctx.rows, ctx.form, needs)
    given = [grad if need else None for grad, need in zip(grads, needs, strict=True)]
    return None, given, None, None, None, None


mixer.register_autograd(_gradients, setup_context=_keep)
