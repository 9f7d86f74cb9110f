"""Closed forms of a model of many layers, from formulas of the model with its first few layers.

A cost is a sum over layers, so those of a few layers give it for any number of them
(:mod:`.stacks`). A peak is composed from their operations (:mod:`.few_layers`). Runs of all layers
confirm the result. :class:`SampledPhase` is the entry point.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnprof.algebra.expressions import symbol
from attnprof.algebra.values import evaluate
from attnprof.models.borders import derived_near, extended
from attnprof.models.costs import (
    HeldWeights,
    LayerKind,
    all_layer_places,
    by_kind,
    by_part,
    held_weights,
    kind_of_layer,
    place_of,
)
from attnprof.models.few_layers import (
    StackCalls,
    calls_by_stack,
    layer_walk,
    layers_by_path,
    stitched_peak,
)
from attnprof.models.parts import PARTS, ModulePlace, places
from attnprof.models.stacks import (
    Layer,
    LayerStack,
    Lengths,
    SampledLayers,
    sample_of,
    shortened,
    stacks_of,
)
from attnprof.models.whole import WholeModel
from attnprof.trace.events import QUANTITIES, Trace, added, left_out, peak
from attnprof.trace.report.derivation import PhaseForms
from attnprof.trace.request.target import Sizes, Target, sizes_text
from attnprof.trace.solve.count import counted
from attnprof.trace.solve.symbolic import SymbolicRun

#: Costs by kind of layer and part, by quantity.
Parts = Mapping[tuple[LayerKind, str], Mapping[str, Any]]


@dataclass(frozen=True)
class ModelForms:
    """A phase of a model in closed form: by kind of layer and part, and of the whole.

    The formulas are in B, N and symbols for numbers of layers, whose values are ``layers``.
    ``whole`` lacks withheld quantities, which ``notes`` name. The other fields are as in
    :class:`PhaseForms`.
    """

    method: str
    parts: Parts
    whole: Mapping[str, Any]
    domain: tuple[str, ...] = ()
    verified_at: tuple[Mapping[str, int], ...] = ()
    uncounted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    layers: Mapping[str, int] = field(default_factory=dict)
    holds: Callable[[Sizes], bool] = field(default=lambda _: True, compare=False, repr=False)


@dataclass(frozen=True)
class Model:
    """A built model: its modules' places (layer and part), its kinds of layers, its parameters.

    ``resting``: parameters of experts that a token skips, by kind of layer and part. ``weights``:
    weights by module. ``sample``: layers that stand for all, None if too few repeat.
    """

    places: Mapping[str, ModulePlace]
    kinds: Sequence[LayerKind]
    parameters: int
    resting: Mapping[tuple[LayerKind, str], int]
    weights: Mapping[str, HeldWeights] = field(repr=False)
    sample: SampledLayers | None = field(repr=False)
    _cut: dict[Any, WholeModel] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, subject: WholeModel, traces: Sequence[Trace]) -> "Model":
        """Return a built subject; layers of equal costs in these runs are of one kind."""
        model = subject.on_meta
        where = places(model)
        entries = sum(weights.numel() for weights in model.parameters())
        kinds = by_kind(model, where, traces, subject.layer_types)
        of_layer = kind_of_layer(kinds)
        weights_of, routed = held_weights(model, subject.experts), Counter[tuple[LayerKind, str]]()
        for name, weights in weights_of.items():
            routed[of_layer[where[name].layer], where[name].part] += weights.routed
        left = subject.experts - subject.chosen
        resting = {key: number * left // subject.experts for key, number in routed.items()}
        return cls(where, kinds, entries, resting, weights_of, sample_of(stacks_of(model, kinds)))

    @property
    def layers(self) -> Mapping[str, int]:
        """The number of layers of each kind, by its name."""
        return Counter(kind.name for kind in self.kinds for _ in kind.layers)

    @property
    def active(self) -> int:
        """Parameters that one token is multiplied with."""
        return self.parameters - sum(self.resting.values())

    def few(self, subject: WholeModel) -> WholeModel:
        """Return the subject with its sampled layers alone, if they stand for all."""
        return subject if self.sample is None else self.cut_to(subject, self.sample.lengths)

    def cut_to(self, subject: WholeModel, lengths: Lengths) -> WholeModel:
        """Return the subject with so many layers, remembered with its model and prompts."""
        key = subject.logits, *lengths.items()
        if key not in self._cut:
            self._cut[key] = shortened(subject, lengths)
        return self._cut[key]


def forms_of_all_layers(forms: PhaseForms, places: Any, kinds: Sequence[LayerKind]) -> ModelForms:
    """Return the forms of a phase that was derived with all layers."""
    closed = {name: formula.expression for name, formula in forms.formulas.items()}
    whole = {name: expression for name, expression in closed.items() if expression is not None}
    all_places = all_layer_places(forms.trace, places, kinds) if forms.method != "counted" else None
    costs = by_part(forms.trace, forms.phase, all_places, kinds) if all_places is not None else {}
    parts = {key: {q: x for q, x in values.items() if q in whole} for key, values in costs.items()}
    how = forms.domain, forms.verified_at, forms.uncounted, forms.notes
    return ModelForms(forms.method, parts, whole, *how, holds=forms.holds)


def at_layers(expression: Any, layers: Mapping[str, int]) -> Any:
    """Return an expression with numbers for the symbols of numbers of layers."""
    if not layers or not hasattr(expression, "subs"):
        return expression
    return expression.subs({symbol(x): n for x, n in layers.items()})


#: A note on peaks, if the calls of layers cannot be put in order.
_NO_PEAK = "no formula of peak memory: layers have loops, or do not run one after the other"


class UnlikeError(Exception):
    """Raised if layers beyond the first few cost something else than the first few."""


class SampledPhase:
    """A phase of a model whose layers repeat: its formulas follow from those of the first layers.

    ``target`` is that of the run of all layers, whose settings hold for fewer layers, too.
    """

    def __init__(self, model: Model, subject: WholeModel, phase: str, target: Target) -> None:
        assert model.sample is not None
        self.model, self.sample = model, model.sample
        self.subject, self.phase, self.target = subject, phase, target

    def forms(self, sizes: Mapping[str, int], run: Trace) -> ModelForms:
        """Return the closed forms of a phase that agree with ``run``, of all layers at ``sizes``.

        Raises :class:`UnlikeError` if it counts something else.
        """
        if self.target.mode.real:
            raise UnlikeError("it does something else on real tensors")
        few, one = self._target(self.sample.lengths), dict.fromkeys(self.sample.lengths, 1)
        forms, near, run_near = derived_near(
            few, self._target(one), self.phase, sizes, by_module=True
        )
        if forms.method == "counted":
            return forms_of_all_layers(forms, self.model.places, self.model.kinds)
        self._sum_up(forms)
        return self._verified(run, sizes, near, run_near)

    def _target(self, lengths: Lengths) -> Target:
        target = self.model.cut_to(self.subject, lengths).target(self.phase)
        return target.running(routed=self.target.mode.routed)

    def _counted(self, lengths: Lengths, sizes: Mapping[str, int]) -> Trace:
        """Return a run with so many layers at sizes."""
        return counted(self._target(lengths), sizes, self.phase, compare_real=False)[0]

    def _sum_up(self, forms: PhaseForms) -> None:
        """Make the formulas of all layers of those of the sampled ones."""
        self.derived, model, phase = forms, self.model, self.phase
        trace, stacks = forms.trace, self.sample.stacks
        pieces: Sequence[StackCalls] | None = None
        most: Any = None
        if forms.method == "symbolic":  # other methods keep no order of calls
            pieces = calls_by_stack(trace.calls, model.places, stacks, self.sample.lengths)
        if pieces is not None:
            walks = {x.path: layer_walk(x, self.sample.symbol_of_peak(x)) for x in stacks}
            most = stitched_peak(trace.calls, pieces, phase, walks)
        self.tables = self._costs_by_layer(trace, pieces)
        keys = [(kind, part) for kind in model.kinds for part in PARTS]
        self.parts = {key: costs for key in keys if (costs := self._in_layers(key))}
        each = self.parts.values()
        whole = {name: added([x[name] for x in each]) for name in next(iter(each), {})}
        whole |= {} if most is None else {"peak_bytes": most}
        withheld = {name for name in QUANTITIES if forms.formulas[name].withheld}
        self.whole = {name: whole[name] for name in QUANTITIES if name in whole.keys() - withheld}
        unknown = most is None and "peak_bytes" not in withheld
        self.notes = [*forms.notes, *([_NO_PEAK] if unknown else [])]

    def _costs_by_layer(
        self, trace: Trace, pieces: Sequence[StackCalls] | None
    ) -> dict[Layer, Parts]:
        """Return the costs in each sampled layer and in none, by kind of layer and part.

        Without ``pieces`` a call belongs to the layer of its module.
        """
        by_path = layers_by_path(self.sample.stacks, self.sample.lengths)
        traces = defaultdict[Layer, Trace](Trace)

        def trace_at(module: str) -> Trace:
            return traces[by_path.get(place_of(module, self.model.places).layer)]

        for name, entries in trace.modules.items():
            trace_at(name).modules[name] = entries
        for call in trace.calls if pieces is None else ():
            trace_at(call.module).calls.append(call)
        for piece in pieces or ():
            for number, inside in piece.by_number.items():
                layer = (piece.stack, number) if piece.stack else None
                traces[layer].calls += [trace.calls[n] for n in inside]
        places, kinds = self.model.places, self.model.kinds
        return {layer: by_part(x, self.phase, places, kinds) for layer, x in traces.items()}

    def _in_layers(self, key: tuple[LayerKind, str]) -> dict[str, Any]:
        """Return the quantities of a part in all layers of a kind; empty if there is none."""
        costs = {layer: table[key] for layer, table in self.tables.items() if key in table}
        return {
            quantity: self.sample.in_layers({layer: x[quantity] for layer, x in costs.items()})
            for quantity in next(iter(costs.values()), {})
        }

    def _verified(
        self, run: Trace, sizes: Mapping[str, int], near: Mapping[str, int],
        run_near: SymbolicRun | None,
    ) -> ModelForms:  # fmt: skip
        """Return the forms without those that a run contradicts, of all layers or of a few more.

        They were derived ``near`` the asked sizes; ``run_near`` is the symbolic run there.
        """
        forms = extended(self.derived, near, run_near, sizes, self._agrees)
        shape = min(self.derived.verified_at, key=lambda x: x.get("N", 0))
        longer, full = self.sample.longer, self.sample.full
        if longer:
            self._withhold(self._counted(longer, shape), shape, longer)
        if forms.holds(sizes):
            self._withhold(run, sizes, full)
        elif not longer:  # the asked sizes are another case, as a batch of one
            self._withhold(self._counted(full, shape), shape, full)
        domains, shapes = list(forms.domain), [dict(shape) for shape in self.derived.verified_at]
        layers = self.sample.layers
        if layers:
            domains += self.sample.domain(layers)
            shapes.append({**sizes, **layers})
            fixed = {self.sample.symbols.get(s.path): len(s) for s in self._fixed}
            numbers = ", ".join(f"{name} = {number}" for name, number in fixed.items() if name)
            peak_known = numbers and "peak_bytes" in self.whole
            self.notes += [f"the formula of peak memory is for {numbers}"] if peak_known else []
        parts = {key: {q: x for q, x in costs.items() if q in self.whole}
                 for key, costs in self.parts.items()}  # fmt: skip
        return ModelForms(
            self.derived.method, parts, self.whole, tuple(domains), tuple(shapes),
            left_out(run, self.phase), tuple(self.notes), layers, forms.holds,
        )  # fmt: skip

    def _agrees(self, sizes: Sizes) -> bool:
        """Return whether a run of all layers at these sizes contradicts nothing."""
        full = self.sample.full
        return not self._contradictions(self._counted(full, sizes), sizes, full)

    def _withhold(self, run: Trace, sizes: Mapping[str, int], lengths: Lengths) -> None:
        """Withhold peaks or bytes that a run contradicts; UnlikeError for other quantities."""
        at = {**sizes, **self.sample.numbers(lengths)}
        wrong = self._contradictions(run, sizes, lengths)
        if not wrong.keys() <= {"peak_bytes", "bytes_moved"}:
            raise UnlikeError(f"at {sizes_text(at)}: {next(iter(wrong.values()))}")
        for name, why in wrong.items():
            self.whole.pop(name, None)
            self.notes.append(f"no formula of {name.replace('_', ' ')}: at {sizes_text(at)} {why}")

    def _contradictions(self, run: Trace, sizes: Sizes, lengths: Lengths) -> dict[str, str]:
        """Return the quantities that a run with so many layers contradicts, and how."""
        counted = by_part(run, self.phase, self.model.places, self.model.kinds)
        times, wrong = self.sample.times(lengths), dict[str, str]()
        for key in {**self.parts, **counted}:
            for name in counted.get(key) or self.parts[key]:
                number = counted.get(key, {}).get(name, 0)
                ours = sum(
                    times[layer] * evaluate(table.get(key, {}).get(name, 0), sizes)
                    for layer, table in self.tables.items()
                )
                if ours != number:
                    wrong.setdefault(name, f"{name} of {key[1]} are {number}, not {ours}")
        has_peak = all(lengths[stack.path] == len(stack) for stack in self._fixed)
        if "peak_bytes" in self.whole and has_peak:
            at = {**sizes, **self.sample.numbers(lengths)}
            recorded, ours = peak(run, self.phase), evaluate(self.whole["peak_bytes"], at)
            if recorded != ours:
                wrong["peak_bytes"] = f"a run holds {recorded}, not {ours}"
        return wrong

    @property
    def _fixed(self) -> list[LayerStack]:
        """Stacks whose peak is known only for their own number of layers."""
        return [s for s in self.sample.stacks if self.sample.symbol_of_peak(s) is None]
