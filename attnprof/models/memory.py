"""Memory of a model: a training step's, and what a decoding step has to read.

A training step holds weights, gradients, optimizer and activations. A decoding step reads shared
weights, and those of experts that it meets.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import ceil
from typing import Any

from attnprof.models.whole import WholeModel
from attnprof.models.wrappers import OptimizerStep
from attnprof.trace.events import Trace, peak, unnumbered
from attnprof.trace.request.target import Target
from attnprof.trace.run.runs import record
from attnprof.trace.run.worlds import fake_world

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
    import torch

    with torch.device("meta"):
        named = dict(subject.build().named_parameters())
    met = {path for name in named.keys() - trace.ungraded for path in _paths(name)}
    out = [name for name in named if name in trace.ungraded]
    tops = list(dict.fromkeys(next(x for x in _paths(name) if x not in met) for name in out))
    yield (
        f"{sum(named[name].numel() for name in out):,} parameters get no gradient in this training "
        "step, and so no state in the optimizer: those of "
        f"{', '.join(tops[:_MOST_NAMED])}{', …' if len(tops) > _MOST_NAMED else ''}"
    )


def _paths(name: str) -> Iterator[str]:
    """Yield the modules that a parameter is inside of, the outermost first, then its own name."""
    return accumulate(name.split("."), "{}.{}".format)


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
    read = [one for name, one in held.items() if _is_read(unnumbered(name), ran)]
    met = 1 - (1 - Fraction(chosen, experts)) ** tokens
    return sum(one.shared for one in read) + ceil(sum(one.routed for one in read) * met)


def _is_read(name: str, ran: set[str]) -> bool:
    """Return whether a module ran, or the one that holds it, which may use its weights itself."""
    return name in ran or name.rpartition(".")[0] in ran
