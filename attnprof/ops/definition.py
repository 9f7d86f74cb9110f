"""Operations of a definition: direct sums, k-1 additions a dot product, no implementation."""

from __future__ import annotations

from dataclasses import dataclass, field

from attnprof.costs import Cost, Number, Stage
from attnprof.workload import Workload


@dataclass
class Definition:
    """Stages written by a mechanism's ``define`` methods; no memory, no bytes."""

    stages: list[Stage] = field(default_factory=list)

    def stage(self, name: str, cost: Cost, *shape: Number) -> None:
        """Any count, with the shape of its result."""
        self.stages.append(Stage(name, shape, cost))

    def dots(self, name: str, outputs: Number, terms: Number, *shape: Number) -> None:
        """``terms`` products in all, summed to ``outputs`` results (``terms`` ≥ ``outputs``)."""
        cost = Cost(
            multiplications=terms, additions=terms, matmul_flops=2 * terms, dot_outputs=outputs
        )
        self.stage(name, cost, *(shape or (outputs,)))

    def sums(self, name: str, outputs: Number, terms: Number) -> None:
        """``terms`` values summed to ``outputs`` results."""
        self.stage(name, Cost(additions=terms, reduction_outputs=outputs), outputs)

    def softmax(
        self, scores: Number, outputs: Number, *, of: str = "", sums: str = "row sums"
    ) -> None:
        """Scaling by a division, exp, sums, division; stages are those ``of`` something."""
        self.stage(f"{of}scaling", Cost(divisions=scores), scores)
        self.stage(f"{of}exponentials", Cost(exponentials=scores), scores)
        self.sums(f"{of}{sums}", outputs, scores)
        self.stage(f"{of}normalisation", Cost(divisions=scores), scores)

    def projections(self, which: str, workload: Workload) -> None:
        """The linear maps named by ``which``, one letter each of q, k, v, o; no bias."""
        w = workload
        tokens = w.batch_size * (1 if w.phase == "decode" else w.seq_len)
        keys = w.batch_size * (1 if w.phase == "decode" else w.keys)
        values = w.kv_heads * w.value_width
        sizes = {
            "q": ("queries", tokens, w.d_model, w.d_model),
            "k": ("keys", keys, w.d_model, w.kv_heads * w.head_dim),
            "v": ("values", keys, w.d_model, values),
            "o": ("output", tokens, w.num_heads * w.value_width, w.d_model),
        }
        for letter in which:
            name, count, inner, outer = sizes[letter]
            self.dots(name, count * outer, count * inner * outer, count, outer)

    def softmax_attention(self, workload: Workload, pairs: Number, rows: Number) -> None:
        """Scores, scaling by a division, softmax (exp, sum, division), values: 002, Eq 10-17."""
        w = workload
        heads = w.batch_size * w.num_heads
        scores, outputs = heads * pairs, heads * rows * w.value_width
        self.dots("scores", scores, scores * w.head_dim)
        self.softmax(scores, heads * rows)
        self.dots("weighted values", outputs, scores * w.value_width)
