"""How much another view of a model would count, and why, told without a run of it.

Kernels of the engine's view know what others count more for the same call: pairs that a mask hides,
scores computed again, the other form of a recurrence, a cache that is copied. :func:`difference`
adds that up for a phase. Attention of transformers that needs no mask of its own (sdpa's causal
flag) leaves hidden pairs out, too.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from attnprof.models.engine_latent import saved_flops
from attnprof.models.whole import WholeModel
from attnprof.trace.events import Trace, totals
from attnprof.trace.rules.units import COPIED, DENSE, DENSE_CAUSAL, OTHER_FORM

#: What is worth a sentence: a tenth more or less.
_APART = 0.1


def difference(subject: WholeModel, trace: Trace, phase: str, sizes: Mapping[str, int]) -> str:
    """Return how a phase's answer differs by more than a tenth in other views, and why; or ""."""
    if subject.view == "torch":
        return ""
    return "; ".join(_sentences(subject, trace, phase, sizes))


def _sentences(
    subject: WholeModel, trace: Trace, phase: str, sizes: Mapping[str, int]
) -> Iterator[str]:
    calls = list(trace.part(phase))
    more = {
        name: sum(call.counts.get(name, 0) for call in calls)
        for name in (DENSE, DENSE_CAUSAL, OTHER_FORM, COPIED)
    }
    whole = totals(trace, phase)
    dense = more[DENSE] + more[DENSE_CAUSAL] * (subject.usual_kernel != "sdpa")
    absorbed = _absorbed(subject, phase, sizes)
    by_definition = subject.view == "definition"
    # what is expanded, absorbed or in another form tells the two views without masks apart
    form = more[OTHER_FORM] + (-absorbed if by_definition else absorbed)
    other = "engine" if by_definition else "definition"
    if ratio := _ratio(whole["flops"], form):
        yield f"--as {other} counts {ratio} the FLOPs: {_why(subject, phase, absorbed)}"
    if by_definition:
        return
    fallback = f", and at least that for the fallback of {', '.join(subject.fallbacks)}"
    if ratio := _ratio(whole["flops"], dense + absorbed):
        reasons = ["scores of pairs that masks hide"] * bool(dense)
        reasons += ["keys and values expanded from latents at every token"] * bool(absorbed)
        also = fallback * bool(subject.fallbacks)
        yield f"--as torch counts about {ratio} the FLOPs: {' and '.join(reasons)}{also}"
    if ratio := _ratio(whole["bytes_moved"], 2 * more[COPIED]):
        yield f"--as torch moves at least {ratio} the bytes: it copies the cache at every token"


def _absorbed(subject: WholeModel, phase: str, sizes: Mapping[str, int]) -> int:
    """Return the FLOPs that absorbed latent attention saves a decoded token."""
    import torch

    if phase != "decode" or "N" not in sizes:
        return 0
    with torch.device("meta"):
        return int(saved_flops(subject.build(), sizes.get("B", 1), sizes["N"]))


def _ratio(whole: Any, more: Any) -> str:
    """Return how many times the whole it is with ``more``, like 2.3x; "" within a tenth."""
    if not whole or abs(more) <= _APART * whole:
        return ""
    return f"{(whole + more) / whole:.3g}x"


def _why(subject: WholeModel, phase: str, absorbed: int) -> str:
    """Return why the definition and kernels count differently in a phase."""
    if phase == "decode":
        return "its latents are expanded or absorbed" if absorbed else "its softmax has no maximum"
    reasons = ["recurrences step by step or in chunks"] * bool(subject.fallbacks)
    reasons += ["scores kept or computed again"] * (phase in {"train", "backward"})
    return " and ".join(reasons) or "softmax with or without a maximum"
