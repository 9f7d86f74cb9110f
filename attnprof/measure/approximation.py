"""How far a mechanism's output is from softmax attention's, on the same q, k and v."""

from __future__ import annotations

from attnprof.errors import RequestError
from attnprof.measure.modules import UserModule
from attnprof.measure.request import PointRequest

#: Tokens at most: the distance hardly depends on more, the N×N scores of the comparison do.
TOKENS = 1024


def distance_from_standard(request: PointRequest) -> float | None:
    """‖y - y₀‖ / ‖y₀‖ of the core against ``standard``'s, float64, normal random q, k and v.

    None where there is nothing to compare: a module of somebody's own, a mechanism without
    queries and keys, or one that cannot be built at this shape.
    """
    import torch

    from attnprof.blocks.assemble import attend_core
    from attnprof.registry import get, module_of

    spec = request.spec
    if isinstance(spec, UserModule) or not spec.abilities.attend:
        return None
    shape = (1, request.num_heads, min(TOKENS, request.seq_len), request.head_dim)
    generator = torch.Generator().manual_seed(request.seed)
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3))
    with torch.no_grad():
        exact = attend_core(
            get("standard"), module_of("standard"), q, k, v, request.causal, 0, None
        )
        try:
            own = attend_core(
                spec, module_of(request.mechanism), q, k, v, request.causal, request.seed, None
            )
        except RequestError:
            return None
    return float((own - exact).norm() / exact.norm())
