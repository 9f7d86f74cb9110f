"""Views of a model of transformers: as engines run it, by definition, and how their counts differ.

Transformers' Python computes attention with masks in memory, over all pairs, and recurrent layers
by loops. In the engine's view the model finds in transformers' registries our kernel
(:mod:`.engine_kernels`) and our mask, which takes no memory and says which pairs it leaves;
recurrences run as kernels, too (:mod:`.engine_recurrence`). The definition's view has the same
operations, counted as formulas of papers count them: without tiles, chunks, absorbed weights or
recomputation. Entry points: :func:`seen_as`, and :func:`difference`, which says without a run how
much another view would count.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any

from attnprof.errors import RequestError
from attnprof.models import text_run
from attnprof.models.conventions import FULL, Mask
from attnprof.models.engine_cache import (
    absorb,
    absorbed,
    in_place,
    latent_note,
    repeated_note,
    saved_flops,
)
from attnprof.models.engine_recurrence import (
    as_kernels,
    fallbacks,
    fuse_lightning,
    recurrence_note,
    runs_kernels,
)
from attnprof.models.hub_config import text_config
from attnprof.models.parts import layers_of, mixers, places
from attnprof.models.whole import WholeModel
from attnprof.trace.events import Trace, totals
from attnprof.trace.rules.units import COPIED, DENSE, DENSE_CAUSAL, OTHER_FORM

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
    name = "with --swap it" if swaps else "" if subject.of_hub else subject.name
    if name:
        note = f"{name} is counted as torch runs it: --as {view} is for models of transformers"
        return replace(subject, notes=(*subject.notes, note)) if view else subject
    return engine_subject(subject, view or "engine")


def engine_subject(subject: WholeModel, view: str = "engine") -> WholeModel:
    """Return a model of transformers in a view, ``engine`` or ``definition``.

    One whose attention cannot be replaced stays as torch runs it, with a note.
    """
    _register()  # here, as what a run registers is undone after it
    viewed = replace(subject, build=partial(_built, subject.build, view), view=view)
    try:
        model = subject.on_meta
    except Exception:  # noqa: BLE001 - its first run raises it again
        return viewed
    recurrent, others = mixer_classes(model)
    parts = [x for x in model.modules() if hasattr(x, "_supports_attention_backend")]
    asks = all(x._supports_attention_backend for x in parts)  # noqa: SLF001 - transformers' flag
    if not (asks or (recurrent and not others)):
        lines = (
            "its attention asks no registry for a kernel: it is counted as torch runs it",
            repeated_note(text_config(model.config)),
        )
        return replace(subject, notes=(*subject.notes, *filter(None, lines)))
    usual = getattr(model.config, "_attn_implementation", None) or ""
    more = (*subject.notes, *notes(model, recurrent, others, view))
    return replace(viewed, notes=more, usual_kernel=usual, fallbacks=tuple(recurrent))


def _built(build: Callable[[], Any], view: str) -> Any:
    """Build a model whose attention and recurrences are our kernels."""
    model = build()
    text_run.set_kernel(model, KERNELS[view])
    if view == "engine":
        absorb(model)
    fuse_lightning(model, FORMS[view])
    running, files = ExitStack(), fallbacks(model)
    model.register_forward_pre_hook(
        lambda *_: running.enter_context(_as_in_engines(files, FORMS[view]))
    )
    model.register_forward_hook(lambda *_: running.close(), always_call=True)
    return model


@contextmanager
def _as_in_engines(files: dict[str, list[str]], form: str) -> Iterator[None]:
    """Run with caches in place, kernels instead of fallbacks, and no masks of an earlier call."""
    text_run.MASKS.clear()
    with in_place(), as_kernels(files, form):
        yield
    text_run.MASKS.clear()


def _register() -> None:
    """Enter our kernel and our mask in transformers' registries."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    for view, name in KERNELS.items():
        AttentionInterface.register(name, partial(_attention, view=view))
        AttentionMaskInterface.register(name, text_run.small_mask)


def _attention(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any = None, *,
    scaling: float | None = None, dropout: float = 0.0, softcap: float | None = None,
    s_aux: Any = None, is_causal: bool | None = None, sliding_window: int | None = None,
    indices: Any = None, view: str = "engine", **_: Any,
) -> tuple[Any, None]:  # fmt: skip
    """Compute attention as transformers' kernels do: (b, h, n, d) each → (b, n, h, d)."""
    from attnprof.models.engine_kernels import fused_attention

    text_run.check_heads(query, key)
    start, first, bias = key.shape[2] - query.shape[2], 0, attention_mask
    if (small := text_run.noted(bias)) is not None:
        (mask, start, first), bias = small, None
    elif bias is not None:
        mask = FULL  # any mask that the model made of numbers
    else:
        mask = text_run.unmasked(module, query, key, is_causal, sliding_window)
    of_latents = absorbed(module, query, bias, scaling, indices)
    if of_latents is not None:
        return of_latents, None
    if indices is not None:  # an indexer picks so many keys before a query
        mask, bias = Mask("window", indices.shape[-1]), None
    out, _ = fused_attention(
        query, key, value, s_aux, bias, mask.kind, mask.size, start, first,
        query.shape[-1] ** -0.5 if scaling is None else scaling, softcap or 0.0, dropout,
        view == "definition",
    )  # fmt: skip
    return out, None


def mixer_classes(model: Any) -> tuple[list[str], list[str]]:
    """Return the classes of mixers that our recurrent kernels replace, and unsupported classes.

    An unsupported one neither runs our kernels nor asks transformers' registry for attention.
    """
    modules, where = dict(model.named_modules()), places(model)
    recurrent, others = dict[str, None](), dict[str, None]()
    for layer in layers_of(where):
        for path in mixers(modules, layer, where):
            code = "".join(map(_code, map(type, modules[path].modules())))
            name = type(modules[path]).__name__
            if runs_kernels(modules[path], code):
                recurrent[name] = None
            elif text_run.KERNEL_TABLE not in code:
                others[name] = None
    return list(recurrent), list(others)


@cache
def _code(kind: type) -> str:
    """Return the source of a class of transformers, "" of any other."""
    return inspect.getsource(kind) if kind.__module__.startswith("transformers.") else ""


def notes(
    model: Any, recurrent: Sequence[str], others: Sequence[str], view: str = "engine"
) -> list[str]:
    """Return notes on the modules that a view counts differently from torch, and on all others."""
    verb = "are" if len(others) > 1 else "is"
    lines = (
        latent_note(model) if view == "engine" else "",
        recurrence_note(model, recurrent, view),
        f"{', '.join(others)} {verb} counted as torch runs it, not as an engine's kernel does"
        if others else "",
        "bytes and peaks are those of a run with fused kernels: a definition has none"
        if view == "definition" else "",
    )  # fmt: skip
    return [*filter(None, lines)]


# -- how much another view would count ------------------------------------------------------
# The counts of a kernel's call include, under keys of their own, the FLOPs or bytes that other
# views add: hidden pairs, scores computed again, the other form of a recurrence, a copied cache.
# Transformers' sdpa computes no hidden pairs either, if the mask is causal.

#: The relative difference from which on another view is worth a sentence.
_APART = 0.1


def difference(subject: WholeModel, trace: Trace, phase: str, sizes: Mapping[str, int]) -> str:
    """Return how a phase's answer differs by more than a tenth in other views, and why; or ""."""
    return "" if subject.view == "torch" else "; ".join(_sentences(subject, trace, phase, sizes))


def _sentences(
    subject: WholeModel, trace: Trace, phase: str, sizes: Mapping[str, int]
) -> Iterator[str]:
    calls = list(trace.part(phase))
    more = {
        name: sum(call.counts.get(name, 0) for call in calls)
        for name in (DENSE, DENSE_CAUSAL, OTHER_FORM, COPIED)
    }
    whole = totals(trace, phase)
    by_definition = subject.view == "definition"
    absorbs = by_definition or any("latent_attention" in call.op for call in calls)
    expanded = 0
    if absorbs and phase == "decode" and "N" in sizes:
        expanded = int(saved_flops(subject.on_meta, sizes.get("B", 1), sizes["N"]))
    other_form = more[OTHER_FORM] + (-expanded if by_definition else expanded)
    if ratio := _ratio(whole["flops"], other_form):
        reason = _kernel_work(subject, phase, expanded)
        yield (
            f"--as engine counts {ratio} the FLOPs: {reason}" if by_definition
            else f"--as definition counts {ratio} the FLOPs, without what engines do: {reason}"
        )  # fmt: skip
    if by_definition:
        return
    dense = more[DENSE] + more[DENSE_CAUSAL] * (subject.usual_kernel != "sdpa")
    if ratio := _ratio(whole["flops"], dense + expanded):
        reasons = ["scores of pairs that masks hide"] * bool(dense)
        reasons += ["keys and values of all tokens made from latents again"] * bool(expanded)
        least = "at least" if subject.fallbacks else "about"
        yield f"--as torch counts {least} {ratio} the FLOPs: it computes {' and '.join(reasons)}"
    if ratio := _ratio(whole["bytes_moved"], 2 * more[COPIED]):
        yield f"--as torch moves at least {ratio} the bytes: it copies the cache at every token"


def _ratio(whole: Any, more: Any) -> str:
    """Return (whole + more) / whole as text, like 2.3x; "" within a tenth of 1."""
    if not whole or abs(more) <= _APART * whole:
        return ""
    return f"{(whole + more) / whole:.3g}x"


def _kernel_work(subject: WholeModel, phase: str, expanded: int) -> str:
    """Return the work of kernels in a phase that the definition does not have, in words."""
    if phase == "decode":
        return "latents absorbed" if expanded else "largest scores of softmax"
    reasons = ["recurrences in chunks"] * bool(subject.fallbacks)
    reasons += ["scores computed again"] * (phase in {"train", "backward"})
    return " and ".join(reasons) or "largest scores of softmax"
