"""Caches of transformers as engines keep them: written in place, and latents not expanded.

Transformers' own cache is a new tensor after each token. With :func:`in_place`, a model's calls
copy a prompt's keys and values to the cache once (in a layer with a window, the last ones), write a
decoded token to memory that :func:`give_room` has reserved, and update a recurrent layer's state in
place.

Transformers' modules of latent attention (MLA) keep latents of width r and rotary parts, and expand
all of them to keys and values of every head at each token. Engines do so for a prompt; for a
decoded token they multiply its query by the keys' weights and its result by the values' instead.
All of these modules expand in a method, ``expand_kv(latents, rotary)``, after the cache and before
the kernel that they look up: :func:`absorb` makes it hand the latents through for one token, and
:func:`absorbed` is what the kernel does with them.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, wraps
from typing import Any
from unittest.mock import patch

from attnprof.models.hub_config import first_number

_ROOM = "_attnprof_room"


@contextmanager
def in_place() -> Iterator[None]:
    """Make the growing layers of transformers' caches keep tokens in place."""
    from transformers import cache_utils

    with ExitStack() as stack:
        for kind in (cache_utils.DynamicLayer, cache_utils.DynamicSlidingWindowLayer):
            stack.enter_context(patch.object(kind, "update", _update_in_place(kind.update)))
        recurrent = cache_utils.LinearAttentionLayer
        stack.enter_context(patch.object(recurrent, "update_recurrent_state", _keep_state))
        yield


def _keep_state(layer: Any, state: Any, state_idx: int = 0, **_: Any) -> Any:
    """Keep a kernel's state itself, where transformers would keep a copy of it."""
    layer.recurrent_states[state_idx] = state
    layer.is_recurrent_states_initialized[state_idx] = True
    return state


def _update_in_place(usual: Any) -> Any:
    """Return a layer's method that adds keys and values in place; the ``usual`` one elsewhere."""

    def update(layer: Any, keys: Any, values: Any, *args: Any, **how: Any) -> tuple[Any, Any]:
        room = vars(layer).pop(_ROOM, None)
        if room is not None:  # for one token, behind the earlier ones
            for part, row in zip(room, (keys, values), strict=True):
                part.narrow(2, part.shape[2] - 1, 1).copy_(row)
            _count_tokens(layer, keys)
            layer.keys, layer.values = room
            return layer.keys, layer.values
        if not layer.is_initialized or layer.keys is None:
            layer.lazy_initialization(keys, values)
        if layer.keys.dim() != 1:  # it has tokens, and no room for more
            return usual(layer, keys, values, *args, **how)  # type: ignore[no-any-return]
        _count_tokens(layer, keys)
        layer.keys, layer.values = (_kept_rows(layer, x) for x in (keys, values))
        return keys, values

    return update


def _kept_rows(layer: Any, rows: Any) -> Any:
    """Return the rows of a prompt that a layer keeps: a copy of all, or of the last in its window.

    Training keeps none: autograd holds keys and values themselves.
    """
    import torch

    if torch.is_grad_enabled():
        return rows
    window: Any = getattr(layer, "sliding_window", None) if layer.is_sliding else None
    whole = window is None or rows.shape[2] < window
    return (rows if whole else rows[:, :, -window + 1 :, :]).clone()


def _count_tokens(layer: Any, keys: Any) -> None:
    if hasattr(layer, "cumulative_length"):
        layer.cumulative_length += keys.shape[-2]


def give_room(cache: Any) -> None:
    """Move the keys and values of a cache to memory with room for one token more."""
    from transformers.cache_utils import DynamicLayer

    for layer in getattr(getattr(cache, "self_attention_cache", cache), "layers", None) or ():
        kept: tuple[Any, Any] = getattr(layer, "keys", None), getattr(layer, "values", None)
        if isinstance(layer, DynamicLayer) and all(x is not None and x.dim() == 4 for x in kept):
            room = [x.new_empty((*x.shape[:2], x.shape[2] + 1, x.shape[3])) for x in kept]
            for larger, rows in zip(room, kept, strict=True):
                larger.narrow(2, 0, rows.shape[2]).copy_(rows)
            layer.keys, layer.values = (x.narrow(2, 0, x.shape[2] - 1) for x in room)
            setattr(layer, _ROOM, room)


def repeated_note(text: Any) -> str:
    """Return a note on heads of keys that a model's code repeats before it keeps them; or ""."""
    heads, kept = (first_number(text, (x,)) for x in ("num_attention_heads", "num_kv_heads"))
    if not getattr(text, "new_decoder_architecture", False) or not 0 < kept < heads:
        return ""
    return (
        f"transformers' code keeps each of the {kept} heads of keys and values {heads // kept} "
        "times in the cache, an engine once: type attnprof fit for the cache of an engine"
    )


# -- latent attention, absorbed ------------------------------------------------------------

#: Where a module keeps the latents of its running call.
_HELD = "_attnprof_latents"
_SIZES = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def latent_modules(model: Any) -> Iterator[Any]:
    """Yield the modules of latent attention, recognised by their attributes."""
    for module in model.modules():
        expands = callable(getattr(module, "expand_kv", None))
        if expands and hasattr(module, "kv_b_proj") and all(hasattr(module, x) for x in _SIZES):
            yield module


def absorb(model: Any) -> list[Any]:
    """Make the latent attention of a model absorb its weights for one token; return these modules.

    Its kernel has to ask :func:`absorbed` first. Modules whose expansion has a bias stay as they
    are. For others, absorption saves FLOPs: a head's pair costs 2(2r + rotary), and expanded
    2(nope + rotary + values) after its row is expanded by 2r(nope + values).
    """
    modules = [x for x in latent_modules(model) if x.kv_b_proj.bias is None]
    for module in modules:
        kind: Any = type(module)
        module.__class__ = _absorbing(kind)
    return modules


@cache
def _absorbing(kind: Any) -> Any:
    """Return a class of the same name whose modules keep a decoded token's latents.

    Methods set on a module would keep the first module's latents in a copy of it.
    """

    @wraps(kind, updated=())
    class Absorbing(kind):  # type: ignore[misc]
        @wraps(kind.forward)
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            rows = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
            one = isinstance(rows.shape[1], int) and rows.shape[1] == 1
            caches = (kwargs.get(name) for name in ("cache", "past_key_values"))
            self.__dict__[_HELD] = one and any(cache is not None for cache in caches)
            return super().forward(*args, **kwargs)

        def expand_kv(self, latents: Any, rotary: Any) -> tuple[Any, Any]:
            """Return rotary parts and latents for one token after others, else keys and values."""
            if self.__dict__.get(_HELD) is not True:
                return super().expand_kv(latents, rotary)  # type: ignore[no-any-return]
            self.__dict__[_HELD] = latents, rotary
            return rotary, latents

    return Absorbing


def absorbed(module: Any, query: Any, mask: Any, scaling: float | None, indices: Any) -> Any:
    """Return a decoded token's attention (batch, 1, heads, value width); None if it is expanded.

    ``query`` is (batch, heads, 1, nope + rotary width); ``indices`` (batch, 1, rows) are the rows
    of the cache that an indexer picks, or None.
    """
    import torch

    from attnprof.models.engine_kernels import latent_attention

    operands = vars(module).pop(_HELD, None)
    if not isinstance(operands, tuple):
        return None
    latents, rotary = operands if indices is None else (_picked(x, indices) for x in operands)
    rank, nope, rope, value = (getattr(module, name) for name in _SIZES)
    weights = module.kv_b_proj.weight.view(-1, nope + value, rank)  # (heads, nope + value, rank)
    rows = query[:, :, 0, :nope].transpose(0, 1)  # (heads, batch, nope): no head's weights copied
    of_latents = torch.bmm(rows, weights[:, :nope]).transpose(0, 1)[:, :, None]
    both = torch.cat((of_latents, query[..., nope:]), -1)
    scale = (nope + rope) ** -0.5 if scaling is None else scaling
    mask = None if indices is not None else mask
    mixed = latent_attention(both, latents, rotary, mask, scale)[:, :, 0].transpose(0, 1)
    return torch.bmm(mixed, weights[:, nope:].mT).transpose(0, 1)[:, None]


def _picked(rows: Any, indices: Any) -> Any:
    """Return the rows (batch, 1, rows, width) that an indexer picks for one token."""
    places = indices.long().transpose(1, 2)[:, None]
    return rows.gather(2, places.expand(-1, -1, -1, rows.shape[-1]))


def saved_flops(model: Any, batch: Any, keys: Any) -> Any:
    """Return the FLOPs of products that absorption saves a decoded token after ``keys`` tokens."""
    saved = 0
    for module in latent_modules(model):
        rank, nope, rope, value = (getattr(module, name) for name in _SIZES)
        heads = module.kv_b_proj.weight.shape[0] // (nope + value)
        expanded = keys * (nope + rope + value + rank * (nope + value))
        saved += 2 * batch * heads * (expanded - keys * (2 * rank + rope) - rank * (nope + value))
    return saved


def latent_note(model: Any) -> str:
    """Return how latent attention is counted in each phase; "" for a model without any."""
    module = next(latent_modules(model), None)
    if module is None:
        return ""
    rank, nope, rope, value = (getattr(module, name) for name in _SIZES)
    return (
        "latent attention is expanded in prefill and training, and absorbed at decode: "
        f"{2 * (2 * rank + rope):,} FLOPs a head and cached token instead of "
        f"{2 * (nope + rope + value) + 2 * rank * (nope + value):,}"
    )
