"""One latent row a token, in place of the keys and values of all heads (DeepSeek-V2, 2024).

:class:`LatentRows` is the part that latent mechanisms share: maps to and from latents, queries that
meet the latents themselves, a cache of one row a token, and the definition.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof.blocks.layer_rows import angles, define_norm, normed, turned
from attnprof.costs import Cost, Number
from attnprof.errors import RequestError
from attnprof.mechanism import Abilities, Mechanism
from attnprof.ops.functional import join, wide_positions
from attnprof.ops.layer import Definition, LayerSizes, Weight, merge_heads
from attnprof.workload import Workload, pairs, rows


@dataclass(frozen=True, kw_only=True)
class LatentRows(Mechanism):
    """Keys and values of all heads are maps of one latent row a token, c = norm(W_dkv x).

    A head's key is (W_uk c, k_r), its value W_uv c; k_r of ``rope_dim`` entries is one row a token
    for all heads, turned by its position if ``rotary``. Queries are maps of x, or of latents of
    ``q_rank``. Widths default to: latents 4 · head_dim, keys (without k_r) and values head_dim.
    """

    kv_rank: int | None = None
    q_rank: int | None = None
    rope_dim: int = 64
    nope_dim: int | None = None
    value_dim: int | None = None
    rotary: bool = True

    family: ClassVar[str] = "latent"
    abilities: ClassVar[Abilities] = Abilities(attend=False)
    allowed: ClassVar[dict[str, Any]] = {
        "kv_rank": 1, "q_rank": 1, "rope_dim": 0, "nope_dim": 1, "value_dim": 1,
    }  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rotary and self.rope_dim % 2:
            raise RequestError(
                f"rope_dim={self.rope_dim}: pairs of entries turn, so it is even; "
                f"for example rope_dim={self.rope_dim + 1}, or rotary=false"
            )

    # -- sizes ---------------------------------------------------------------------------
    def widths(self, head_dim: Number) -> tuple[Number, Number, Number]:
        """Return entries of a latent, of a key without its shared part, and of a value."""
        chosen = self.kv_rank, self.nope_dim, self.value_dim
        defaults = 4 * head_dim, head_dim, head_dim
        c, key, value = (d if w is None else w for w, d in zip(chosen, defaults, strict=True))
        return c, key, value

    def core_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """Return W_uk and W_uv of all heads in one matrix, and weights of the norms."""
        c, key, value = self.widths(sizes.head_dim)
        return {
            "up": Weight((sizes.num_heads * (key + value), c)),
            "kv_norm": Weight((c,), 1.0),
            "q_norm": None if self.q_rank is None else Weight((self.q_rank,), 1.0),
        }

    def layer_maps(self, sizes: LayerSizes) -> dict[str, tuple[Number, Number]]:
        """Return maps of queries (or to and from their latents), latents, shared keys, output."""
        c, key, value = self.widths(sizes.head_dim)
        width, queries = sizes.d_model, sizes.num_heads * (key + self.rope_dim)
        maps = {"q_proj": (width, queries)}
        if self.q_rank is not None:
            maps = {"q_down": (width, self.q_rank), "q_up": (self.q_rank, queries)}
        out = sizes.num_heads * value, width
        down = width, c + self.rope_dim
        return {**maps, "kv_down": down, **self.more_maps(sizes), "o_proj": out}

    # -- text --------------------------------------------------------------------------------
    @property
    def _turns(self) -> bool:
        return self.rotary and self.rope_dim > 0

    def _source(self, layer: Any, x: Any) -> Any:
        """Return the rows that queries are projected from: x, or latents of ``q_rank``."""
        return x if self.q_rank is None else normed(layer.q_down(x), layer.q_norm)

    def _rows(
        self, layer: Any, x: Any, cached: Any = None, source: Any = None
    ) -> tuple[Any, ...]:  # fmt: skip
        """Return plain and rotary queries (b, h, n, ·), latents and rotary keys (b, n, ·).

        They are turned by their places after the rows of ``cached``. ``source`` are the rows that
        queries are projected from, if they are there.
        """
        c, width, _ = self.widths(layer.sizes.head_dim)
        turns = angles(x, _places(x, cached), self.rope_dim) if self._turns else None
        source = self._source(layer, x) if source is None else source
        q = (layer.q_proj if self.q_rank is None else layer.q_up)(source)
        heads = q.view(*x.shape[:2], layer.sizes.num_heads, width + self.rope_dim)
        both = layer.kv_down(x)
        if not self.rope_dim:
            return heads.transpose(1, 2), None, normed(both, layer.kv_norm), None
        # cut before the axes are exchanged: gradients are joined as the maps left them
        parts = heads.split([width, self.rope_dim], -1)
        key, shared = (part.transpose(1, 2) for part in parts)
        latent, rotary = both.split([c, self.rope_dim], -1)
        if turns is not None:
            shared, rotary = turned(shared, *turns), turned(rotary, *turns)
        return key, shared, normed(latent, layer.kv_norm), rotary

    def _absorbing(self, layer: Any, key: Any, shared: Any) -> Any:
        """Return queries of latents (b, h, n, c + shared), from queries of keys (b, h, n, key)."""
        b, h, n, width = key.shape
        c, _, value = self.widths(layer.sizes.head_dim)
        up = layer.up.view(h, width + value, c)
        queries = key.transpose(0, 1).reshape(h, b * n, width).bmm(up[:, :width])
        return joined(queries.view(h, b, n, c).transpose(0, 1), shared)

    def _outputs(self, layer: Any, mixed: Any) -> Any:
        """Return the heads' outputs (b, n, h · value) from mixed latents (b, h, n, c)."""
        b, h, n, c = mixed.shape
        _, width, value = self.widths(layer.sizes.head_dim)
        up = layer.up.view(h, width + value, c)
        out = mixed.transpose(0, 1).reshape(h, b * n, c).bmm(up[:, width:].transpose(1, 2))
        return merge_heads(out.view(h, b, n, value).transpose(0, 1))

    # -- decoding ------------------------------------------------------------------------
    def init_state(self, sizes: LayerSizes, cache: Any) -> Any:
        """Return an empty cache of latents with shared keys."""
        return cache(1, self.widths(sizes.head_dim)[0] + self.rope_dim)

    # -- the definition ------------------------------------------------------------------
    def define(self, writer: Definition, workload: Workload, scope: str) -> None:
        """Define maps, norms, rotations, every token's keys and values once, softmax attention."""
        w = workload
        sizes = LayerSizes.from_workload(w)
        new = self.step_tokens if w.phase == "decode" else rows(w)
        tokens, (c, key, value) = w.batch_size * new, self.widths(w.head_dim)
        maps = self.layer_maps(sizes)
        last = maps["o_proj"]
        writer.maps({**maps, "up": (c, w.num_heads * (key + value))}, tokens)
        for width in (c, *([] if self.q_rank is None else [self.q_rank])):
            define_norm(writer, tokens, width)
        if self._turns:
            entries = tokens * (w.num_heads + 1) * self.rope_dim
            writer.stage("turns", Cost(multiplications=2, additions=1) * entries, entries)
        expanded = w.with_(head_dim=key + self.rope_dim, value_head_dim=value)
        writer.softmax_attention(expanded, self._pairs(w), new)
        writer.dots("output", tokens * last[1], tokens * last[0] * last[1], tokens, last[1])

    def _pairs(self, w: Workload) -> Number:
        """Return query-key pairs: each new row sees all rows up to itself."""
        s = self.step_tokens
        return pairs(w) if w.phase != "decode" else s * w.seq_len - s * (s - 1) // 2


def _places(x: Any, cached: Any) -> Any:
    """Return the places (n,), from 1, of new rows after cached ones; a number for one row."""
    n = x.shape[1]
    if cached is None:
        return wide_positions(x, n)
    return cached.length + 1 if n == 1 else wide_positions(x, n) + cached.length


def joined(key: Any, shared: Any) -> Any:
    """Return plain and shared entries of rows side by side, of queries or of cached latents."""
    return key if shared is None else join([key, shared], -1)
