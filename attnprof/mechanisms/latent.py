"""Multi-head latent attention (DeepSeek-V2, 2024, Section 2.1): a cache of one latent row a token.

Its three forms return the same and differ in cost: where keys and values are expanded from latents.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof.blocks.latent_rows import LatentRows, joined
from attnprof.blocks.softmax import KeyValueState, causal_mask, row_attention, weighted_values
from attnprof.costs import Number, not_dearer
from attnprof.errors import RequestError
from attnprof.ops.functional import join, linear, repeat_rows, square_root
from attnprof.ops.layer import LayerSizes, flat, merge_heads
from attnprof.workload import Workload


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
