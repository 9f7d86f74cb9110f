"""Closed forms of a model of many layers, from formulas of models with its first few layers.

A cost is a sum over layers by kind, so models with a few layers give it for any number of layers
(:mod:`.stacks`). A peak is composed from the operations of such models (:mod:`.few_layers`). Runs
of all layers confirm the result. :class:`Repeated` is the entry point.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from attnprof.algebra.expressions import symbol
from attnprof.models.borders import derived_near, extended, on_symbols
from attnprof.models.costs import LayerKind, all_layer_places, by_part, place_of
from attnprof.models.few_layers import layer_walk, min_layers, stitched_peak
from attnprof.models.parts import ModulePlace
from attnprof.models.stacks import LayerStack, Lengths, Samples, samples_of, shortened, stacks_of
from attnprof.models.whole import WholeModel
from attnprof.trace.events import QUANTITIES, Trace, added, left_out, peak
from attnprof.trace.report.derivation import PhaseForms
from attnprof.trace.request.target import Sizes, Target, sizes_text
from attnprof.trace.sizes import evaluate
from attnprof.trace.solve.count import counted
from attnprof.trace.solve.derive import derived
from attnprof.trace.solve.symbolic import SymbolicRun
from attnprof.trace.solve.verification import NoFormulaError

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
#: The number of shapes, about, at which formulas of fewer layers are compared with runs.
_CHECKED = 3


class UnlikeError(Exception):
    """Raised if layers beyond the first few cost something else than the first few."""


@dataclass
class Repeated:
    """A model whose layers repeat: the cost of all follows from models of its first ones."""

    subject: WholeModel
    places: Mapping[str, ModulePlace]
    kinds: Sequence[LayerKind]
    samples: Samples
    _routed: bool = False
    _shortened: dict[Any, WholeModel] = field(default_factory=dict)

    def for_subject(self, subject: WholeModel) -> "Repeated":
        """Return the repeated layers of the same model with other logits of its forward pass."""
        if subject.logits_of("forward") == self.subject.logits_of("forward"):
            return self
        return replace(self, subject=subject, _shortened={})

    def symbol_of_peak(self, stack: LayerStack) -> Any:
        """Return the symbol for a stack's number of layers in peaks, or None."""
        name = self.samples.symbols.get(stack.path)
        return symbol(name) if name and self._min_periods(name) else None

    def _min_periods(self, name: str) -> int:
        """Return the least periods after the sampled layers: 2 if the peak is known, else 0."""
        longest = self.samples.lengths[-1]
        stacks = self.samples.stacks_of(name)
        return 2 if all(s.period(max(s.start, longest[s.path] - 1)) for s in stacks) else 0

    def min_layers(self, stack: LayerStack) -> int:
        """Return the smallest number of a stack's layers for which formulas hold."""
        longest, name = self.samples.lengths[-1][stack.path], self.samples.symbols[stack.path]
        return min_layers(stack, longest, self._min_periods(name))

    def domain(self, symbols: Iterable[str]) -> Iterator[str]:
        """Yield the conditions on numbers of layers: ``L >= 4``, ``L mod 2 = 0``."""
        for name in symbols:
            stacks = self.samples.stacks_of(name)
            yield f"{name} >= {max(map(self.min_layers, stacks))}"
            for period in dict.fromkeys(stack.period(stack.start) for stack in stacks):
                if period > 1:
                    yield f"{name} mod {period} = {len(stacks[0]) % period}"

    def forms(self, phase: str, sizes: Mapping[str, int], run: Trace, ran: Target) -> ModelForms:
        """Return the closed forms of a phase that agree with ``run``, of all layers at ``sizes``.

        ``ran`` is the target of that run. Raises :class:`UnlikeError` if it counts something else.
        """
        *shorter, longest = self.samples.lengths
        if ran.mode.real:
            raise UnlikeError("it does something else on real tensors")
        self._routed = ran.mode.routed
        few = self._target(self.samples.lengths[0], phase)
        forms, near, run_near = derived_near(
            self._target(longest, phase), few, phase, sizes, by_module=True
        )
        if forms.method == "counted":
            return forms_of_all_layers(forms, self.places, self.kinds)
        domains = list(forms.domain)
        traces, shortest_run = list[Trace](), run_near
        for lengths in shorter:
            trace, domain = self._without_last(forms, lengths, near) or _sampled(
                self._target(lengths, phase), phase, near, forms, shortest_run
            )
            shortest_run = None
            traces.append(trace)
            domains += [condition for condition in domain if condition not in domains]
        sampled = _Sampled(self, phase, forms, [*traces, forms.trace])
        return sampled.verified(run, sizes, tuple(domains), near, run_near)

    def _without_last(
        self, forms: PhaseForms, lengths: Lengths, near: Sizes
    ) -> tuple[Trace, tuple[str, ...]] | None:
        """Return the formulas of the longest sample without its last layers, and their domain.

        None if one symbolic run gives them, as another such run is faster, and if a run with so
        many layers contradicts them in a part.
        """
        if forms.method == "symbolic":
            return None
        cut = {
            stack.layer(number)
            for stack in self.samples.stacks
            for number in range(lengths[stack.path], self.samples.lengths[-1][stack.path])
        }
        calls = [x for x in forms.trace.calls if place_of(x.module, self.places).layer not in cut]
        modules = {
            name: entries
            for name, entries in forms.trace.modules.items()
            if place_of(name, self.places).layer not in cut
        }
        trace = replace(
            forms.trace, calls=calls, modules=modules, parameters=added([*modules.values()])
        )
        parts = by_part(trace, forms.phase, self.places, self.kinds)
        seen = sorted(forms.verified_at, key=lambda sizes: sizes.get("N", 0))
        numbers = {**seen[0], **near}
        shapes = [
            *seen[:: max(1, len(seen) // _CHECKED)],
            *([numbers] * bool(forms.holds(numbers))),
        ]
        for sizes in shapes:
            run = self.counted(lengths, forms.phase, sizes)
            counted = by_part(run, forms.phase, self.places, self.kinds)
            ours = {
                key: {name: evaluate(x, sizes) for name, x in costs.items()}
                for key, costs in parts.items()
            }
            if ours != counted or run.routes != trace.routes:
                return None
        return trace, forms.domain

    def _target(self, lengths: Lengths, phase: str) -> Target:
        return self._cut_to(lengths).target(phase).running(routed=self._routed)

    def _cut_to(self, lengths: Lengths) -> WholeModel:
        """Return the subject with so many layers, remembered with its model and prompts."""
        key, made = tuple(lengths.items()), self._shortened
        return made.get(key) or made.setdefault(key, shortened(self.subject, lengths))

    @property
    def few(self) -> WholeModel:
        """The subject with its first layers alone, some of every kind."""
        return self._cut_to(self.samples.lengths[-1])

    def of_layers(self, stack: LayerStack, each: Mapping[int, Any]) -> Any:
        """Return the sum over a stack's layers of a quantity that is given by kind."""
        sampled = (stack.kinds[: lengths[stack.path]] for lengths in self.samples.lengths)
        sums = [added([each[kind] for kind in kinds if kind in each]) for kinds in sampled]
        return self.samples.summed(sums, by_layers=True)

    def counted(self, lengths: Lengths, phase: str, sizes: Mapping[str, int]) -> Trace:
        """Return a run with so many layers at sizes."""
        return counted(self._target(lengths, phase), sizes, phase, compare_real=False)[0]


def repeated(
    subject: WholeModel, model: Any, places: Any, kinds: Sequence[LayerKind]
) -> Repeated | None:
    """Return a subject's repeated layers; None if too few repeat. ``model`` is it, built."""
    samples = samples_of(stacks_of(model, kinds))
    return None if samples is None else Repeated(subject, places, kinds, samples)


def _sampled(
    target: Target, phase: str, near: Sizes, longest: PhaseForms, run: SymbolicRun | None
) -> tuple[Trace, tuple[str, ...]]:
    """Return a trace in symbols of a model with fewer layers, and the domain of its formulas.

    It is that of one symbolic run, if this was enough for the ``longest`` sample. ``run`` is that
    run, if it was made already.
    """
    if longest.method == "symbolic" and not longest.trace.routes:
        try:
            run = run or on_symbols(target, phase, near)
        except NoFormulaError:
            pass
        else:
            return run.trace, run.domain
    forms = derived(replace(target, step=target), (phase,), near).phases[phase]
    if forms.method == "counted":
        raise UnlikeError("fewer layers have no formulas")
    return forms.trace, forms.domain


class _Sampled:
    """Formulas of a phase of the whole model, made from its samples and compared with runs."""

    def __init__(
        self, model: Repeated, phase: str, forms: PhaseForms, traces: Sequence[Trace]
    ) -> None:
        self.model, self.phase, self.forms = model, phase, forms
        self.samples = model.samples
        self.tables: list[Parts] = [
            by_part(trace, phase, model.places, model.kinds) for trace in traces
        ]
        keys = dict.fromkeys(key for table in reversed(self.tables) for key in table)
        self.parts = {key: self._quantities(key) for key in keys}
        costs = self.parts.values()
        self.whole = {name: added([x[name] for x in costs]) for name in next(iter(costs), {})}
        if (most := self._peak(traces[-1])) is not None:
            self.whole["peak_bytes"] = most
        kept = [q for q in QUANTITIES if not forms.formulas[q].withheld and q in self.whole]
        self.whole = {name: self.whole[name] for name in kept}
        unknown = most is None and not forms.formulas["peak_bytes"].withheld
        self.notes = [*forms.notes, *([_NO_PEAK] if unknown else [])]

    def _quantities(self, key: tuple[LayerKind, str]) -> dict[str, Any]:
        names = next(table[key] for table in self.tables if key in table)
        sums = partial(self.samples.summed, by_layers=True)
        return {q: sums([table.get(key, {}).get(q, 0) for table in self.tables]) for q in names}

    def _peak(self, trace: Trace) -> Any:
        if self.forms.method != "symbolic":
            return None
        longest = self.samples.lengths[-1]
        longer = {
            stack.path: layer_walk(stack, longest[stack.path], self.model.symbol_of_peak(stack))
            for stack in self.samples.stacks
        }
        return stitched_peak(
            trace, self.phase, self.model.places, self.samples.stacks, longest, longer
        )

    def verified(
        self, run: Trace, sizes: Mapping[str, int], domain: tuple[str, ...],
        near: Mapping[str, int], run_near: SymbolicRun | None,
    ) -> ModelForms:  # fmt: skip
        """Return the forms without those that a run contradicts, of all layers or of a few more.

        They were derived ``near`` the asked sizes; ``run_near`` is the symbolic run there.
        """
        forms = replace(self.forms, domain=domain)
        forms = extended(forms, near, run_near, sizes, self._agrees)
        shape = min(self.forms.verified_at, key=lambda x: x.get("N", 0))
        more, full = list(self._lengths_to_verify()), self.samples.full
        for lengths in more:
            self._withhold(self.model.counted(lengths, self.phase, shape), shape, lengths)
        if forms.holds(sizes):
            self._withhold(run, sizes, full)
        elif not more:  # the asked sizes are another case, as a batch of one
            self._withhold(self.model.counted(full, self.phase, shape), shape, full)
        domains, seen = list(forms.domain), [dict(shape) for shape in self.forms.verified_at]
        layers = self.samples.layers
        if layers:
            domains += self.model.domain(layers)
            seen.append({**sizes, **layers})
            fixed = {self.samples.symbols.get(s.path): len(s) for s in self._fixed}
            numbers = ", ".join(f"{name} = {number}" for name, number in fixed.items() if name)
            peak_known = numbers and "peak_bytes" in self.whole
            self.notes += [f"the formula of peak memory is for {numbers}"] if peak_known else []
        parts = {key: {q: x for q, x in costs.items() if q in self.whole}
                 for key, costs in self.parts.items()}  # fmt: skip
        return ModelForms(
            self.forms.method, parts, self.whole, tuple(domains), tuple(seen),
            left_out(run, self.phase), tuple(self.notes), layers, forms.holds,
        )  # fmt: skip

    def _agrees(self, sizes: Sizes) -> bool:
        """Return whether a run of all layers at these sizes contradicts nothing."""
        full = self.samples.full
        return not self._contradictions(self.model.counted(full, self.phase, sizes), sizes, full)

    def _lengths_to_verify(self) -> Iterator[Lengths]:
        """Yield numbers of layers that are no sample, at which formulas are verified."""
        longest, symbols = self.samples.lengths[-1], self.samples.symbols
        more = {
            stack.path: self.model.min_layers(stack)
            if stack.path in symbols
            else longest[stack.path] + (not symbols)
            for stack in self.samples.stacks
        }
        for name in set(symbols.values()):
            most = max(more[path] for path, other in symbols.items() if other == name)
            more |= {path: most for path, other in symbols.items() if other == name}
        lengths = {path: min(more[path], length) for path, length in self.samples.full.items()}
        if lengths not in (self.samples.full, longest):
            yield lengths

    def _withhold(self, run: Trace, sizes: Mapping[str, int], lengths: Lengths) -> None:
        """Withhold peaks or bytes that a run contradicts; UnlikeError for other quantities."""
        at = {**sizes, **self.samples.numbers(lengths)}
        wrong = self._contradictions(run, sizes, lengths)
        if not wrong.keys() <= {"peak_bytes", "bytes_moved"}:
            raise UnlikeError(f"at {sizes_text(at)}: {next(iter(wrong.values()))}")
        for name, why in wrong.items():
            self.whole.pop(name, None)
            self.notes.append(f"no formula of {name.replace('_', ' ')}: at {sizes_text(at)} {why}")

    def _contradictions(self, run: Trace, sizes: Sizes, lengths: Lengths) -> dict[str, str]:
        """Return the quantities that a run with so many layers contradicts, and how."""
        counted = by_part(run, self.phase, self.model.places, self.model.kinds)
        weights = self.samples.weights_of(lengths)
        wrong = dict[str, str]()
        for key in {**self.parts, **counted}:
            for name in counted.get(key) or self.parts[key]:
                number = counted.get(key, {}).get(name, 0)
                ours = sum(
                    weight * evaluate(table.get(key, {}).get(name, 0), sizes)
                    for weight, table in zip(weights, self.tables, strict=True)
                )
                if ours != number:
                    wrong.setdefault(name, f"{name} of {key[1]} are {number}, not {ours}")
        has_peak = all(lengths[stack.path] == len(stack) for stack in self._fixed)
        if "peak_bytes" in self.whole and has_peak:
            at = {**sizes, **self.samples.numbers(lengths)}
            held, ours = peak(run, self.phase), evaluate(self.whole["peak_bytes"], at)
            if held != ours:
                wrong["peak_bytes"] = f"a run holds {held}, not {ours}"
        return wrong

    @property
    def _fixed(self) -> list[LayerStack]:
        """Stacks whose peak is known only for their own number of layers."""
        return [s for s in self.samples.stacks if self.model.symbol_of_peak(s) is None]
