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
    by_definition = subject.view == "definition"
    absorbs = by_definition or any("latent_attention" in call.op for call in calls)
    expanded = _expanded(subject, phase, sizes) if absorbs else 0
    if by_definition:
        if ratio := _ratio(whole["flops"], more[OTHER_FORM] - expanded):
            yield f"--as engine counts {ratio} the FLOPs: {_of_kernels(subject, phase, expanded)}"
        return
    if ratio := _ratio(whole["flops"], more[OTHER_FORM] + expanded):
        reason = _of_kernels(subject, phase, expanded)
        yield f"--as definition counts {ratio} the FLOPs, without what engines do: {reason}"
    dense = more[DENSE] + more[DENSE_CAUSAL] * (subject.usual_kernel != "sdpa")
    if ratio := _ratio(whole["flops"], dense + expanded):
        reasons = ["scores of pairs that masks hide"] * bool(dense)
        reasons += ["keys and values of all tokens made from latents again"] * bool(expanded)
        least = "at least" if subject.fallbacks else "about"
        yield f"--as torch counts {least} {ratio} the FLOPs: it computes {' and '.join(reasons)}"
    if ratio := _ratio(whole["bytes_moved"], 2 * more[COPIED]):
        yield f"--as torch moves at least {ratio} the bytes: it copies the cache at every token"


def _expanded(subject: WholeModel, phase: str, sizes: Mapping[str, int]) -> int:
    """Return the FLOPs that a decoded token takes more if latent attention is not absorbed."""
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


def _of_kernels(subject: WholeModel, phase: str, expanded: int) -> str:
    """Return what kernels do and the definition does not, as far as it counts in a phase."""
    if phase == "decode":
        return "latents absorbed" if expanded else "largest scores of softmax"
    reasons = ["recurrences in chunks"] * bool(subject.fallbacks)
    reasons += ["scores computed again"] * (phase in {"train", "backward"})
    return " and ".join(reasons) or "largest scores of softmax"
