"""Record what a model of transformers asks of its attention kernel, layer by layer, at no cost.

Models ask a registry for a mask and then for attention. Functions of ours stand in both while a
model runs on tensors without values: the mask is probed at a few indices far out, so that a window
is found whatever its size, and each call's heads and widths are noted.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from attnprof.models.flops_terms import CAUSAL, FULL, Mask

#: The name of our kernel in transformers' registries.
KERNEL = "attnprof_recorded"
#: Where masks are probed: further out than any window.
_FAR = 2**40
#: Masks of the running model, by storage: the mask, where its queries and its keys start, and the
#: tensor, which keeps the storage.
MASKS: dict[int, tuple[Mask, Any, Any, Any]] = {}


@dataclass
class AttentionCall:
    """One call of attention: the module that made it, its heads and widths, and its mask."""

    module: int
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    mask: Mask


def set_kernel(model: Any, kernel: str) -> None:
    """Make all attention of a model go through a kernel of the registry, by its name there."""
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if hasattr(config, "_attn_implementation_internal"):
            config._attn_implementation_internal = kernel  # noqa: SLF001 - the setter checks names


@contextmanager
def recorded_attention() -> Iterator[list[AttentionCall]]:
    """Register our kernel, and yield the list that its calls are noted in."""
    from unittest.mock import patch

    from transformers import masking_utils
    from transformers.modeling_utils import AttentionInterface

    calls = list[AttentionCall]()

    def attention(
        module: Any, query: Any, key: Any, value: Any, mask: Any = None, *_: Any, **how: Any
    ) -> Any:
        known = noted(mask)
        asked = how.get("is_causal"), how.get("sliding_window")
        seen = known[0] if known else unmasked(module, query, key, *asked)
        widths = query.shape[-1], value.shape[-1]
        calls.append(AttentionCall(id(module), query.shape[1], key.shape[1], *widths, seen))
        batch, heads, tokens = query.shape[:3]
        return query.new_empty((batch, tokens, heads, value.shape[-1])), None

    registries: list[tuple[Any, Any]] = [
        (AttentionInterface, attention),
        (masking_utils.AttentionMaskInterface, small_mask),
    ]
    packed = "find_packed_sequence_indices"  # it reads positions, to tell packed sequences
    with ExitStack() as stack:
        if hasattr(masking_utils, packed):
            stack.enter_context(patch.object(masking_utils, packed, lambda *_, **__: None))
        for registry, function in registries:
            registry.register(KERNEL, function)
            stack.callback(registry._global_mapping.pop, KERNEL, None)  # noqa: SLF001 - no method
        stack.callback(MASKS.clear)
        yield calls


def small_mask(
    batch_size: int, q_length: Any, kv_length: Any, q_offset: Any = 0, kv_offset: Any = 0,
    mask_function: Any = None, local_size: int | None = None, device: Any = None, **_: Any,
) -> Any:  # fmt: skip
    """Return a mask of one entry, expanded, and note which pairs it stands for."""
    import torch

    tokens = q_length if isinstance(q_length, int | torch.SymInt) else q_length.shape[0]
    with _outside_modes():
        mask = CAUSAL if mask_function is None else probed(mask_function, local_size)
    tensor = torch.empty((), dtype=torch.bool, device=device)
    MASKS[_key(tensor)] = mask, q_offset, kv_offset, tensor
    return tensor.expand(batch_size, 1, tokens, kv_length)


def noted(mask: Any) -> tuple[Mask, Any, Any] | None:
    """Return which pairs a mask of ours stands for, and where its queries and keys start."""
    known = None if mask is None else MASKS.get(_key(mask))
    return None if known is None else known[:3]


def _key(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - no method says it


@contextmanager
def _outside_modes() -> Iterator[None]:
    """Leave all modes of torch, so that tensors have values and nothing is recorded."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        yield


def unmasked(module: Any, query: Any, key: Any, causal: bool | None, window: int | None) -> Mask:
    """Return the mask of a call without a tensor for it."""
    causal = getattr(module, "is_causal", True) if causal is None else causal
    causal = bool(causal) and query.shape[2] == key.shape[2]
    if window:
        return Mask("window" if causal else "around", int(window))
    return CAUSAL if causal else FULL


def probed(sees: Callable[..., Any], local: int | None) -> Mask:
    """Return the mask of a function of indices that says whether a query sees a key."""
    import torch

    def seen(query: int, key: int) -> bool:
        first = torch.zeros((), dtype=torch.int64, device="cpu")
        result = sees(first, first, *(torch.tensor(x, device="cpu") for x in (query, key)))
        return bool(result)

    with suppress(Exception), torch.device("cpu"):
        ahead = seen(_FAR, _FAR + 1)
        if seen(_FAR, 0):
            return FULL if ahead else CAUSAL
        low, high = 0, _FAR
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if seen(_FAR, middle) else (middle, high)
        reach = _FAR - high
        if ahead:
            return Mask("around", reach)
        chunk = next((n for n in (1, 2) if seen(_FAR + n, high)), 0)
        return Mask("chunk", local or 1) if chunk else Mask("window", reach + 1)
    if not local:
        return CAUSAL
    return Mask("chunk" if _is_chunked(sees) else "window", local)


def _is_chunked(function: Any) -> bool:
    """Return whether a function of indices is made of transformers' overlay of chunks."""
    if "chunk" in getattr(function, "__qualname__", ""):
        return True
    held = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    inner = [x for one in held for x in (one if isinstance(one, tuple | list) else [one])]
    return any(map(_is_chunked, filter(callable, inner)))
