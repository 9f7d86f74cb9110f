"""Memory of a model: the cache, a training step, tensors of a peak.

The cache after a prompt is counted by kind of layer, as numbers and as formulas
(:func:`cache_bytes`). A training step holds weights, gradients, optimizer and activations
(:func:`training_memory`). :func:`peak_fields` names the largest tensors at a peak.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

from attnprof.algebra.values import chosen, evaluate
from attnprof.errors import AttnprofError
from attnprof.models.forms import Model, ModelForms
from attnprof.models.parts import above
from attnprof.models.whole import WholeModel
from attnprof.models.wrappers import OptimizerStep
from attnprof.record import ModelRecord
from attnprof.trace.events import Call, Trace, added, peak, unnumbered
from attnprof.trace.report.records import text
from attnprof.trace.request.target import Sizes, Target, hints_for, sizes_text
from attnprof.trace.run.limits import Shares, TooLongError, is_patient
from attnprof.trace.run.runs import record
from attnprof.trace.run.worlds import fake_world
from attnprof.trace.sizes import live_bytes
from attnprof.trace.solve.count import count
from attnprof.trace.solve.derive import derived
from attnprof.trace.solve.symbolic import run_symbolically
from attnprof.trace.solve.verification import NoFormulaError


@dataclass(frozen=True)
class CacheForms:
    """Formulas for bytes of the cache by layer, and where they hold; empty if unknown.

    ``whole`` is the formula of all layers. ``layers`` are the values of symbols for numbers of
    layers, ``missing`` why there are no formulas.
    """

    by_layer: Mapping[str, Any] = field(default_factory=dict)
    layers: Mapping[str, int] = field(default_factory=dict)
    domain: tuple[str, ...] = ()
    holds: Callable[[Sizes], bool] = field(default=lambda _: False, compare=False, repr=False)
    missing: str = ""
    whole: Any = None


def _cache_row(kind: str, count: int, expression: Any, value: int) -> ModelRecord:
    """Return a row of the cache's bytes in ``count`` layers of a kind, "" for the whole cache."""
    return ModelRecord(
        part="attention" if kind else "total", layer_kind=kind, count=count, phase="decode",
        quantity="cache_bytes", expression=text(expression), value=value,
    )  # fmt: skip


def cache_bytes(
    subject: WholeModel, sizes: Mapping[str, int], model: Model | None, shares: Shares
) -> tuple[list[ModelRecord], CacheForms]:
    """Return rows of the cache's bytes after N tokens, by kind of layer and whole; and formulas.

    If layers repeat, and layers of a kind are alike, only the first few are run. Formulas get up to
    two of the ``shares`` of time.
    """
    if model and model.sample and (result := _rows_by_few_layers(subject, sizes, model, shares)):
        return result
    numbers, forms = _bytes_and_formulas(subject.cache(), sizes, shares)
    formulas = forms.by_layer
    groups = defaultdict[Any, list[str]](list)
    for layer, value in numbers.items():
        groups[value, formulas.get(layer)].append(layer)
    rows = []
    for (value, _), layers in groups.items():
        whole = added([formulas[layer] for layer in layers]) if formulas else None
        rows.append(_cache_row(_name(layers, subject), len(layers), whole, value * len(layers)))
    whole = added(list(formulas.values())) if formulas else None
    return [*rows, _cache_row("", 1, whole, sum(numbers.values()))], replace(forms, whole=whole)


def _rows_by_few_layers(
    subject: WholeModel, sizes: Mapping[str, int], model: Model, shares: Shares
) -> tuple[list[ModelRecord], CacheForms] | None:
    """Return rows and formulas from a decoder's first layers; None if later layers may differ."""
    sample: Any = model.sample
    stack = sample.stacks[-1]
    numbers, forms = _bytes_and_formulas(model.few(subject).cache(), sizes, shares)
    formulas, sampled = forms.by_layer, [f"layers.{n}" for n in range(stack.sampled)]
    caches = [(numbers.get(layer, 0), formulas.get(layer, 0)) for layer in sampled]
    of_kind = dict(zip(stack.kinds, caches, strict=False))
    beyond = numbers.keys() - {*sampled}  # of layers that were cut off
    filled = [x for x in beyond if x not in formulas or hasattr(formulas[x], "free_symbols")]
    if filled or caches != [of_kind[kind] for kind in stack.kinds[: len(caches)]]:
        return None

    def row(name: str, kinds: Sequence[int]) -> ModelRecord:
        layers = [kind for kind in stack.kinds if kind in kinds]
        each = {(stack, n): x for n, (_, x) in enumerate(caches) if stack.kinds[n] in kinds}
        whole = sample.in_layers(each) if formulas else None
        value = sum(of_kind[kind][0] for kind in layers)
        return _cache_row(name, len(layers) if name else 1, whole, value)

    by_name = defaultdict[str, list[int]](list)
    for kind, (number, _) in of_kind.items():
        if number:
            by_name[model.kinds[kind].name].append(kind)
    if not by_name:
        return None
    rows = [*(row(name, kinds) for name, kinds in by_name.items()), row("", stack.kinds)]
    total = sample.in_layers({(stack, n): x[1] for n, x in enumerate(caches)}) if formulas else None
    shown = {str(x) for x in getattr(total, "free_symbols", ())}
    layers = {name: number for name, number in sample.layers.items() if name in shown}
    domain = (*forms.domain, *sample.domain(layers))
    return rows, replace(forms, whole=total, layers=layers, domain=domain)


def _bytes_and_formulas(
    target: Target, sizes: Mapping[str, int], shares: Shares
) -> tuple[dict[str, Any], CacheForms]:
    """Return bytes by layer, and formulas that further runs confirm, or none with the reason."""
    target_sizes = {name: sizes[name] for name in target.symbols}
    numbers = _bytes_by_layer(count(target, target_sizes, "forward"))
    near = {name: size for name, size in target_sizes.items() if size > 1}
    with shares.next() as share:
        if not share:
            return numbers, CacheForms(missing=shares.late(share))
        try:
            return numbers, _symbolic_forms(target, near) or _searched_forms(target, near)
        except (NoFormulaError, AttnprofError, TooLongError) as error:
            why = str(error) if is_patient() else shares.late(share)
            return numbers, CacheForms(missing=why)


def _symbolic_forms(target: Target, near: Mapping[str, int]) -> CacheForms | None:
    """Return the formulas of one symbolic run, or None if no other shape is in its domain."""
    try:
        run = run_symbolically(target, hints_for(target.symbols, near), ("forward",))
    except (NoFormulaError, AttnprofError):
        return None
    formulas = _bytes_by_layer(run.trace)
    others = ({name: near.get(name, 2) + more for name in target.symbols} for more in (1, 6))
    sizes = next(filter(run.holds, others), None)
    if sizes is None:
        return None
    numbers = _bytes_by_layer(count(target, sizes, "forward"))
    if {layer: evaluate(size, sizes) for layer, size in formulas.items()} != numbers:
        raise NoFormulaError(f"a run at {sizes_text(sizes)} holds something else")
    return CacheForms(formulas, {}, run.domain, run.holds)


def _searched_forms(target: Target, near: Mapping[str, int]) -> CacheForms:
    """Return formulas by the usual search; :class:`NoFormulaError` where it finds none."""
    forms = derived(target, ("forward",), near).phases["forward"]
    if forms.method == "counted":
        raise NoFormulaError("no way to one was found")
    if why := forms.formulas["peak_bytes"].withheld:
        raise NoFormulaError(why)
    return CacheForms(_bytes_by_layer(forms.trace), {}, forms.domain, forms.holds)


def _bytes_by_layer(trace: Trace) -> dict[str, Any]:
    """Return the bytes that a run allocates, by layer."""
    by_layer = defaultdict[str, list[Any]](list)
    for call in trace.calls:
        by_layer[call.module].append(call.takes)
    return {layer: added(sizes) for layer, sizes in by_layer.items() if layer}


def _name(layers: list[str], subject: WholeModel) -> str:
    """Return the type of layers if they share one, else ``layers 0-3``."""
    numbers = [int(layer.rpartition(".")[2]) for layer in layers]
    types = {subject.layer_types[n] for n in numbers if n < len(subject.layer_types)}
    return types.pop() if len(types) == 1 else f"layers {numbers[0]}-{numbers[-1]}"


#: Modules without gradients that a note names, at most.
_MOST_NAMED = 5


def training_memory(
    subject: WholeModel, few: WholeModel, trace: Trace, optimizer: str
) -> dict[str, int]:
    """Return the bytes of a training step, by part, and its peak.

    ``activations`` are kept from the forward pass for the backward pass. Weights without a gradient
    in this step have no state in the optimizer. The parts are not all held at once: ``peak`` is the
    most bytes held, with a step of the optimizer at the end. ``few`` is the same model, or one with
    some of its layers of every kind.
    """
    with fake_world(None, subject.dtype):
        model = subject.build()
        named = model.named_parameters()
        weights = [x for name, x in named if x.requires_grad and name not in trace.ungraded]
        weight_bytes = sum(x.nbytes for x in (*model.parameters(), *model.buffers()))
        gradients = sum(x.nbytes for x in weights)
    state, workspace = _optimizer(few, weights, optimizer, trace.ungraded)
    forward = [call for call in trace.calls if call.part == "forward"]
    activations = sum(call.takes - call.gives for call in forward)
    most = max(peak(trace, "train"), gradients + workspace)
    return {
        "parameters": weight_bytes, "gradients": gradients, "optimizer": state,
        "activations": activations, "peak": weight_bytes + state + most,
    }  # fmt: skip


def ungraded_note(subject: WholeModel, trace: Trace) -> Iterator[str]:
    """Yield a note on the weights that a training step gives no gradient, if there are any."""
    if not trace.ungraded:
        return
    named = dict(subject.on_meta.named_parameters())
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
    """Return the bytes of an optimizer's state, and the most that a step takes besides.

    A weight's state is measured on a weight of the same shape in a model of few layers.
    """
    if name == "none":
        return 0, 0
    import torch

    kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}[name]
    states = dict[Any, int]()

    def make(_sizes: Any) -> Any:
        step = OptimizerStep(few.build(), kind, ungraded)
        for weight in step.optimizer.param_groups[0]["params"]:
            state = step.optimizer.state.get(weight, {}).values()
            if weight.grad is not None:
                states[_shape(weight)] = sum(x.nbytes for x in state if isinstance(x, torch.Tensor))
        return step

    trace = record(Target(name, make, (), (), few.dtype), {}, training=False)
    return sum(states[_shape(weight)] for weight in weights), peak(trace, "forward")


def _shape(weights: Any) -> tuple[Any, ...]:
    return tuple(weights.shape), weights.dtype


#: The most kinds of tensors that are named, and the least share of a peak that each takes.
_MOST_TENSORS, _LEAST_SHARE = 3, 0.05


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
    """Return the branch of the peak's ``formula`` that holds at these sizes, and ``tensors``.

    ``tensors`` are the largest at the peak, each a table of :class:`HeldTensors`; without formulas,
    ``formula`` is None.
    """
    whole = None if forms is None else forms.whole.get("peak_bytes")
    at = {**sizes, **(forms.layers if forms else {})}
    branch = chosen(whole, at) if hasattr(whole, "free_symbols") else whole
    tensors = [vars(one) for one in largest_at_peak(trace, phase)]
    return {"formula": text(branch), "tensors": tensors}


def largest_at_peak(trace: Trace, phase: str) -> list[HeldTensors]:
    """Return the kinds of tensors that take most of a phase's peak, the largest first.

    Empty for a phase that replaces earlier memory, as a cache by a longer copy.
    """
    counts: Counter[Any] = Counter()
    for call, size, number in _live_at_peak(trace, phase):
        module = unnumbered(call.module.removeprefix("module").removeprefix("."))
        counts[module, call.op, call.part, call.dtype, tuple(call.shape), size] += number
    tensors = [
        HeldTensors(module, op, part, dtype, shape, number, number * size)
        for (module, op, part, dtype, shape, size), number in counts.items()
    ]
    tensors.sort(key=lambda one: -one.bytes)
    whole = sum(one.bytes for one in tensors)
    if whole > peak(trace, phase):  # a cache from before the phase was freed
        return []
    least = _LEAST_SHARE * whole
    return [one for one in tensors[:_MOST_TENSORS] if one.bytes >= least]


def _live_at_peak(trace: Trace, phase: str) -> Iterator[tuple[Call, int, int]]:
    """Yield calls with results alive at the peak, the bytes of a result, and how many there are.

    In a run that repeats the calls of a few layers, several storages have one number.
    """
    last, _ = max(live_bytes(trace, phase, {}), key=itemgetter(1), default=(-1, 0))
    live: dict[int, list[Any]] = {}
    for call in trace.calls[: last + 1]:
        for number in call.died:
            live[number][2] -= 1
        for number, size in call.born:
            live[number] = [call, size, 1 + (live[number][2] if number in live else 0)]
    return ((call, size, count) for call, size, count in live.values() if count)
