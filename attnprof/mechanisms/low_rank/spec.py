"""Low-rank factorised scores (003: S is approximated by U Vᵀ directly)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attnprof.costs import Cost
from attnprof.counting.definition import Definition
from attnprof.counting.engine import Tensor
from attnprof.counting.tape import Tape
from attnprof.errors import RequestError
from attnprof.mechanism import Abilities, Mechanism
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
    time_order: ClassVar[str] = "N"
    memory_order: ClassVar[str] = "N"
    abilities: ClassVar[Abilities] = Abilities(causal=False, decode=False, cross=True)
    transposes_keys: ClassVar[bool] = False
    reasons: ClassVar[dict[str, str]] = {
        "causal": "normalises its key factor over all tokens, so a row would see later ones; "
        "leave --causal out",
        "decode": "normalises over a whole sequence and has no step; use --phase forward",
    }

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise RequestError(f"rank={self.rank}: at least 1, for example rank=64")

    def core(self, tape: Tape, workload: Workload, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The key factor meets the values first: no stage is larger than N × rank."""
        a = tape.parameter(1, workload.head_dim, self.rank)
        b = tape.parameter(1, workload.head_dim, self.rank)
        key_factor = self.factor(tape, "key factor", k, b)
        context = tape.bmm("context", key_factor, v, ta=True)
        tape.free(key_factor)
        query_factor = self.factor(tape, "query factor", q, a)
        out = tape.bmm("weighted context", query_factor, context)
        tape.free(query_factor, context)
        return out

    def factor(self, tape: Tape, name: str, x: Tensor, weight: Tensor) -> Tensor:
        """softmax(x W / sqrt d), (batch, n, rank)."""
        stretched = tape.expand(f"{name} map", weight, x.shape[0])
        scores = tape.bmm(f"{name} scores", x, stretched)
        tape.free(stretched)
        scores = tape.scale(f"{name} scaling", scores, divide=True, inplace=True)
        out = tape.softmax(f"{name} softmax", scores)
        tape.free(scores)
        return out

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Both factors, the values under V, the rows under U."""
        w, r = workload, self.rank
        heads = w.batch_size * w.num_heads
        for name, n, sums in (("key", w.keys, r), ("query", w.seq_len, w.seq_len)):
            entries = heads * n * r
            writer.dots(f"{name} factor", entries, entries * w.head_dim)
            writer.stage(f"{name} scaling", Cost(divisions=entries), entries)
            writer.stage(f"{name} exponentials", Cost(exponentials=entries), entries)
            writer.sums(f"{name} sums", heads * sums, entries)
            writer.stage(f"{name} normalisation", Cost(divisions=entries), entries)
        context, rows = heads * r * w.head_dim, heads * w.seq_len * w.head_dim
        writer.dots("context", context, context * w.keys)
        writer.dots("weighted context", rows, rows * r)


MECHANISMS = (LowRank,)
