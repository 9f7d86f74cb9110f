"""What torch's fused softmax attention executes: no N×N matrix ever leaves the kernel."""

from __future__ import annotations

from attnprof.costs import Cost, exact_div
from attnprof.ops.counter import variable
from attnprof.ops.groups import Shape
from attnprof.ops.layout import Layout
from attnprof.ops.pointwise import SOFTMAX
from attnprof.ops.products import dots
from attnprof.ops.tensor import Tensor

#: Backward, a score: scale, shift by the logsumexp and exp make the weight again; then
#: (grad - row sum) · weight · scale.
RECOMPUTED = Cost(multiplications=3, additions=2, exponentials=1)


def fused_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """One kernel: q (b, h, n, d), k (b, g, m, d), v (b, g, m, dv) → (b, h, n, dv).

    It keeps its output and a logsumexp a row, of float32 at least. The scaling is one
    multiplication a score, softmax counts as if written out. Backward is one kernel of five
    products, the scores among them. Results lie with the heads of a token side by side.
    """
    name = variable("fused attention")
    b, h, n, d = q.shape
    dv = v.shape[3]
    rows = b * h
    scores = rows * (exact_div(n * (n + 1), 2) if causal else n * k.shape[2])
    needs = any(tensor.requires_grad for tensor in (q, k, v))
    saved = [tensor.detach() for tensor in (q, k, v)] if needs and q.counter.grad else []

    def backward(grad: Tensor) -> list[Tensor | None]:
        out = saved[3]
        cost = RECOMPUTED * scores + dots(0, scores * (3 * d + 2 * dv))
        cost = cost + Cost(multiplications=out.count, additions=out.count)
        reads = [[grad, *saved], [], []]
        costs = [cost, Cost(), Cost()]
        of = zip("qkv", saved[:3], costs, reads, strict=False)
        return [
            grad.result(f"{name}: grad {letter}", x.shape, cost, read, layout=_by_token(x.shape))
            for letter, x, cost, read in of
        ]

    cost = (SOFTMAX + Cost(multiplications=1)) * scores
    cost = cost + dots(scores + rows * n * dv, scores * (d + dv))
    shape = (b, h, n, dv)
    out = q.result(name, shape, cost, [q, k, v], backward=backward, layout=_by_token(shape))
    size = q.item_size if q.item_size in (1, 8) else 4
    logsumexp = q.result(f"{name}: logsumexp", (b, h, n), Cost(), [], item_size=size)
    if saved:
        saved.extend([out.detach(), logsumexp])
    return out


def _by_token(shape: Shape) -> Layout:
    """The layout of (b, h, n, d) where a token's heads lie side by side."""
    b, h, n, d = shape
    return Layout.rows((b, n, h, d)).permuted((0, 2, 1, 3))
