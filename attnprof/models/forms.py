"""Closed forms of a whole model: of all layers in one run, or of a few that the others repeat."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from attnprof.algebra.expressions import symbol
from attnprof.models.borders import derived_beside, on_symbols, reached
from attnprof.models.costs import LayerKind, by_part, place_of
from attnprof.models.model_forms import ModelForms, Parts, of_whole
from attnprof.models.parts import ModulePlace
from attnprof.models.stacks import LayerStack, Lengths, Samples, samples_of, shortened, stacks_of
from attnprof.models.stitched import fewest, stitched_peak, walked
from attnprof.models.whole import WholeModel
from attnprof.trace.events import QUANTITIES, Trace, added, left_out, peak
from attnprof.trace.report.derivation import PhaseForms
from attnprof.trace.request.target import Sizes, Target, sizes_text
from attnprof.trace.sizes import evaluate
from attnprof.trace.solve.budget import NoFormulaError
from attnprof.trace.solve.count import counted
from attnprof.trace.solve.derive import derived
from attnprof.trace.solve.symbolic import SymbolicRun

#: Why layers that repeat have none, where they are not walked through.
_NO_PEAK = "no formula of peak memory: layers have loops, or do not run one after the other"


class UnlikeError(Exception):
    """Layers beyond the first few do not cost what those do."""


@dataclass
class Repeated:
    """A model whose first layers are the measure of the others: see :mod:`.stacks`."""

    subject: WholeModel
    places: Mapping[str, ModulePlace]
    kinds: Sequence[LayerKind]
    samples: Samples
    _routed: bool = False
    _shortened: dict[Any, WholeModel] = field(default_factory=dict)

    def of(self, subject: WholeModel) -> "Repeated":
        """Return the same for a subject that may give other logits."""
        if subject.logits_of("forward") == self.subject.logits_of("forward"):
            return self
        return replace(self, subject=subject, _shortened={})

    def turns(self, stack: LayerStack) -> int:
        """How many periods come after the sampled layers, at least: 2, so that a peak is known."""
        longest = self.samples.lengths[-1][stack.path]
        return 2 if stack.period(max(stack.start, longest - 1)) else 0

    def symbol_of_peak(self, stack: LayerStack) -> Any:
        """That for the number of its layers, if peaks are known for more of them."""
        name = self.samples.symbols.get(stack.path)
        return symbol(name) if name and self._turns(name) else None

    def _turns(self, name: str) -> int:
        """The same of all stacks that a symbol stands for."""
        symbols = self.samples.symbols
        return min(self.turns(s) for s in self.samples.stacks if symbols.get(s.path) == name)

    def fewest(self, stack: LayerStack) -> int:
        """The least number of layers that formulas hold for."""
        longest, name = self.samples.lengths[-1][stack.path], self.samples.symbols[stack.path]
        return fewest(stack, longest, self._turns(name))

    def domain(self, symbols: Iterable[str]) -> Iterator[str]:
        """Which numbers of layers formulas with these symbols hold for."""
        own = self.samples.symbols
        for name in symbols:
            stacks = [stack for stack in self.samples.stacks if own.get(stack.path) == name]
            yield f"{name} >= {max(map(self.fewest, stacks))}"
            for period in dict.fromkeys(stack.period(stack.start) for stack in stacks):
                if period > 1:
                    yield f"{name} mod {period} = {len(stacks[0]) % period}"

    def forms(self, phase: str, sizes: Mapping[str, int], run: Trace, ran: Target) -> ModelForms:
        """The closed forms of a phase, held against ``run``, that of all layers at ``sizes``.

        ``ran`` is the target of that run. :class:`UnlikeError` where it counts something else.
        """
        *shorter, longest = self.samples.lengths
        if ran.real:
            raise UnlikeError("it does something else on real tensors")
        self._routed = ran.routed
        few = self._target(self.samples.lengths[0], phase)
        found, near, run_near = derived_beside(self._target(longest, phase), few, phase, sizes)
        if found.method == "counted":
            return of_whole(found, self.places, self.kinds)
        domains = list(found.domain)
        traces, known = list[Trace](), run_near
        for lengths in shorter:
            trace, domain = _sampled(self._target(lengths, phase), phase, near, found, known)
            known = None  # that is the shortest one's
            traces.append(trace)
            domains += [told for told in domain if told not in domains]
        sampled = _Sampled(self, phase, found, [*traces, found.trace])
        return sampled.held_against(run, sizes, tuple(domains), near, run_near)

    def _target(self, lengths: Lengths, phase: str) -> Target:
        return replace(self._with(lengths).target(phase), routed=self._routed)

    def _with(self, lengths: Lengths) -> WholeModel:
        """The subject with so many layers, made once: it is built once, and its prompts are."""
        key, made = tuple(lengths.items()), self._shortened
        return made.get(key) or made.setdefault(key, shortened(self.subject, lengths))

    @property
    def few(self) -> WholeModel:
        """The subject with its first layers alone, some of every kind."""
        return self._with(self.samples.lengths[-1])

    def of_layers(self, stack: LayerStack, each: Mapping[int, Any]) -> Any:
        """The sum over the layers of a stack of what each one of a kind has, by kind."""
        first = (stack.kinds[: lengths[stack.path]] for lengths in self.samples.lengths)
        sums = [added([each[kind] for kind in kinds if kind in each]) for kinds in first]
        return self.samples.summed(sums, by_layers=True)

    def counted(self, lengths: Lengths, phase: str, sizes: Mapping[str, int]) -> Trace:
        """A run of so many layers at sizes."""
        return counted(self._target(lengths, phase), sizes, phase, held=False)[0]


def repeated(
    subject: WholeModel, model: Any, places: Any, kinds: Sequence[LayerKind]
) -> Repeated | None:
    """A subject, built as ``model``, by its first layers; None where they repeat too little."""
    samples = samples_of(stacks_of(model, kinds))
    return None if samples is None else Repeated(subject, places, kinds, samples)


def _sampled(
    target: Target,
    phase: str,
    near: Mapping[str, int],
    like: PhaseForms,
    known: SymbolicRun | None,
) -> tuple[Trace, tuple[str, ...]]:
    """A run on symbolic sizes where that was enough for another number of layers; its domain.

    ``known`` is that run, where it is known.
    """
    if like.method == "symbolic" and not like.trace.routes:
        try:
            found = known or on_symbols(target, phase, near)
        except NoFormulaError:
            pass
        else:
            return found.trace, found.domain
    forms = derived(replace(target, step=target), (phase,), near).phases[phase]
    if forms.method == "counted":
        raise UnlikeError("fewer layers have no formulas")
    return forms.trace, forms.domain


class _Sampled:
    """A phase by its samples: formulas of the whole, and what runs say of them."""

    def __init__(
        self, model: Repeated, phase: str, forms: PhaseForms, traces: Sequence[Trace]
    ) -> None:
        self.model, self.phase, self.found = model, phase, forms
        self.samples = model.samples
        self.tables: list[Parts] = [
            by_part(trace, phase, model.places, model.kinds) for trace in traces
        ]
        keys = dict.fromkeys(key for table in reversed(self.tables) for key in table)
        self.parts = {key: self._quantities(key) for key in keys}
        own = self.parts.values()
        self.whole = {name: added([x[name] for x in own]) for name in next(iter(own), {})}
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
        if self.found.method != "symbolic":
            return None
        longest = self.samples.lengths[-1]
        longer = {
            stack.path: walked(stack, longest[stack.path], self.model.symbol_of_peak(stack))
            for stack in self.samples.stacks
        }
        return stitched_peak(
            trace, self.phase, self._layer_of, self.samples.stacks, longest, longer
        )

    def _layer_of(self, module: str) -> str:
        return place_of(module, self.model.places).layer

    def held_against(
        self, run: Trace, sizes: Mapping[str, int], domain: tuple[str, ...],
        near: Mapping[str, int], known: SymbolicRun | None,
    ) -> ModelForms:  # fmt: skip
        """The forms without what runs of all layers, and of some more than sampled, contradict.

        They were derived ``near`` the asked sizes, where the run on symbols is ``known``.
        """
        forms = replace(self.found, domain=domain)
        forms = reached(forms, near, known, sizes, self._meets)
        shape = min(self.found.verified_at, key=lambda x: x.get("N", 0))
        more = list(self._more())
        for lengths in more:
            self._hold(self.model.counted(lengths, self.phase, shape), shape, lengths)
        if forms.holds(sizes):
            self._hold(run, sizes, self._all)
        elif not more:  # the asked sizes are another case, as a batch of one
            self._hold(self.model.counted(self._all, self.phase, shape), shape, self._all)
        domains, seen = list(forms.domain), [dict(shape) for shape in self.found.verified_at]
        layers = self.samples.layers
        if layers:
            domains += self.model.domain(layers)
            seen.append({**sizes, **layers})
            fixed = {self.samples.symbols.get(s.path): len(s) for s in self._fixed}
            told = ", ".join(f"{name} = {number}" for name, number in fixed.items() if name)
            peak_known = told and "peak_bytes" in self.whole
            self.notes += [f"the formula of peak memory is for {told}"] if peak_known else []
        parts = {key: {q: x for q, x in own.items() if q in self.whole}
                 for key, own in self.parts.items()}  # fmt: skip
        return ModelForms(
            self.found.method, parts, self.whole, tuple(domains), tuple(seen),
            left_out(run, self.phase),
            tuple(self.notes), layers, forms.holds,
        )  # fmt: skip

    def _meets(self, sizes: Sizes) -> bool:
        """Whether a run of all layers contradicts nothing there."""
        return not self._wrong(self.model.counted(self._all, self.phase, sizes), sizes, self._all)

    def _more(self) -> Iterator[Lengths]:
        """Numbers of layers that are no sample, with which formulas are to hold, too."""
        longest, symbols = self.samples.lengths[-1], self.samples.symbols
        more = {
            stack.path: self.model.fewest(stack)
            if stack.path in symbols
            else longest[stack.path] + (not symbols)
            for stack in self.samples.stacks
        }
        for name in set(symbols.values()):
            most = max(more[path] for path, own in symbols.items() if own == name)
            more |= {path: most for path, own in symbols.items() if own == name}
        found = {path: min(more[path], length) for path, length in self._all.items()}
        if found not in (self._all, longest):
            yield found

    def _hold(self, run: Trace, sizes: Mapping[str, int], lengths: Lengths) -> None:
        """Withhold what a run contradicts; UnlikeError where that is what it computes."""
        at, wrong = {**sizes, **self.samples.numbers(lengths)}, self._wrong(run, sizes, lengths)
        if not wrong.keys() <= {"peak_bytes", "bytes_moved"}:
            raise UnlikeError(f"at {sizes_text(at)}: {next(iter(wrong.values()))}")
        for name, told in wrong.items():
            self.whole.pop(name, None)
            self.notes.append(f"no formula of {name.replace('_', ' ')}: at {sizes_text(at)} {told}")

    def _wrong(self, run: Trace, sizes: Mapping[str, int], lengths: Lengths) -> dict[str, str]:
        """What a run of so many layers contradicts, and how."""
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
        known = all(lengths[stack.path] == len(stack) for stack in self._fixed)
        if "peak_bytes" in self.whole and known:
            at = {**sizes, **self.samples.numbers(lengths)}
            held, ours = peak(run, self.phase), evaluate(self.whole["peak_bytes"], at)
            if held != ours:
                wrong["peak_bytes"] = f"a run holds {held}, not {ours}"
        return wrong

    @property
    def _fixed(self) -> list[LayerStack]:
        """Stacks with whose number of layers peaks are known, and with no other."""
        return [s for s in self.samples.stacks if self.model.symbol_of_peak(s) is None]

    @property
    def _all(self) -> dict[str, int]:
        return {stack.path: len(stack) for stack in self.samples.stacks}
