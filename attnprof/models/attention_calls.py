"""Record what a model of transformers asks of its attention kernel, layer by layer, at no cost.

Models ask a registry for a mask and then for attention. Functions of ours stand in both while a
model runs on tensors without values: the mask is probed at a few indices far out, so that a window
is found whatever its size, and each call's heads and widths are noted.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from attnprof.models.flops_terms import CAUSAL, FULL, Mask

#: The name of our kernel in transformers' registries.
KERNEL = "attnprof_recorded"
#: Where masks are probed: further out than any window.
_FAR = 2**40
_TAG = "attnprof_mask"


@dataclass
class AttentionCall:
    """One call of attention: the module that made it, its heads and widths, and its mask."""

    module: int
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    asked: Mask | Callable[[], Mask]

    @cached_property
    def mask(self) -> Mask:
        """The mask; probed on indices, so not while the model runs without values."""
        return self.asked if isinstance(self.asked, Mask) else self.asked()


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
        calls.append(
            AttentionCall(
                id(module), query.shape[1], key.shape[1], query.shape[-1], value.shape[-1],
                _mask_of(module, query, key, mask, how),
            )
        )  # fmt: skip
        batch, heads, tokens = query.shape[:3]
        return query.new_empty((batch, tokens, heads, value.shape[-1])), None

    registries: list[tuple[Any, Any]] = [
        (AttentionInterface, attention),
        (masking_utils.AttentionMaskInterface, _tagged),
    ]
    packed = "find_packed_sequence_indices"  # it reads positions, to tell packed sequences
    with ExitStack() as stack:
        if hasattr(masking_utils, packed):
            stack.enter_context(patch.object(masking_utils, packed, lambda *_, **__: None))
        for registry, function in registries:
            registry.register(KERNEL, function)
            stack.callback(registry._global_mapping.pop, KERNEL, None)  # noqa: SLF001 - no method
        yield calls


def _tagged(
    batch_size: int, q_length: Any, kv_length: int, *_: Any, mask_function: Any = None,
    local_size: int | None = None, **__: Any,
) -> Any:  # fmt: skip
    """Return a mask without values that says which mask it is."""
    import torch

    tokens = q_length if isinstance(q_length, int) else q_length.shape[0]
    mask = torch.empty((batch_size, 1, tokens, kv_length), dtype=torch.bool, device="meta")
    setattr(mask, _TAG, partial(probed, mask_function, local_size) if mask_function else CAUSAL)
    return mask


def _mask_of(module: Any, query: Any, key: Any, mask: Any, how: Any) -> Any:
    found = getattr(mask, _TAG, None)
    causal = how.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    if found is not None:
        return found
    if window := how.get("sliding_window"):
        return Mask("window" if causal else "around", int(window))
    return CAUSAL if causal and query.shape[2] == key.shape[2] else FULL


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
