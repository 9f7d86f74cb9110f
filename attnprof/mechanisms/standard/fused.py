"""What torch's fused softmax attention executes: no N×N matrix ever leaves the kernel."""

from __future__ import annotations

from attnprof.costs import Cost, Number
from attnprof.counting.engine import Gradients, Tensor
from attnprof.counting.tape import SOFTMAX, Tape
from attnprof.workload import Workload

#: Backward, a score: scale, shift by the logsumexp and exp make the weight again; then
#: (grad - row sum) · weight · scale.
RECOMPUTED = Cost(multiplications=3, additions=2, exponentials=1)


def _products(macs: Number, outputs: Number) -> Cost:
    return Cost(multiplications=macs, additions=macs, matmul_flops=2 * macs, dot_outputs=outputs)


def fused_attention(
    tape: Tape, workload: Workload, q: Tensor, k: Tensor, v: Tensor, seen: Number
) -> Tensor:
    """One kernel over ``seen`` query-key pairs a head: q (b·h, n, d), k and v (b·g, m, d).

    It keeps its output and a logsumexp a row, of float32 at least. The scaling is one
    multiplication a score, softmax counts as if written out. Backward is one kernel of five
    products, the scores among them.
    """
    w = workload
    d, dv = w.head_dim, w.value_width
    scores = w.batch_size * w.num_heads * seen
    batch, n, _ = q.shape
    kept: list[Tensor] = []

    def backward(grad: Tensor) -> Gradients:
        cost = RECOMPUTED * scores + _products(scores * (3 * d + 2 * dv), 0)
        out = kept[0]
        cost = cost + Cost(multiplications=out.count, additions=out.count)
        name = "fused attention: grad"
        to_q = tape.emit(f"{name} q", q.shape, cost, [grad, q, k, v, *kept])
        to_k = tape.emit(f"{name} k", k.shape, Cost())
        to_v = tape.emit(f"{name} v", v.shape, Cost())
        return [(q, to_q), (k, to_k), (v, to_v)]

    cost = (SOFTMAX + Cost(multiplications=1)) * scores
    cost = cost + _products(scores * (d + dv), scores + batch * n * dv)
    out = tape.emit(
        "fused attention", (batch, n, dv), cost, [q, k, v], backward=backward, saves=[q, k, v]
    )
    row_size = tape.item_size if tape.item_size in (1, 8) else 4
    logsumexp = tape.emit("logsumexp", (batch, n), Cost(), item_size=row_size)
    if out.node:
        kept += [out, logsumexp]
        out.node.saved = (*out.node.saved, out, logsumexp)
        for tensor in kept:
            tensor.storage.holders += 1
    tape.free(logsumexp)
    return out
