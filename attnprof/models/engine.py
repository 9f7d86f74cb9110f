"""The engine's view of a model of transformers: what serving engines and trainers execute.

Transformers' Python computes attention with masks in memory, over all pairs. Here the model asks
transformers' registries for our kernel (:mod:`.engine_kernel`) and our mask, which takes no memory
and says which pairs it leaves. :func:`engine_subject` is the entry point.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from attnprof.errors import RequestError
from attnprof.models.attention_calls import probed, set_kernel
from attnprof.models.engine_cache import in_place
from attnprof.models.engine_latent import absorb, absorbed
from attnprof.models.engine_mixers import notes
from attnprof.models.flops_terms import CAUSAL, FULL, Mask
from attnprof.models.whole import WholeModel

#: The name of our kernel in transformers' registries.
KERNEL = "attnprof_fused"

#: Masks of the running model, by storage: the mask, where its queries and its keys start, and the
#: tensor, which keeps the storage.
_MASKS: dict[int, tuple[Mask, Any, Any, Any]] = {}


def seen_as(
    subject: WholeModel, view: str | None, kernel: str | None = None, swaps: Sequence[Any] = ()
) -> WholeModel:
    """Return a model in a view: by default as engines run it, if it is one of transformers.

    A choice of transformers' ``kernel`` is a choice of its own code. Raises :class:`RequestError`
    for such a choice in another view.
    """
    if kernel is not None and view not in (None, "torch"):
        raise RequestError(f"--kernel is transformers' choice: type --as torch, not {view}")
    if view == "torch" or (view is None and (kernel is not None or swaps)):
        return subject
    why = "with --swap it" if swaps else "" if subject.of_hub else subject.name
    if why:
        note = f"{why} is counted as torch runs it: --as {view} is for models of transformers"
        return replace(subject, notes=(*subject.notes, note)) if view else subject
    return engine_subject(subject)


def engine_subject(subject: WholeModel) -> WholeModel:
    """Return a model of transformers as engines run it; as torch does, noted, if it cannot be."""
    import torch

    _register()
    try:
        with torch.device("meta"):
            model = subject.build()
    except Exception:  # noqa: BLE001 - its first run says what is wrong
        return replace(subject, build=partial(_built, subject.build), view="engine")
    if not _asks_registry(model):
        note = "its attention asks no registry for a kernel: it is counted as torch runs it"
        return replace(subject, notes=(*subject.notes, note))
    more = (*subject.notes, *notes(model))
    return replace(subject, build=partial(_built, subject.build), view="engine", notes=more)


def _asks_registry(model: Any) -> bool:
    """Return whether a model declares that its attention goes through the registry."""
    parts = [x for x in model.modules() if hasattr(x, "_supports_attention_backend")]
    return all(x._supports_attention_backend for x in parts)  # noqa: SLF001 - transformers' flag


def _built(build: Callable[[], Any]) -> Any:
    """Build a model whose attention is our kernel."""
    _register()
    model = build()
    set_kernel(model, KERNEL)
    absorb(model)
    running = ExitStack()
    model.register_forward_pre_hook(lambda *_: running.enter_context(_as_engines()))
    model.register_forward_hook(lambda *_: running.close(), always_call=True)
    return model


@contextmanager
def _as_engines() -> Iterator[None]:
    """Keep caches in place, and no masks of an earlier call."""
    _MASKS.clear()
    with in_place():
        yield
    _MASKS.clear()


def _register() -> None:
    """Enter our kernel and our mask in transformers' registries."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(KERNEL, _attention)
    AttentionMaskInterface.register(KERNEL, _mask)


def _mask(
    batch_size: int, q_length: Any, kv_length: Any, q_offset: Any = 0, kv_offset: Any = 0,
    mask_function: Any = None, local_size: int | None = None, device: Any = None, **_: Any,
) -> Any:  # fmt: skip
    """Return a mask of one entry, expanded, and note which pairs it stands for."""
    import torch

    tokens = q_length if isinstance(q_length, int | torch.SymInt) else q_length.shape[0]
    with _outside_modes():
        mask = CAUSAL if mask_function is None else probed(mask_function, local_size)
    tensor = torch.empty((), dtype=torch.bool, device=device)
    _MASKS[_key(tensor)] = mask, q_offset, kv_offset, tensor
    return tensor.expand(batch_size, 1, tokens, kv_length)


@contextmanager
def _outside_modes() -> Iterator[None]:
    """Leave all modes of torch, so that tensors have values and nothing is recorded."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        yield


def _key(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - no method says it


def _attention(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any = None, *,
    scaling: float | None = None, dropout: float = 0.0, softcap: float | None = None,
    s_aux: Any = None, is_causal: bool | None = None, sliding_window: int | None = None,
    indices: Any = None, **_: Any,
) -> tuple[Any, None]:  # fmt: skip
    """Compute attention as transformers' kernels do: (b, h, n, d) each → (b, n, h, d)."""
    from attnprof.models.engine_kernel import fused_attention

    queries, keys = query.shape[2], key.shape[2]
    start, first, bias = keys - queries, 0, attention_mask
    noted = None if bias is None else _MASKS.get(_key(bias))
    if noted is not None:
        (mask, start, first, _), bias = noted, None
    elif bias is not None:
        mask = FULL  # any mask that the model made of numbers
    else:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        mask = _unmasked(causal=causal and queries == keys, window=sliding_window)
    of_latents = absorbed(module, query, bias, scaling, indices)
    if of_latents is not None:
        return of_latents, None
    if indices is not None:  # as many keys as an indexer picks, of those before a query
        mask, bias = Mask("window", indices.shape[-1]), None
    out, _ = fused_attention(
        query, key, value, s_aux, bias, mask.kind, mask.size, start, first,
        query.shape[-1] ** -0.5 if scaling is None else scaling, softcap or 0.0, dropout,
    )  # fmt: skip
    return out, None


def _unmasked(*, causal: bool, window: int | None) -> Mask:
    """Return the mask of a call without a tensor for it."""
    if window:
        return Mask("window" if causal else "around", int(window))
    return CAUSAL if causal else FULL
