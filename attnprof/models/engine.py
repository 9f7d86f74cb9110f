"""The engine's view of a model of transformers, and that by definition.

Transformers' Python computes attention with masks in memory, over all pairs, and recurrent layers
by loops. Here the model asks transformers' registries for our kernel (:mod:`.engine_kernel`) and
our mask, which takes no memory and says which pairs it leaves; recurrences run as kernels, too
(:mod:`.engine_recurrence`). The definition's view has the same operations, counted as formulas of
papers count them: without tiles, chunks, absorbed weights or recomputation. Entry point:
:func:`seen_as`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from attnprof.errors import RequestError
from attnprof.models.attention_calls import MASKS, noted, set_kernel, small_mask, unmasked
from attnprof.models.engine_cache import in_place
from attnprof.models.engine_latent import absorb, absorbed
from attnprof.models.engine_mixers import notes, recurrent, unrecognised
from attnprof.models.engine_recurrence import as_kernels, fallbacks, fuse_lightning
from attnprof.models.flops_terms import FULL, Mask
from attnprof.models.whole import WholeModel

#: The names of our kernel in transformers' registries, and the forms of recurrences, by view.
KERNELS = {"engine": "attnprof_fused", "definition": "attnprof_definition"}
FORMS = {"engine": "chunkwise", "definition": "recurrent"}


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
    return engine_subject(subject, view or "engine")


def engine_subject(subject: WholeModel, view: str = "engine") -> WholeModel:
    """Return a model of transformers as engines run it; as torch does, noted, if it cannot be.

    With the view ``definition`` it is counted by the definition of its layers.
    """
    import torch

    seen = replace(subject, build=partial(_built, subject.build, view), view=view)
    try:
        with torch.device("meta"):
            model = subject.build()
    except Exception:  # noqa: BLE001 - its first run says what is wrong
        return seen
    mixers = tuple(recurrent(model))
    if not (_asks_registry(model) or (mixers and not unrecognised(model))):
        note = "its attention asks no registry for a kernel: it is counted as torch runs it"
        return replace(subject, notes=(*subject.notes, note))
    usual = getattr(model.config, "_attn_implementation", None) or ""
    more = (*subject.notes, *notes(model, view))
    return replace(seen, notes=more, usual_kernel=usual, fallbacks=mixers)


def _asks_registry(model: Any) -> bool:
    """Return whether a model declares that its attention goes through the registry."""
    parts = [x for x in model.modules() if hasattr(x, "_supports_attention_backend")]
    return all(x._supports_attention_backend for x in parts)  # noqa: SLF001 - transformers' flag


def _built(build: Callable[[], Any], view: str) -> Any:
    """Build a model whose attention and recurrences are our kernels."""
    _register()
    model = build()
    set_kernel(model, KERNELS[view])
    if view == "engine":
        absorb(model)
    fuse_lightning(model, FORMS[view])
    running, files = ExitStack(), fallbacks(model)
    model.register_forward_pre_hook(
        lambda *_: running.enter_context(_as_engines(files, FORMS[view]))
    )
    model.register_forward_hook(lambda *_: running.close(), always_call=True)
    return model


@contextmanager
def _as_engines(files: dict[str, list[str]], form: str) -> Iterator[None]:
    """Keep caches in place, kernels in the place of fallbacks, no masks of an earlier call."""
    MASKS.clear()
    with in_place(), as_kernels(files, form):
        yield
    MASKS.clear()


def _register() -> None:
    """Enter our kernel and our mask in transformers' registries."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    for view, name in KERNELS.items():
        AttentionInterface.register(name, partial(_attention, view=view))
        AttentionMaskInterface.register(name, small_mask)


def _attention(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any = None, *,
    scaling: float | None = None, dropout: float = 0.0, softcap: float | None = None,
    s_aux: Any = None, is_causal: bool | None = None, sliding_window: int | None = None,
    indices: Any = None, view: str = "engine", **_: Any,
) -> tuple[Any, None]:  # fmt: skip
    """Compute attention as transformers' kernels do: (b, h, n, d) each → (b, n, h, d)."""
    from attnprof.models.engine_kernel import fused_attention

    start, first, bias = key.shape[2] - query.shape[2], 0, attention_mask
    if (known := noted(bias)) is not None:
        (mask, start, first), bias = known, None
    elif bias is not None:
        mask = FULL  # any mask that the model made of numbers
    else:
        mask = unmasked(module, query, key, is_causal, sliding_window)
    of_latents = absorbed(module, query, bias, scaling, indices)
    if of_latents is not None:
        return of_latents, None
    if indices is not None:  # as many keys as an indexer picks, of those before a query
        mask, bias = Mask("window", indices.shape[-1]), None
    out, _ = fused_attention(
        query, key, value, s_aux, bias, mask.kind, mask.size, start, first,
        query.shape[-1] ** -0.5 if scaling is None else scaling, softcap or 0.0, dropout,
        view == "definition",
    )  # fmt: skip
    return out, None
