"""The Python interface; every heavy import happens inside a function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnprof import registry
from attnprof.costs import CostTable
from attnprof.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor, nn


def build(
    name: str,
    d_model: int,
    num_heads: int,
    seq_len: int | None = None,
    *,
    num_kv_heads: int | None = None,
    value_head_dim: int | None = None,
    **params: Any,
) -> nn.Module:
    """A mechanism as a torch layer with ``forward(x, causal=False)`` on (batch, tokens, d_model).

    Parameters are those of ``attnprof list``. Weights come from torch's generator: seed it for
    repeatable ones. Raises :class:`attnprof.errors.RequestError` for what cannot be built.
    """
    from attnprof.blocks.assemble import build_layer, checked_sizes

    spec = registry.get(name, **params)
    sizes = checked_sizes(spec, d_model, num_heads, seq_len, num_kv_heads, value_head_dim)
    return build_layer(spec, registry.module_of(name), sizes)


def attend(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    seed: int = 0,
    weights: dict[str, Tensor] | None = None,
    **params: Any,
) -> Tensor:
    """A mechanism's core, without projections: (batch, heads, tokens, head_dim) in and out.

    ``weights`` replaces the core's own parameters by name; others are drawn with ``seed``.
    """
    from attnprof.blocks.assemble import attend_core

    spec = registry.get(name, **params)
    return attend_core(spec, registry.module_of(name), q, k, v, causal, seed, weights)


def cost(name: str, workload: Workload, scope: str = "layer", **params: Any) -> CostTable:
    """The closed form of a mechanism for a workload, by stage: numbers, or sympy expressions."""
    return registry.get(name, **params).cost(workload, scope)
