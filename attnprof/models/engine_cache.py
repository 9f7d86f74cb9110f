"""Caches of transformers as engines keep them: written in place, without a copy of what is there.

Transformers' own cache is a new tensor after each token. Here a prompt's keys and values are copied
to the cache once; of a layer with a window, the last ones are. A decoded token is written to memory
that was there before (:func:`give_room`), and a recurrent layer's state is moved in place.
:func:`in_place` makes a model's calls do so.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

_ROOM = "_attnprof_room"


@contextmanager
def in_place() -> Iterator[None]:
    """Make the growing layers of transformers' caches keep tokens in place."""
    from transformers import cache_utils

    with ExitStack() as stack:
        for kind in (cache_utils.DynamicLayer, cache_utils.DynamicSlidingWindowLayer):
            stack.enter_context(patch.object(kind, "update", _updating(kind.update)))
        recurrent = cache_utils.LinearAttentionLayer
        stack.enter_context(patch.object(recurrent, "update_recurrent_state", _with_state))
        yield


def _with_state(layer: Any, state: Any, state_idx: int = 0, **_: Any) -> Any:
    """Keep the state that a kernel has made, or moved in place, itself and no copy of it."""
    layer.recurrent_states[state_idx] = state
    layer.is_recurrent_states_initialized[state_idx] = True
    return state


def _updating(usual: Any) -> Any:
    """Return a layer's method that adds keys and values in place; the ``usual`` one elsewhere."""

    def update(layer: Any, keys: Any, values: Any, *args: Any, **how: Any) -> tuple[Any, Any]:
        room = vars(layer).pop(_ROOM, None)
        if room is not None:
            return _written(layer, room, keys, values)
        if not layer.is_initialized or layer.keys is None:
            layer.lazy_initialization(keys, values)
        if layer.keys.dim() != 1:  # it has some, and no room for more
            return usual(layer, keys, values, *args, **how)  # type: ignore[no-any-return]
        _count(layer, keys)
        layer.keys, layer.values = (_kept(layer, x) for x in (keys, values))
        return keys, values

    return update


def _kept(layer: Any, rows: Any) -> Any:
    """Return what a layer keeps of a prompt: a copy of all, or of the last ones in its window.

    Training keeps none: autograd holds keys and values themselves.
    """
    import torch

    if torch.is_grad_enabled():
        return rows
    window: Any = getattr(layer, "sliding_window", None) if layer.is_sliding else None
    whole = window is None or rows.shape[2] < window
    return (rows if whole else rows[:, :, -window + 1 :, :]).clone()


def _count(layer: Any, keys: Any) -> None:
    if hasattr(layer, "cumulative_length"):
        layer.cumulative_length += keys.shape[-2]


def _written(layer: Any, room: Any, *rows: Any) -> tuple[Any, Any]:
    """Write one token's keys and values behind those that are there; return all."""
    for held, row in zip(room, rows, strict=True):
        held.narrow(2, held.shape[2] - 1, 1).copy_(row)
    _count(layer, rows[0])
    layer.keys, layer.values = room
    return layer.keys, layer.values


def give_room(cache: Any) -> None:
    """Move the keys and values of a cache to memory with room for one token more."""
    from transformers import cache_utils

    for part in (cache, getattr(cache, "self_attention_cache", None)):
        for layer in getattr(part, "layers", None) or ():
            kept = getattr(layer, "keys", None), getattr(layer, "values", None)
            full = isinstance(layer, cache_utils.DynamicLayer) and all(
                x is not None and x.dim() == 4 for x in kept
            )
            if full:
                room = [_with_room(x) for x in kept]
                layer.keys, layer.values = (x.narrow(2, 0, x.shape[2] - 1) for x in room)
                setattr(layer, _ROOM, room)


def _with_room(rows: Any) -> Any:
    batch, heads, tokens, width = rows.shape
    room = rows.new_empty((batch, heads, tokens + 1, width))
    room.narrow(2, 0, tokens).copy_(rows)
    return room
