"""Linformer (003: low-rank family; Linformer(N_max, L, d_k) in its listing)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attnprof.counting.definition import Definition
from attnprof.counting.engine import Tensor
from attnprof.counting.layer import projected
from attnprof.counting.tape import Tape
from attnprof.errors import RequestError
from attnprof.mechanism import Abilities, Mechanism, rows
from attnprof.mechanisms.standard.spec import weighted_values
from attnprof.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Linformer(Mechanism):
    """softmax(Q (E K)ᵀ / sqrt d) F V with E, F (proj_len, N_max) learned.

    ``shared`` uses one map for keys and values. Without bias the layer compresses its input
    before it projects: (E X) W is E (X W), at proj_len instead of N rows.
    """

    proj_len: int = 256
    shared: bool = False

    name: ClassVar[str] = "linformer"
    title: ClassVar[str] = "Linformer"
    document: ClassVar[str] = "003"
    family: ClassVar[str] = "low-rank"
    time_order: ClassVar[str] = "N"
    memory_order: ClassVar[str] = "N"
    abilities: ClassVar[Abilities] = Abilities(causal=False, decode=False, needs_seq_len=True)
    reasons: ClassVar[dict[str, str]] = {
        "causal": "mixes all tokens into each compressed key, so a row would see later tokens; "
        "leave --causal out",
        "decode": "compresses a whole sequence at once and has no step; use --phase forward",
    }

    def __post_init__(self) -> None:
        if self.proj_len < 1:
            raise RequestError(f"proj_len={self.proj_len}: at least 1, for example proj_len=256")

    def maps(self, tape: Tape, workload: Workload) -> tuple[Tensor, Tensor]:
        """E and F as (1, proj_len, N) parameters; the same one if shared."""
        e = tape.parameter(1, self.proj_len, workload.seq_len)
        return e, e if self.shared else tape.parameter(1, self.proj_len, workload.seq_len)

    def compressed(self, tape: Tape, name: str, e: Tensor, x: Tensor) -> Tensor:
        """E x: (batch, n, width) to (batch, proj_len, width)."""
        stretched = tape.expand(f"{name} map", e, x.shape[0])
        out = tape.bmm(f"compress {name}", stretched, x)
        tape.free(stretched)
        return out

    def core(self, tape: Tape, workload: Workload, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Compression of k and v, then softmax attention over proj_len tokens."""
        e, f = self.maps(tape, workload)
        k, v = self.compressed(tape, "keys", e, k), self.compressed(tape, "values", f, v)
        out = weighted_values(tape, q, k, v)
        tape.free(k, v)
        return out

    def write(self, tape: Tape, workload: Workload, scope: str) -> Tensor:
        """The layer compresses its input first; the core gets keys and values as they are."""
        if scope == "core":
            return super().write(tape, workload, scope)
        w = workload
        b, h = w.batch_size, w.num_heads
        x = tape.input(b, w.seq_len, w.d_model)
        e, f = self.maps(tape, w)
        q = tape.split_heads("split queries", projected(self, tape, "q", x, w.d_model), h)
        k, v = self._keys_values(tape, w, x, e, f)
        k = tape.split_heads("split keys", k, h, flipped=True)
        v = tape.split_heads("split values", v, h)
        y = tape.merge_heads("merge heads", weighted_values(tape, q, k, v), b, h)
        tape.free(q, k, v)
        out = projected(self, tape, "o", y, w.d_model)
        tape.free(y)
        return out

    def _keys_values(
        self, tape: Tape, w: Workload, x: Tensor, e: Tensor, f: Tensor
    ) -> tuple[Tensor, Tensor]:
        if self.bias:
            k = projected(self, tape, "k", x, w.d_model)
            k_short = self.compressed(tape, "keys", e, k)
            tape.free(k)
            v = projected(self, tape, "v", x, w.d_model)
            v_short = self.compressed(tape, "values", f, v)
            tape.free(v)
            return k_short, v_short
        x_k = self.compressed(tape, "keys", e, x)
        x_v = x_k if self.shared else self.compressed(tape, "values", f, x)
        k = projected(self, tape, "k", x_k, w.d_model)
        v = projected(self, tape, "v", x_v, w.d_model)
        tape.free(x_k, *([] if self.shared else [x_v]))
        return k, v

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Two compressions, then softmax attention over proj_len tokens."""
        w, p = workload, self.proj_len
        heads = w.batch_size * w.num_heads
        results = heads * p * w.head_dim
        writer.dots("compressed keys", results, results * w.seq_len)
        writer.dots("compressed values", results, results * w.seq_len)
        writer.softmax_attention(w, w.seq_len * p, rows(w))


MECHANISMS = (Linformer,)
