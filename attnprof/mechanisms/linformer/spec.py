"""Linformer (003: low-rank family; Linformer(N_max, L, d_k) in its listing)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attnprof.costs import Cost
from attnprof.counting.definition import Definition
from attnprof.counting.engine import Gradients, Tensor
from attnprof.counting.layer import merge, projected, split
from attnprof.counting.row_attention import part, row_attention
from attnprof.counting.tape import Tape, product_cost
from attnprof.errors import RequestError
from attnprof.mechanism import Abilities, Mechanism, rows
from attnprof.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Linformer(Mechanism):
    """softmax(Q (E K)ᵀ / sqrt d) F V with E, F (proj_len, N_max) learned.

    ``shared`` uses one map for keys and values. Without bias the layer compresses its input
    before it projects: (E X) W is E (X W), at proj_len instead of N rows. Keys are scaled instead
    of scores, queries attend a block of rows at a time, heads are read where they lie.
    """

    proj_len: int = 256
    shared: bool = False

    name: ClassVar[str] = "linformer"
    title: ClassVar[str] = "Linformer"
    document: ClassVar[str] = "003"
    family: ClassVar[str] = "low-rank"
    time_order: ClassVar[str] = "N"
    memory_order: ClassVar[str] = "N"
    strided_heads: ClassVar[bool] = True
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

    def core(self, tape: Tape, workload: Workload, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Compression of k and v, then softmax attention over proj_len tokens."""
        e, f = self.maps(tape, workload)
        (k,), (v,) = compressed(tape, k, {"keys": e}), compressed(tape, v, {"values": f})
        scaled = tape.scale("scaled keys", k, divide=True)
        tape.free(k)
        out = row_attention(tape, "compressed", (q, scaled, v), workload.batch_size)
        tape.free(scaled, v)
        return out

    def write(self, tape: Tape, workload: Workload, scope: str) -> Tensor:
        """The layer compresses its input first; the core gets keys and values as they are."""
        if scope == "core":
            return super().write(tape, workload, scope)
        w = workload
        x = tape.input(w.batch_size, w.seq_len, w.d_model)
        e, f = self.maps(tape, w)
        q = projected(self, tape, "q", x, w.d_model)
        q = split(self, tape, "split queries", q, w.num_heads)
        k, v = self._keys_values(tape, w, x, e, f)
        scaled = tape.scale("scaled keys", k, divide=True)
        tape.free(k)
        k = split(self, tape, "split keys", scaled, w.num_heads)
        v = split(self, tape, "split values", v, w.num_heads)
        y = row_attention(tape, "compressed", (q, k, v), w.batch_size)
        y = merge(self, tape, y, w.batch_size, w.num_heads)
        tape.free(q, k, v)
        out = projected(self, tape, "o", y, w.d_model)
        tape.free(y)
        return out

    def _keys_values(
        self, tape: Tape, w: Workload, x: Tensor, e: Tensor, f: Tensor
    ) -> tuple[Tensor, Tensor]:
        if self.bias:
            k = projected(self, tape, "k", x, w.d_model)
            (k_short,) = compressed(tape, k, {"keys": e})
            tape.free(k)
            v = projected(self, tape, "v", x, w.d_model)
            (v_short,) = compressed(tape, v, {"values": f})
            tape.free(v)
            return k_short, v_short
        short = compressed(tape, x, {"keys": e} if self.shared else {"keys": e, "values": f})
        k = projected(self, tape, "k", short[0], w.d_model)
        v = projected(self, tape, "v", short[-1], w.d_model)
        tape.free(*short)
        return k, v

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Two compressions, then softmax attention over proj_len tokens."""
        w, p = workload, self.proj_len
        heads = w.batch_size * w.num_heads
        results = heads * p * w.head_dim
        writer.dots("compressed keys", results, results * w.seq_len)
        writer.dots("compressed values", results, results * w.seq_len)
        writer.softmax_attention(w, w.seq_len * p, rows(w))


def compressed(tape: Tape, x: Tensor, maps: dict[str, Tensor]) -> list[Tensor]:
    """E x for each map E (1, proj_len, n): (batch, n, width) to (batch, proj_len, width).

    One function with one backward pass: the gradient of x adds up over the maps in place.
    """
    batch, n, width = x.shape
    found: list[Tensor] = []
    waiting: list[Tensor] = []

    def backward(grad: Tensor) -> Gradients:
        grads = [grad, *reversed(waiting)]
        given = _compressed_backward(tape, x, maps, grads)
        tape.free(*waiting)
        return given

    def wait(grad: Tensor) -> Gradients:
        grad.storage.holders += 1
        waiting.append(grad)
        return []

    for name, e in maps.items():
        cost = product_cost(e.shape[1], n, width, batch)
        shape = (batch, e.shape[1], width)
        stretched = part(e, batch, *e.shape[1:])
        out = tape.emit(f"compress {name}", shape, cost, [stretched, x])
        if tape.grad:
            saves = [x, *maps.values()]
            tape.attach(out, f"compress {name}", wait if found else backward, saves)
        found.append(out)
    return found


def _compressed_backward(
    tape: Tape, x: Tensor, maps: dict[str, Tensor], grads: list[Tensor]
) -> Gradients:
    (batch, n, width), given = x.shape, []
    to_x = None
    for (name, e), grad in zip(maps.items(), grads, strict=True):
        p = e.shape[1]
        cost, reads = product_cost(n, p, width, batch), [part(e, batch, n, p), grad]
        if to_x is None:
            to_x = tape.emit(f"compress {name}: grad x", x.shape, cost, reads)
        else:
            cost, reads = cost + Cost(additions=x.count), [to_x, *reads]
            tape.emit(f"compress {name}: grad x", x.shape, cost, reads, into=to_x)
        cost = product_cost(p, width, n)
        reads = [part(grad, p, width), part(x, width, n)]
        to_e = tape.emit(f"compress {name}: grad map", e.shape, cost, reads)
        with tape.repeat(batch - 1):
            cost, reads = cost + Cost(additions=to_e.count), [to_e, *reads]
            tape.emit(f"compress {name}: grad map, samples", e.shape, cost, reads, into=to_e)
        given.append((e, to_e))
    return [(x, to_x), *given]


MECHANISMS = (Linformer,)
