"""Recurrent mixers of a model as engines run them: one kernel in chunks, or one step of a token.

Transformers' files define a fallback in Python for each kernel that engines have: loops over chunks
or tokens, by the same names in every file. While a model runs, :func:`as_kernels` puts operations
of ours in their place, which compute by the texts of :mod:`attnprof.blocks.mixers` and are counted
by them, too (:mod:`attnprof.trace.rules.engine`). Lightning attention has its loop in the module
itself, which :func:`fuse_lightning` replaces.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial, wraps
from math import inf
from typing import Any
from unittest.mock import patch

from attnprof.mechanisms.delta import GatedDeltaNet, KimiDelta
from attnprof.ops.functional import silu, softplus

#: Tokens from one kept state to the next: of a scan, which has no chunks.
_SCAN_ROWS = 256


def fallbacks(model: Any) -> dict[str, list[str]]:
    """Return the fallbacks that files of a model's modules define, by the file's module."""
    files = {type(x).__module__ for x in model.modules()}
    defined = {name: [*filter(vars(sys.modules[name]).__contains__, KERNELS)] for name in files}
    return {name: names for name, names in sorted(defined.items()) if names}


def runs_kernels(module: Any, code: str) -> bool:
    """Return whether a module, with the ``code`` of its class, mixes rows by one of our kernels."""
    return is_lightning(module) or any(f"{name}(" in code for name in KERNELS)


def is_lightning(module: Any) -> bool:
    """Return whether a module is lightning attention, recognised by its attributes."""
    names = ("slope_rate", "block_size", "qkv_proj", "output_gate", "out_proj", "norm", "act_fn")
    return all(hasattr(module, name) for name in names)


@contextmanager
def as_kernels(files: dict[str, list[str]], form: str) -> Iterator[None]:
    """Put kernels in the place of fallbacks; ``form`` is ``chunkwise`` or ``recurrent``."""
    with ExitStack() as stack:
        for name, names in files.items():
            space = vars(sys.modules[name])
            kernels = {one: partial(KERNELS[one], form) for one in names}
            stack.enter_context(patch.dict(space, kernels))
        yield


def _mix(
    kind: str, form: str, rows: int, state: Any, operands: Sequence[Any], *, keeps_end: bool
) -> tuple[Any, Any]:
    """Return a mixer's rows, and the state after them if it is kept.

    One token after others updates the state in place.
    """
    import torch

    from attnprof.blocks.mixers import MIXERS
    from attnprof.models import engine_kernels as kernel

    count = MIXERS[kind].length(operands)
    if state is not None and isinstance(count, int) and count == 1:
        return kernel.mixer_step(kind, list(operands), state), state
    keeps = torch.is_grad_enabled() and any(x.requires_grad for x in operands)
    out, end, _ = kernel.mixer(kind, list(operands), state, rows, form, keeps)
    return out, end if keeps_end else None


def _delta(
    form: str, query: Any, key: Any, value: Any, g: Any, beta: Any, chunk_size: int = 0,
    initial_state: Any = None, output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False, **_: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Compute the gated delta rule; (b, n, h, d) each."""
    by_channel = g.dim() == value.dim()
    rows = KimiDelta().chunk if by_channel else chunk_size or GatedDeltaNet().chunk
    kind = "unit delta" if use_qk_l2norm_in_kernel else "delta"
    operands = query, key, value, g, beta
    return _mix(kind, form, rows, initial_state, operands, keeps_end=output_final_state)


def _state_space(  # noqa: PLR0917 - as transformers calls it
    form: str, hidden_states: Any, dt: Any, A: Any, B: Any, C: Any, chunk_size: int, D: Any,
    dt_bias: Any = None, initial_states: Any = None, dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, inf), return_final_states: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """Compute Mamba-2 on (b, n, h, p)."""
    steps = _steps(dt, dt_bias, dt_softplus)
    if dt_limit[0] > 0 or dt_limit[1] < inf:
        steps = steps.clamp(*dt_limit)
    operands = hidden_states, steps, A, B, C, D
    out, end = _mix("mamba2", form, chunk_size, initial_states, operands, keeps_end=True)
    return (out, end) if return_final_states else out


def _steps(dt: Any, bias: Any, positive: bool) -> Any:
    """Return a scan's step sizes, in float32: biased, and by softplus if they must be positive."""
    steps = dt.float() if bias is None else dt.float() + bias
    return softplus(steps) if positive else steps


def _state_space_step(
    _form: str, state: Any, hidden_states: Any, dt: Any, A: Any, B: Any, C: Any, D: Any,
    dt_bias: Any = None, dt_softplus: bool = False, z: Any = None, **_: Any,
) -> Any:  # fmt: skip
    """Compute a token of Mamba-2 on (b, h, p), whose gates are stretched over each head."""
    steps = _steps(dt[..., 0], None if dt_bias is None else dt_bias[:, 0], dt_softplus)
    x, steps, b, c = (rows[:, None] for rows in (hidden_states, steps, B, C))
    operands = x, steps, A[:, 0, 0], b, c, D[:, 0]
    out = _mix("mamba2", "", 1, state, operands, keeps_end=True)[0][:, 0]
    return out if z is None else out * silu(z)


def _selective(
    form: str, hidden_states: Any, dt: Any, A: Any, B: Any, C: Any, D: Any, z: Any,
    delta_bias: Any, return_last_state: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """Compute Mamba-1's scan on (b, d, n)."""
    operands = hidden_states, dt, A, B, C, D, delta_bias, z
    out, end = _mix("mamba", form, _SCAN_ROWS, None, operands, keeps_end=True)
    return (out, end) if return_last_state else out


def _selective_step(
    _form: str, state: Any, hidden_states: Any, dt: Any, A: Any, B: Any, C: Any, D: Any,
    dt_bias: Any, z: Any, **_: Any,
) -> Any:  # fmt: skip
    """Compute a token of Mamba-1 on (b, d)."""
    x, steps, b, c, gate = (rows[..., None] for rows in (hidden_states, dt, B, C, z))
    operands = x, steps, A, b, c, D, dt_bias, gate
    return _mix("mamba", "", 1, state, operands, keeps_end=True)[0][..., 0]


#: Kernels by the name of transformers' fallback that they replace: each gets a prompt's form, and
#: the call's arguments.
KERNELS: dict[str, Callable[..., Any]] = {
    "torch_chunk_gated_delta_rule": _delta,
    "torch_recurrent_gated_delta_rule": _delta,
    "chunk_kimi_delta_attention": _delta,
    "recurrent_kimi_delta_attention": _delta,
    "mamba2_chunk_scan": _state_space,
    "mamba2_selective_state_update": _state_space_step,
    "mamba_selective_scan": _selective,
    "mamba_selective_state_update": _selective_step,
}


def fuse_lightning(model: Any, form: str) -> None:
    """Make lightning attention of a model run as one kernel."""
    for module in filter(is_lightning, model.modules()):
        kind: Any = type(module)
        module.__class__ = _fused(kind, form)


@cache
def _fused(kind: Any, form: str) -> Any:
    """Return a class of the same name that runs as one kernel, also in copies of a module."""

    @wraps(kind, updated=())
    class Fused(kind):  # type: ignore[misc]
        @wraps(kind.forward)
        def forward(
            self, hidden_states: Any, position_embeddings: Any = None, attention_mask: Any = None,
            past_key_values: Any = None, *, cache: Any = None, **how: Any,
        ) -> Any:  # fmt: skip
            cache = past_key_values if cache is None else cache  # by the version of transformers
            if attention_mask is not None:  # padding, which kernels leave out
                return super().forward(
                    hidden_states, position_embeddings, attention_mask, cache, **how
                )
            b, n, _ = hidden_states.shape
            h, d = self.num_attention_heads, self.head_dim
            rows = self.act_fn(self.qkv_proj(hidden_states)).view(b, n, h, 3 * d)
            state = None if cache is None else cache.get_linear_cache(self.layer_idx)
            operands = *rows.split(d, dim=3), self.slope_rate.view(h)
            out, end = _mix("lightning", form, self.block_size, state, operands, keeps_end=True)
            out = self.norm(out.reshape(b, n, h * d))
            out = self.out_proj(self.output_gate(hidden_states).sigmoid() * out)
            if cache is not None:
                cache.set_linear_cache(self.layer_idx, end)
            return out, end

    return Fused


def recurrence_note(model: Any, classes: Sequence[str], view: str) -> str:
    """Return how recurrent layers of a model, of these classes, are counted in a view; or ""."""
    if not classes:
        return ""
    verb, its = ("are", "their") if len(classes) > 1 else ("is", "its")
    scans = any("mamba_selective_scan" in names for names in fallbacks(model).values())
    prompt = "step by step" if view == "definition" else "token by token" if scans else "in chunks"
    return (
        f"{', '.join(classes)} {verb} counted as {its} kernel runs: a prompt {prompt}, a decoded "
        f"token in one step; {its} fallback in transformers' Python is counted by --as torch"
    )
