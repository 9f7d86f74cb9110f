"""What a model holds: a training step in parts, and the cache after a prompt."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from attnprof.errors import AttnprofError
from attnprof.models.whole import WholeModel
from attnprof.models.wrappers import OptimizerStep
from attnprof.trace.events import Trace, added, peak
from attnprof.trace.report.records import text
from attnprof.trace.request.target import Target, hints_for
from attnprof.trace.run.runs import record
from attnprof.trace.run.worlds import fake_world
from attnprof.trace.sizes import evaluate
from attnprof.trace.solve.budget import NoFormulaError
from attnprof.trace.solve.count import count
from attnprof.trace.solve.derive import derived
from attnprof.trace.solve.symbolic import run_symbolically


def training_memory(subject: WholeModel, trace: Trace, optimizer: str) -> dict[str, int]:
    """Bytes of a training step: what stays (weights, optimizer), and the most held beside it.

    ``activations`` is what the forward pass leaves for the backward pass, ``gradients`` those of
    all weights. They are not all held at once: ``peak`` is the most that is, with a step of the
    optimizer at the end.
    """
    with fake_world(None, subject.dtype):
        model = subject.build()
        weights = [x for x in model.parameters() if x.requires_grad]
        held = sum(x.nbytes for x in (*model.parameters(), *model.buffers()))
        gradients = sum(x.nbytes for x in weights)
        state, beside = _optimizer(subject, optimizer)
    forward = [call for call in trace.calls if call.part == "forward"]
    activations = sum(call.takes - call.gives for call in forward)
    most = max(peak(trace, "train"), gradients + beside)
    return {
        "parameters": held, "gradients": gradients, "optimizer": state,
        "activations": activations, "peak": held + state + most,
    }  # fmt: skip


def _optimizer(subject: WholeModel, name: str) -> tuple[int, int]:
    """Bytes of an optimizer's state, and the most that a step takes beside it."""
    if name == "none":
        return 0, 0
    import torch

    kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}[name]
    states = list[Any]()

    def make(_sizes: Any) -> Any:
        step = OptimizerStep(subject.build(), kind)
        states.extend(x for own in step.optimizer.state.values() for x in own.values())
        return step

    ran = record(Target(name, make, (), (), subject.dtype), {}, training=False)
    return sum(x.nbytes for x in states if hasattr(x, "nbytes")), peak(ran, "forward")


def cache_bytes(
    subject: WholeModel, sizes: Mapping[str, int]
) -> tuple[list[tuple[str, int, str | None, int]], tuple[str, ...]]:
    """Bytes of the cache after N tokens: by kind of layer (name, how many), then the whole.

    Each as a formula's text, or None where there is none, and as the number at the sizes; then
    where the formulas hold.
    """
    target = subject.cache()
    asked = {name: sizes[name] for name in target.symbols}
    numbers = _by_layer(count(target, asked, "forward"))
    formulas, domain = _formulas(target, {name: size for name, size in asked.items() if size > 1})
    groups = defaultdict[Any, list[str]](list)
    for layer, value in numbers.items():
        groups[value, text(formulas.get(layer))].append(layer)
    rows = []
    for (value, _), layers in groups.items():
        whole = added([formulas[layer] for layer in layers]) if formulas else None
        rows.append((_name(layers, subject), len(layers), text(whole), value * len(layers)))
    whole = added(list(formulas.values())) if formulas else None
    return [*rows, ("", 1, text(whole), sum(numbers.values()))], domain


def _formulas(target: Target, near: Mapping[str, int]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Bytes by layer as formulas that further runs confirm, and where they hold; or nothing."""
    try:
        found = run_symbolically(target, hints_for(target.symbols, near), ("forward",))
    except (NoFormulaError, AttnprofError):
        return _derived(target, near)
    formulas = _by_layer(found.trace)
    others = ({name: near.get(name, 2) + more for name in target.symbols} for more in (1, 6))
    inside = list(filter(found.holds, others))
    if not inside:
        return _derived(target, near)
    for sizes in inside:
        numbers = _by_layer(count(target, sizes, "forward"))
        if {layer: evaluate(size, sizes) for layer, size in formulas.items()} != numbers:
            return {}, ()
    return formulas, found.domain


def _derived(target: Target, near: Mapping[str, int]) -> tuple[dict[str, Any], tuple[str, ...]]:
    try:
        forms = derived(target, ("forward",), near).phases["forward"]
    except AttnprofError:
        return {}, ()
    is_known = forms.method != "counted" and not forms.formulas["peak_bytes"].withheld
    return (_by_layer(forms.trace), forms.domain) if is_known else ({}, ())


def _by_layer(trace: Trace) -> dict[str, Any]:
    found = defaultdict[str, list[Any]](list)
    for call in trace.calls:
        found[call.module].append(call.takes)
    return {layer: added(sizes) for layer, sizes in found.items() if layer}


def _name(layers: list[str], subject: WholeModel) -> str:
    numbers = [int(layer.rpartition(".")[2]) for layer in layers]
    types = {subject.layer_types[n] for n in numbers if n < len(subject.layer_types)}
    return types.pop() if len(types) == 1 else f"layers {numbers[0]}-{numbers[-1]}"
