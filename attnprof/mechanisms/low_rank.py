"""Low-rank factorised scores (003: S is approximated by U Vᵀ directly)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof.mechanism import Abilities, Mechanism
from attnprof.ops.functional import square_root
from attnprof.ops.layer import Definition, LayerSizes, Weight, flat
from attnprof.workload import Workload


@dataclass(frozen=True, kw_only=True)
class LowRank(Mechanism):
    """Weights U Vᵀ of rank ``rank``: U from queries, V from keys, each normalised by softmax.

    U = softmax(Q A / sqrt d) over the rank, V = softmax(K B / sqrt d) over the tokens; both factors
    are positive, every row of U and every column of V sums to one, so every row of U Vᵀ does.
    The maps A, B (d, rank) are learned and shared by heads. The document gives no normalisation:
    this one needs no N×N matrix and keeps the weights a distribution.
    """

    rank: int = 64

    name: ClassVar[str] = "low-rank"
    title: ClassVar[str] = "Low-rank factorised attention"
    document: ClassVar[str] = "003"
    family: ClassVar[str] = "low-rank"
    allowed: ClassVar[dict[str, Any]] = {"rank": 1}
    tuned = ("rank",)
    not_split: ClassVar[str] = (
        "normalises its key factor over all tokens, whose sums ranks add up: no ring, no state"
    )
    to_softmax = (
        "untrained", "its maps are learned: the distance is that of maps as they start",
    )  # fmt: skip
    time_order = memory_order = "N"
    abilities: ClassVar[Abilities] = Abilities(causal=False, decode=False, cross=True)
    reasons: ClassVar[dict[str, str]] = {
        "causal": "normalises its key factor over all tokens, so a row would see later ones; "
        "leave --causal out",
        "decode": "normalises over a whole sequence and has no step; use --phase forward",
    }

    def core_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """Scores of unit variance for queries of unit variance, once divided by sqrt d."""
        weight = Weight((sizes.head_dim, self.rank), "normal")
        return {"query_map": weight, "key_map": weight}

    def core(self, q: Any, k: Any, v: Any, weights: Any) -> Any:
        """The key factor meets the values first: no stage is larger than N × rank."""
        key_factor = _factor(flat(k), weights.key_map, over=1)
        context = key_factor.transpose(1, 2).bmm(flat(v))
        del key_factor
        query_factor = _factor(flat(q), weights.query_map, over=2)
        return query_factor.bmm(context).view(*q.shape[:3], -1)

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Both factors, the values under V, the rows under U."""
        w, r = workload, self.rank
        heads = w.batch_size * w.num_heads
        for name, n, sums in (("key", w.keys, r), ("query", w.seq_len, w.seq_len)):
            entries = heads * n * r
            writer.dots(f"{name} factor", entries, entries * w.head_dim)
            writer.softmax(entries, heads * sums, of=f"{name} ", sums="sums")
        context, rows = heads * r * w.head_dim, heads * w.seq_len * w.head_dim
        writer.dots("context", context, context * w.keys)
        writer.dots("weighted context", rows, rows * r)


def _factor(x: Any, weight: Any, over: int) -> Any:
    """softmax(x W / sqrt d) along the axis ``over``: (b·h, n, d) → (b·h, n, rank)."""
    stretched = weight.unsqueeze(0).expand(x.shape[0], -1, -1)
    scores = x.bmm(stretched).div_(square_root(x.shape[-1]))
    return scores.softmax(over)


MECHANISMS = (LowRank,)
