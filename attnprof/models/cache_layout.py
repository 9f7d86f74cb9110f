"""What each layer of a model keeps of a sequence, as its own cache shows after a short prompt.

Engines keep the same entries in pages and formats of their own: keys and values of as many tokens
as the layer sees, or one latent row a token for all heads, or a state that does not grow. Entry
point: :func:`cache_layout`.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from attnprof.errors import CannotRunError
from attnprof.models.text_run import TextRun
from attnprof.models.whole import cache_in


@dataclass(frozen=True)
class LayerCache:
    """What ``layers`` alike keep of one sequence.

    ``heads`` of keys and values, ``key_dim`` and ``value_dim`` entries each a token; one head that
    all queries share if ``latent``. ``window``: of how many tokens at most, 0 for all. ``index``
    entries a token are an indexer's keys. ``state`` entries and the ``tail`` of a convolution are
    of no token; the tail has ``taps`` rows, one less than the convolution's kernel.
    """

    layers: int = 0
    heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    latent: bool = False
    window: int = 0
    index: int = 0
    state: int = 0
    tail: int = 0
    taps: int = 0

    @property
    def kind(self) -> str:
        """The name of such layers: ``full``, ``sliding 128``, ``latent``, ``state``."""
        rows = f"sliding {self.window:,}" if self.window else "latent" if self.latent else "full"
        names = [rows] * bool(self.heads) + ["state"] * bool(self.state or self.tail)
        return " + ".join(names) or "none"


def cache_layout(run: TextRun, name: str) -> list[LayerCache]:
    """Return what a model's layers keep, alike ones together, after a prompt with ``use_cache``.

    A decoder's rows of its encoder's tokens are among them. Raises :class:`CannotRunError` for a
    model that keeps nothing; ``name`` is what it is called.
    """
    _, cache = cache_in(run.result, name)
    parts = ("self_attention_cache", "cross_attention_cache")
    kept = [part for one in parts if (part := getattr(cache, one, None))] or [cache]
    latent = getattr(run.model.config, "kv_lora_rank", None)
    layers = [layer for part in kept for layer in getattr(part, "layers", ())]
    alike = Counter(_kept(layer, latent) for layer in layers)
    layouts = [LayerCache(number, *rest) for rest, number in alike.items() if any(rest)]
    if not layouts:
        raise CannotRunError(f"the cache of {name} has no layers that are known")
    return layouts


def _kept(layer: Any, latent: int | None) -> tuple[Any, ...]:
    """Return the fields of :class:`LayerCache` after ``layers``, of one layer of a cache."""
    held = vars(layer)
    keys, values = (held.get(name) for name in ("keys", "values"))
    heads, key_dim, value_dim = 0, 0, 0
    if getattr(keys, "ndim", 0) == 4:
        heads, key_dim, value_dim = keys.shape[1], keys.shape[-1], values.shape[-1]
    index, tails = held.get("indexer_keys"), list(_tensors(held.get("conv_states")))
    return (
        heads, key_dim, value_dim, bool(latent) and heads == 1 and key_dim == latent,
        int(held.get("sliding_window") or 0) if heads else 0,
        0 if index is None else index.shape[-1],
        sum(x.numel() for x in _tensors(held.get("recurrent_states"))),
        sum(x.numel() // x.shape[-1] * (x.shape[-1] - 1) for x in tails),
        max((x.shape[-1] - 1 for x in tails), default=0),
    )  # fmt: skip


def _tensors(value: Any) -> Iterator[Any]:
    parts = value.values() if isinstance(value, dict) else [value]
    yield from (part for part in parts if hasattr(part, "numel"))
