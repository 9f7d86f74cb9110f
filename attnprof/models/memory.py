"""Memory of a model: a training step's, what a decoding step reads, and what a peak consists of.

A training step holds weights, gradients, optimizer and activations. A decoding step reads shared
weights, and those of experts that it meets.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import ceil
from typing import Any

from attnprof.models.forms import ModelForms
from attnprof.models.parts import above
from attnprof.models.whole import WholeModel
from attnprof.models.wrappers import OptimizerStep
from attnprof.trace.events import Call, Trace, peak
from attnprof.trace.report.records import text
from attnprof.trace.request.target import Target
from attnprof.trace.run.runs import record
from attnprof.trace.run.worlds import fake_world
from attnprof.trace.sizes import chosen
from attnprof.trace.solve.columns import unnumbered

#: Modules without gradients that a note names, at most.
_MOST_NAMED = 5


def training_memory(
    subject: WholeModel, few: WholeModel, trace: Trace, optimizer: str
) -> dict[str, int]:
    """Return the bytes of a training step: what stays, and the most that is held at once.

    ``activations`` is what the forward pass leaves for the backward pass. Weights without a
    gradient in this step have no state in the optimizer. The parts are not all held at once:
    ``peak`` is the most that is, with a step of the optimizer at the end. ``few`` is the same
    model, or one with some of its layers of every kind.
    """
    with fake_world(None, subject.dtype):
        model = subject.build()
        named = model.named_parameters()
        weights = [x for name, x in named if x.requires_grad and name not in trace.ungraded]
        held = sum(x.nbytes for x in (*model.parameters(), *model.buffers()))
        gradients = sum(x.nbytes for x in weights)
    state, beside = _optimizer(few, weights, optimizer, trace.ungraded)
    forward = [call for call in trace.calls if call.part == "forward"]
    activations = sum(call.takes - call.gives for call in forward)
    most = max(peak(trace, "train"), gradients + beside)
    return {
        "parameters": held, "gradients": gradients, "optimizer": state,
        "activations": activations, "peak": held + state + most,
    }  # fmt: skip


def ungraded_note(subject: WholeModel, trace: Trace) -> Iterator[str]:
    """Yield which weights a training step gives no gradient, as those of a part it leaves out."""
    if not trace.ungraded:
        return
    named = dict(subject.on_meta().named_parameters())
    met = {path for name in named.keys() - trace.ungraded for path in above(name)}
    out = [name for name in named if name in trace.ungraded]
    tops = list(dict.fromkeys(next(x for x in above(name) if x not in met) for name in out))
    yield (
        f"{sum(named[name].numel() for name in out):,} parameters get no gradient in this training "
        "step, and so no state in the optimizer: those of "
        f"{', '.join(tops[:_MOST_NAMED])}{', …' if len(tops) > _MOST_NAMED else ''}"
    )


def _optimizer(
    few: WholeModel, weights: Sequence[Any], name: str, ungraded: frozenset[str]
) -> tuple[int, int]:
    """Return the bytes of an optimizer's state, and the most that a step takes beside it.

    Each weight's state is that of one of the same shape in a model of few layers, which steps.
    """
    if name == "none":
        return 0, 0
    import torch

    kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}[name]
    states = dict[Any, int]()

    def make(_sizes: Any) -> Any:
        step = OptimizerStep(few.build(), kind, ungraded)
        for weight in step.optimizer.param_groups[0]["params"]:
            held = step.optimizer.state.get(weight, {}).values()
            if weight.grad is not None:
                states[_shape(weight)] = sum(x.nbytes for x in held if isinstance(x, torch.Tensor))
        return step

    ran = record(Target(name, make, (), (), few.dtype), {}, training=False)
    return sum(states[_shape(weight)] for weight in weights), peak(ran, "forward")


def _shape(weights: Any) -> tuple[Any, ...]:
    return tuple(weights.shape), weights.dtype


@dataclass(frozen=True)
class HeldWeights:
    """Numbers of weights of a module: those every token meets, and those of routed experts."""

    shared: int = 0
    routed: int = 0


def is_routed(name: str, weights: Any, experts: int) -> bool:
    """Return whether a parameter is of experts that see some tokens each, by name or by slices."""
    sliced = weights.ndim == 3 and weights.shape[0] == experts > 1
    return ".experts." in f".{name}" or sliced


def held_weights(model: Any, experts: int) -> dict[str, HeldWeights]:
    """Return the weights of a model by the name of the module that reads them.

    Tables of embeddings, of which a token reads a row, are left out, unless a head shares them.
    """
    from torch.nn import Embedding

    seen, held = set[int](), dict[str, HeldWeights]()
    for name, module in model.named_modules():
        if isinstance(module, Embedding):
            continue
        sums = [0, 0]
        for parameter, weights in module.named_parameters(recurse=False):
            if id(weights) not in seen:
                sums[is_routed(f"{name}.{parameter}", weights, experts)] += weights.numel()
            seen.add(id(weights))
        if any(sums):
            held[name] = HeldWeights(*sums)
    return held


def weights_met(
    held: Mapping[str, HeldWeights], modules: Iterable[str], experts: int, chosen: int, tokens: int
) -> int:
    """Return how many weights ``tokens`` meet which run through ``modules``.

    Of routed experts those that tokens meet on average if each chooses ``chosen`` of ``experts``
    evenly: E (1 - (1 - k/E)^tokens), rounded up.
    """
    ran = {unnumbered(name.removeprefix("module").removeprefix(".")) for name in modules}
    # a module that holds another may use its weights itself
    read = [
        one for name, one in held.items()
        if {unnumbered(name), unnumbered(name).rpartition(".")[0]} & ran
    ]  # fmt: skip
    met = 1 - (1 - Fraction(chosen, experts)) ** tokens
    return sum(one.shared for one in read) + ceil(sum(one.routed for one in read) * met)


#: Kinds of tensors that are named.
_MOST_TENSORS = 3
#: The least share of a peak of a kind of tensors that is named.
_LEAST_SHARE = 0.05


@dataclass(frozen=True)
class HeldTensors:
    """Results of one operation of alike modules that are alive together: how many, and bytes."""

    module: str
    op: str
    part: str
    dtype: str
    shape: tuple[int, ...]
    count: int
    bytes: int


def peak_fields(
    trace: Trace, phase: str, forms: ModelForms | None, sizes: Mapping[str, int]
) -> dict[str, Any]:
    """Return the peak's ``formula`` at these sizes, its other branches left out, and ``tensors``.

    ``tensors`` are the largest held then, each a table of :class:`HeldTensors`; without formulas,
    ``formula`` is None.
    """
    whole = None if forms is None else forms.whole.get("peak_bytes")
    at = {**sizes, **(forms.layers if forms else {})}
    branch = chosen(whole, at) if hasattr(whole, "free_symbols") else whole
    held = [vars(one) for one in largest_at_peak(trace, phase)]
    return {"formula": text(branch), "tensors": held}


def largest_at_peak(trace: Trace, phase: str) -> list[HeldTensors]:
    """Return the kinds of tensors that take most of a phase's peak, the largest first.

    Empty for a phase that replaces what was there before, as a cache by a longer copy.
    """
    counts: Counter[Any] = Counter()
    for call, size, count in _live_at_peak(trace.calls, phase):
        module = unnumbered(call.module.removeprefix("module").removeprefix("."))
        counts[module, call.op, call.part, call.dtype, tuple(call.shape), size] += count
    held = [
        HeldTensors(module, op, part, dtype, shape, count, count * size)
        for (module, op, part, dtype, shape, size), count in counts.items()
    ]
    held.sort(key=lambda one: -one.bytes)
    whole = sum(one.bytes for one in held)
    if whole > peak(trace, phase):  # of a cache that was there before
        return []
    least = _LEAST_SHARE * whole
    return [one for one in held[:_MOST_TENSORS] if one.bytes >= least]


def _live_at_peak(calls: Sequence[Call], phase: str) -> Iterator[tuple[Call, int, int]]:
    """Yield the calls of which results are alive at the peak, with bytes of one and how many.

    A run that stands for all layers by its first few has several storages of one number.
    """
    counted = [call for call in calls if phase != "forward" or call.part == "forward"]
    held = list(accumulate(call.takes - call.gives for call in counted))
    most = [
        now + call.workspace if phase != "backward" or call.part == phase else 0
        for call, now in zip(counted, held, strict=True)
    ]
    last = max(range(len(most)), key=most.__getitem__, default=-1)
    live: dict[int, list[Any]] = {}
    for call in counted[: last + 1]:
        for number in call.died:
            live[number][2] -= 1
        for number, size in call.born:
            live[number] = [call, size, 1 + (live[number][2] if number in live else 0)]
    return ((call, size, count) for call, size, count in live.values() if count)
