"""Multi-head latent attention (DeepSeek-V2, 2024, Section 2.1): a cache of one latent row a token.

Its three forms return the same and differ in cost: where keys and values are expanded from latents.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof.blocks.layer_rows import angles, define_norm, normed, turned
from attnprof.blocks.softmax import KeyValueState, causal_mask, row_attention, weighted_values
from attnprof.costs import Cost, Number, is_plain, not_dearer
from attnprof.errors import RequestError
from attnprof.mechanism import Abilities, Mechanism
from attnprof.ops.functional import join, linear, repeat_rows, square_root, wide_positions
from attnprof.ops.layer import Definition, LayerSizes, Weight, flat, merge_heads
from attnprof.workload import Workload, pairs, rows


@dataclass(frozen=True, kw_only=True)
class Latent(Mechanism):
    """Keys and values of all heads are maps of one latent row a token, c = norm(W_dkv x).

    A head's key is (W_uk c, k_r), its value W_uv c; k_r of ``rope_dim`` entries is one row a token
    for all heads, turned by its position if ``rotary``. Queries are maps of x, or of latents of
    ``q_rank``. ``impl=expanded`` makes keys and values, and caches them; ``absorbed`` takes W_uk to
    the queries and W_uv to the outputs; ``reexpanded`` makes them again every step. Both cache c
    and k_r alone. ``auto`` is for a prompt the cheaper of expanded and absorbed, and absorbed for
    a step. Widths default to: latents 4 · head_dim, keys (without k_r) and values head_dim. A step
    takes ``step_tokens``: more than one of a draft, or of a piece of a prompt.
    """

    kv_rank: int | None = None
    q_rank: int | None = None
    rope_dim: int = 64
    nope_dim: int | None = None
    value_dim: int | None = None
    rotary: bool = True
    impl: str = "auto"
    step_tokens: int = 1

    name: ClassVar[str] = "mla"
    title: ClassVar[str] = "Multi-head latent attention"
    document: ClassVar[str] = "arXiv:2405.04434"
    family: ClassVar[str] = "latent"
    time_order = memory_order = "N^2"
    abilities: ClassVar[Abilities] = Abilities(attend=False)
    same_as = ("", {"impl": "absorbed"})
    to_softmax = ("another", "keys and values are made from latents, by maps of its own")
    allowed: ClassVar[dict[str, Any]] = {
        "kv_rank": 1, "q_rank": 1, "rope_dim": 0, "nope_dim": 1, "value_dim": 1,
        "impl": ("auto", "expanded", "absorbed", "reexpanded"), "step_tokens": 1,
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

    def form(self, head_dim: Number, phase: str) -> str:
        """Return the form that runs; RequestError if symbolic sizes do not decide it.

        Per pair of tokens and head, expanded takes key + value + shared products, absorbed 2c +
        shared; making keys and values costs a prompt as much as absorbing does. A
        step of many tokens makes keys and values again, a step of few absorbs.
        """
        if self.impl != "auto":
            return self.impl
        c, key, value = self.widths(head_dim)
        sides, form = (key + value, 2 * c), "expanded"
        if phase == "decode":
            if self.step_tokens == 1:
                return "absorbed"
            form, sides = "reexpanded", self._again(c, key, value)
        cheaper = not_dearer(*sides)
        flags = getattr(cheaper, "flat", [cheaper]) if _is_number(cheaper) else ()
        choices = set(map(int, flags))
        if len(choices) != 1:
            raise RequestError(
                f"impl=auto depends on head_dim={head_dim}: give impl=expanded or impl=absorbed"
            )
        return form if 1 in choices else "absorbed"

    def _again(self, c: Number, key: Number, value: Number) -> tuple[Number, Number]:
        """Return products a head that expand a row's keys and values, and products that this saves.

        The first are c·(key + value) a cached row, the second grow with the tokens of a step.
        """
        return c * (key + value), self.step_tokens * (2 * c - key - value)

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
        return {**maps, "kv_down": (width, c + self.rope_dim), "o_proj": out}

    # -- text --------------------------------------------------------------------------------
    def layer(self, layer: Any, x: Any, causal: bool = False) -> Any:
        """Compute a prompt."""
        n = x.shape[1]
        turns = angles(x, wide_positions(x, n), self.rope_dim) if self._turns else None
        key, shared, latent, rotary = self._rows(layer, x, self._source(layer, x), turns)
        mask = causal_mask(n, x) if causal else None
        if self.form(layer.sizes.head_dim, "forward") == "absorbed":
            rows = latent if rotary is None else join([latent, rotary], -1)
            return layer.o_proj(self._absorbed(layer, key, shared, rows, latent, mask))
        keys, values = self._heads(layer, linear(latent, layer.up), rotary)
        rows = _joined(key, shared)
        rows = rows / square_root(rows.shape[-1])
        return layer.o_proj(merge_heads(row_attention(rows, keys, values, mask, by_token=True)))

    @property
    def _turns(self) -> bool:
        return self.rotary and self.rope_dim > 0

    def _source(self, layer: Any, x: Any) -> Any:
        """Return the rows that queries are projected from: x, or latents of ``q_rank``."""
        return x if self.q_rank is None else normed(layer.q_down(x), layer.q_norm)

    def _rows(self, layer: Any, x: Any, source: Any, turns: Any) -> tuple[Any, ...]:
        """Return plain and rotary queries (b, h, n, ·), latents and rotary keys (b, n, ·)."""
        c, width, _ = self.widths(layer.sizes.head_dim)
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
        if mask is not None and len(mask.shape) == 2:
            mask = repeat_rows(mask, h)
        mixed = weighted_values(
            queries.reshape(b, h * n, queries.shape[-1]), rows, latent, mask,
            width=width + self.rope_dim,
        )  # fmt: skip
        return self._outputs(layer, mixed.view(b, h, n, latent.shape[-1]))

    def _absorbing(self, layer: Any, key: Any, shared: Any) -> Any:
        """Return queries of latents (b, h, n, c + shared), from queries of keys (b, h, n, key)."""
        b, h, n, width = key.shape
        c, _, value = self.widths(layer.sizes.head_dim)
        up = layer.up.view(h, width + value, c)
        queries = key.transpose(0, 1).reshape(h, b * n, width).bmm(up[:, :width])
        return _joined(queries.view(h, b, n, c).transpose(0, 1), shared)

    def _outputs(self, layer: Any, mixed: Any) -> Any:
        """Return the heads' outputs (b, n, h · value) from mixed latents (b, h, n, c)."""
        b, h, n, c = mixed.shape
        _, width, value = self.widths(layer.sizes.head_dim)
        up = layer.up.view(h, width + value, c)
        out = mixed.transpose(0, 1).reshape(h, b * n, c).bmm(up[:, width:].transpose(1, 2))
        return merge_heads(out.view(h, b, n, value).transpose(0, 1))

    # -- decoding ------------------------------------------------------------------------
    def init_state(self, sizes: LayerSizes, cache: Any) -> Any:
        """Return latents and shared keys of every token; or all heads' keys and values."""
        c, key, value = self.widths(sizes.head_dim)
        if self.impl == "expanded":
            widths = key + self.rope_dim, value
            return KeyValueState(*(cache(sizes.num_heads, width) for width in widths))
        return cache(1, c + self.rope_dim)

    def layer_step(self, layer: Any, x: Any, state: Any) -> tuple[Any, Any]:
        """Attend from the new tokens to every token so far."""
        b, s, _ = x.shape
        c, _, _ = self.widths(layer.sizes.head_dim)
        cache = state.keys if self.impl == "expanded" else state
        place = cache.length + 1 if s == 1 else wide_positions(x, s) + cache.length
        turns = angles(x, place, self.rope_dim) if self._turns else None
        key, shared, latent, rotary = self._rows(layer, x, self._source(layer, x), turns)
        if self.impl == "expanded":
            key_row, value_row = self._heads(layer, linear(latent, layer.up), rotary)
            keys, values = state.append(key_row, value_row)
            mask = self._later(x, keys)
            return layer.o_proj(_attended(_joined(key, shared), keys, values, mask)), state
        rows = state.append(latent if rotary is None else join([latent, rotary], -1))
        del latent, rotary
        latents, mask = rows[..., :c], self._later(x, rows)
        if self.form(layer.sizes.head_dim, "decode") == "absorbed":
            return layer.o_proj(self._absorbed(layer, key, shared, rows, latents, mask)), state
        # a cache with room to grow is no matrix of rows, which ``linear`` would copy it to
        expanded = latents.bmm(layer.up.t().unsqueeze(0).expand(b, -1, -1))
        heads = self._heads(layer, expanded, rows[..., c:] if self.rope_dim else None)
        keys, values = map(flat, heads)
        return layer.o_proj(_attended(_joined(key, shared), keys, values, mask)), state

    def _later(self, x: Any, cached: Any) -> Any:
        """Return a mask (s, m), True for new rows after a row's own; None for one row."""
        s, m = x.shape[1], cached.shape[1]
        return None if s == 1 else x.new_ones(s, m, dtype=bool).triu_(m - s + 1)

    def choice(self, workload: Workload) -> str:
        """Return a sentence on the form that ``auto`` takes; "" for another ``impl``."""
        if self.impl != "auto":
            return ""
        c, key, value = self.widths(workload.head_dim)
        form = self.form(workload.head_dim, workload.phase)
        why = f"2c = {2 * c} and key + value = {key + value} products a pair, beside shared ones"
        if workload.phase == "decode":
            why = "no row is expanded again, and latents alone are cached"
            if self.step_tokens > 1:
                again, saved = self._again(c, key, value)
                why = f"a row's keys and values take {again} products a head, and save {saved}"
        return f"impl=auto is {form} here: {why}"

    def cost_notes(self, workload: Workload) -> tuple[str, ...]:
        """Return a note on the form that ``auto`` takes."""
        return tuple(filter(None, [self.choice(workload)]))

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
        heads = w.batch_size * w.num_heads
        scores, outputs = heads * self._pairs(w), heads * new * value
        writer.dots("scores", scores, scores * (key + self.rope_dim))
        writer.softmax(scores, heads * new)
        writer.dots("weighted values", outputs, scores * value)
        writer.dots("output", tokens * last[1], tokens * last[0] * last[1], tokens, last[1])

    def _pairs(self, w: Workload) -> Number:
        """Return query-key pairs: each new row sees all rows up to itself."""
        s = self.step_tokens
        return pairs(w) if w.phase != "decode" else s * w.seq_len - s * (s - 1) // 2


def _is_number(flag: Any) -> bool:
    """Return whether a flag is a number or an array of numbers, not an expression."""
    return is_plain(flag) or not hasattr(flag, "free_symbols") or flag.is_number


def _joined(key: Any, shared: Any) -> Any:
    """Return plain and shared entries of a row of queries side by side."""
    return key if shared is None else join([key, shared], -1)


def _attended(q: Any, keys: Any, values: Any, mask: Any) -> Any:
    """Return softmax attention of a step's few rows, heads side by side: (b, n, h · value)."""
    b, h, n, _ = q.shape
    out = weighted_values(flat(q), keys, values, mask)
    return merge_heads(out.view(b, h, n, -1))


MECHANISMS = (Latent,)
