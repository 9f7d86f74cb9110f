"""Linformer (003: low-rank family; Linformer(N_max, L, d_k) in its listing)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof.blocks.softmax import row_attention
from attnprof.costs import is_plain
from attnprof.errors import RequestError
from attnprof.mechanism import Abilities, Mechanism
from attnprof.ops.function import Function
from attnprof.ops.functional import add_product, square_root
from attnprof.ops.layer import Definition, LayerSizes, Weight, flat, merge_heads, split_heads
from attnprof.ops.loops import each
from attnprof.workload import Workload, rows


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
    time_order = memory_order = "N"
    flat: ClassVar[bool] = False
    tuned = ("proj_len",)
    not_split: ClassVar[str] = (
        "compresses all tokens to proj_len rows, which ranks would add up: no ring, no state"
    )
    to_softmax = (
        "untrained", "its maps are learned: the distance is that of maps as they start",
    )  # fmt: skip
    allowed: ClassVar[dict[str, Any]] = {"proj_len": 1}
    abilities: ClassVar[Abilities] = Abilities(causal=False, decode=False, needs_seq_len=True)
    reasons: ClassVar[dict[str, str]] = {
        "causal": "mixes all tokens into each compressed key, so a row would see later tokens; "
        "leave --causal out",
        "decode": "compresses a whole sequence at once and has no step; use --phase forward",
    }

    def core_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """Return E and F (proj_len, N_max); one of them if shared."""
        e = Weight((self.proj_len, sizes.seq_len), "normal", square_root(self.proj_len))
        return {"key_map": e, "value_map": None if self.shared else e}

    def core(self, q: Any, k: Any, v: Any, weights: Any) -> Any:
        """Compress k and v, then compute softmax attention over proj_len tokens."""
        b, h, n, d = q.shape
        e, f = self._maps(weights, n)
        keys, values = compressed(flat(k), e), compressed(flat(v), f)
        keys = keys / square_root(d)
        return row_attention(q, keys.view(b, h, -1, d), values.view(b, h, -1, d))

    def mixed(self, layer: Any, x: Any, causal: bool, context: Any = None) -> Any:
        """Return rows compressed before the split into heads, if possible before the map."""
        self.refuse_unless(causal=causal, cross=context is not None)
        q = layer.heads("q", x)
        keys, values = self._keys_values(layer, x)
        keys = keys / square_root(q.shape[-1])
        k, v = (split_heads(t, layer.sizes.num_heads, in_rows=False) for t in (keys, values))
        return merge_heads(row_attention(q, k, v))

    def _keys_values(self, layer: Any, x: Any) -> tuple[Any, Any]:
        e, f = self._maps(layer.core, x.shape[1])
        if self.bias:
            keys = compressed(layer.k_proj(x), e)
            return keys, compressed(layer.v_proj(x), f)
        short = (compressed(x, e),) if self.shared else compressed(x, e, f)
        return layer.k_proj(short[0]), layer.v_proj(short[-1])

    def _maps(self, weights: Any, n: Any) -> tuple[Any, Any]:
        """Return E and F for n tokens, up to the length they are built for; one if shared."""
        e = weights.key_map
        f = e if self.shared else weights.value_map
        built = e.shape[1]
        if not is_plain(n, built) or n == built:
            return e, f
        if n > built:
            raise RequestError(
                f"linformer was built for at most {built} tokens and got {n}: "
                f"build it with seq_len={n}"
            )
        return e[:, :n], f[:, :n]

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Define two compressions, then softmax attention over proj_len tokens."""
        w, p = workload, self.proj_len
        heads = w.batch_size * w.num_heads
        results = heads * p * w.head_dim
        writer.dots("compressed keys", results, results * w.seq_len)
        writer.dots("compressed values", results, results * w.seq_len)
        writer.softmax_attention(w, w.seq_len * p, rows(w))


def _compressed(x: Any, *maps: Any) -> tuple[Any, tuple[Any, ...]]:
    compressed = tuple(e.unsqueeze(0).expand(x.shape[0], -1, -1).bmm(x) for e in maps)
    return compressed if len(maps) > 1 else compressed[0], (x, *maps)


def _compressed_grads(saved: tuple[Any, ...], *grads: Any) -> tuple[Any, ...]:
    """Return one gradient of x for all maps; the maps' gradients are added where they are made."""
    x, *maps = saved
    x_grad, map_grads = None, []
    for grad, e in zip(grads, maps, strict=True):
        back = e.t().unsqueeze(0).expand(x.shape[0], -1, -1)
        if x_grad is None:
            x_grad = back.bmm(grad)
        else:
            add_product(x_grad, back, grad)
        map_grad = grad[0].mm(x[0].t())
        for sample in each(x, 1, x.shape[0]):
            add_product(map_grad, grad[sample], x[sample].t())
        map_grads.append(map_grad)
        del map_grad
    return x_grad, *map_grads


#: E x for each map E (p, n): (batch, n, width) → (batch, p, width).
compressed = Function(_compressed, _compressed_grads)

MECHANISMS = (Linformer,)
