"""Multi-head latent attention (DeepSeek-V2, 2024, Section 2.1): a cache of one latent row a token.

:class:`LatentRows` is the part that latent mechanisms share: maps to and from latents, queries that
meet the latents themselves, a cache of one row a token, and the definition. The three forms of
:class:`Latent` return the same and differ in cost: where keys and values are expanded from latents.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof.blocks.layer_rows import angles, define_norm, normed, turned
from attnprof.blocks.softmax import KeyValueState, causal_mask, row_attention, weighted_values
from attnprof.costs import Cost, Number, not_dearer
from attnprof.errors import RequestError
from attnprof.mechanism import Abilities, Mechanism
from attnprof.ops.functional import join, linear, repeat_rows, square_root, wide_positions
from attnprof.ops.layer import Definition, LayerSizes, Weight, flat, merge_heads
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


@dataclass(frozen=True, kw_only=True)
class Latent(LatentRows):
    """Keys and values of all heads are maps of one latent row a token, expanded or absorbed.

    ``impl=expanded`` makes keys and values, and caches them; ``absorbed`` takes W_uk to the queries
    and W_uv to the outputs; ``reexpanded`` makes them again every step. Both cache c and k_r alone.
    ``auto`` is the cheaper: of expanded and absorbed for a prompt; of absorbed and re-expanded for
    a step, which takes ``step_tokens``: more than one of a draft, or of a piece of a prompt.
    """

    impl: str = "auto"
    step_tokens: int = 1

    name: ClassVar[str] = "mla"
    title: ClassVar[str] = "Multi-head latent attention"
    document: ClassVar[str] = "arXiv:2405.04434"
    time_order = memory_order = "N^2"
    same_as = ("", {"impl": "absorbed"})
    to_softmax = ("another", "keys and values are made from latents, by maps of its own")
    allowed: ClassVar[dict[str, Any]] = {
        **LatentRows.allowed, "impl": ("auto", "expanded", "absorbed", "reexpanded"),
        "step_tokens": 1,
    }  # fmt: skip

    def check(self, workload: Workload, scope: str) -> None:
        """Raise :class:`RequestError` also where a step takes more tokens than there are."""
        super().check(workload, scope)
        n, step = workload.seq_len, self.step_tokens
        given = isinstance(n, int) and isinstance(step, int)
        if workload.phase == "decode" and given and n < step:
            raise RequestError(
                f"step_tokens={step}: a step takes at most the {n} tokens that there are after it; "
                f"for example step_tokens={n}"
            )

    # -- forms ---------------------------------------------------------------------------
    def form(self, head_dim: Number, phase: str) -> str:
        """Return the form that runs; RequestError if symbolic sizes do not decide it."""
        if self.impl != "auto":
            return self.impl
        if phase == "decode" and self.step_tokens == 1:
            return "absorbed"
        other, *products = self._products(head_dim, phase)
        cheaper = not_dearer(*products)
        choices = set(getattr(cheaper, "flat", [cheaper]))  # of a grid, or one
        if not choices < {0, 1}:
            raise RequestError(
                f"impl=auto depends on head_dim={head_dim}: give impl=expanded or impl=absorbed"
            )
        return other if choices == {1} else "absorbed"

    def _products(self, head_dim: Number, phase: str) -> tuple[str, Number, Number]:
        """Return the other form than absorbed, its products a head, and those of absorbed.

        They are of a pair of tokens, or of a cached row and all tokens of a step; beside shared
        ones: making the keys and values of new tokens costs as much as absorbing does.
        """
        c, key, value = self.widths(head_dim)
        if phase != "decode":
            return "expanded", key + value, 2 * c
        s = self.step_tokens
        return "reexpanded", (c + s) * (key + value), 2 * c * s

    def choice(self, workload: Workload) -> str:
        """Return a sentence on the form that ``auto`` takes; "" for another ``impl``."""
        if self.impl != "auto":
            return ""
        w, per = workload, "cached row" if workload.phase == "decode" else "pair"
        other, taken, absorbed = self._products(w.head_dim, w.phase)
        why = f"a head's products a {per} are {taken} {other} and {absorbed} absorbed"
        return f"impl=auto is {self.form(w.head_dim, w.phase)} here: {why}, beside shared ones"

    # -- text --------------------------------------------------------------------------------
    def layer(self, layer: Any, x: Any, causal: bool = False) -> Any:
        """Compute a prompt."""
        key, shared, latent, rotary = self._rows(layer, x)
        mask = causal_mask(x.shape[1], x) if causal else None
        if self.form(layer.sizes.head_dim, "forward") == "absorbed":
            rows = joined(latent, rotary)
            return layer.o_proj(self._absorbed(layer, key, shared, rows, latent, mask))
        keys, values = self._heads(layer, linear(latent, layer.up), rotary)
        rows = joined(key, shared)
        rows = rows / square_root(rows.shape[-1])
        return layer.o_proj(merge_heads(row_attention(rows, keys, values, mask, by_token=True)))

    def _heads(self, layer: Any, rows: Any, rotary: Any) -> tuple[Any, Any]:
        """Return keys (b, h, m, ·) and values, made from latents (b, m, h·(key + value))."""
        b, m, _ = rows.shape
        h, (_, width, value) = layer.sizes.num_heads, self.widths(layer.sizes.head_dim)
        parts = rows.view(b, m, h, width + value).split([width, value], -1)
        keys, values = (part.transpose(1, 2) for part in parts)
        if rotary is not None:
            keys = join([keys, rotary.unsqueeze(1).expand(b, h, m, self.rope_dim)], -1)
        return keys, values

    def _absorbed(
        self, layer: Any, key: Any, shared: Any, rows: Any, latent: Any, mask: Any
    ) -> Any:
        """Attend over rows (b, m, c + shared) as keys; their latents, c entries, are the values."""
        b, h, n, width = key.shape
        queries = self._absorbing(layer, key, shared)
        if mask is not None:
            mask = repeat_rows(mask, h)
        mixed = weighted_values(
            queries.reshape(b, h * n, queries.shape[-1]), rows, latent, mask,
            width=width + self.rope_dim,
        )  # fmt: skip
        return self._outputs(layer, mixed.view(b, h, n, latent.shape[-1]))

    # -- decoding ------------------------------------------------------------------------
    def init_state(self, sizes: LayerSizes, cache: Any) -> Any:
        """Return latents and shared keys of every token; or all heads' keys and values."""
        if self.impl != "expanded":
            return super().init_state(sizes, cache)
        _, key, value = self.widths(sizes.head_dim)
        widths = key + self.rope_dim, value
        return KeyValueState(*(cache(sizes.num_heads, width) for width in widths))

    def layer_step(self, layer: Any, x: Any, state: Any) -> tuple[Any, Any]:
        """Attend from the new tokens to every token so far."""
        b, c = x.shape[0], self.widths(layer.sizes.head_dim)[0]
        cached = state.keys if self.impl == "expanded" else state
        key, shared, latent, rotary = self._rows(layer, x, cached)
        if self.impl == "expanded":
            keys, values = state.append(*self._heads(layer, linear(latent, layer.up), rotary))
            mask = self._later(x, keys)
        else:
            rows = state.append(joined(latent, rotary))
            del latent, rotary
            latents, mask = rows[..., :c], self._later(x, rows)
            if self.form(layer.sizes.head_dim, "decode") == "absorbed":
                return layer.o_proj(self._absorbed(layer, key, shared, rows, latents, mask)), state
            # a cache with room to grow is no matrix of rows, which ``linear`` would copy it to
            expanded = latents.bmm(layer.up.t().unsqueeze(0).expand(b, -1, -1))
            heads = self._heads(layer, expanded, rows[..., c:] if self.rope_dim else None)
            keys, values = map(flat, heads)
        out = weighted_values(flat(joined(key, shared)), keys, values, mask)
        return layer.o_proj(merge_heads(out.view(*key.shape[:3], -1))), state

    def _later(self, x: Any, cached: Any) -> Any:
        """Return a mask (s, m), True for new rows after a row's own; None for one row."""
        s, m = x.shape[1], cached.shape[1]
        return None if s == 1 else x.new_ones(s, m, dtype=bool).triu_(m - s + 1)


MECHANISMS = (Latent,)
