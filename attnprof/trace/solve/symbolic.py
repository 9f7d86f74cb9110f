"""The first way: one run with symbolic sizes; its totals are the formulas."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnprof.errors import AttnprofError
from attnprof.trace.events import Trace, totals_by_phase, trains
from attnprof.trace.request.target import Sizes, Target, largest
from attnprof.trace.run.runs import Limit, record
from attnprof.trace.run.symbols import BENDS, Bend, symbolic_sizes
from attnprof.trace.sizes import spoken
from attnprof.trace.solve.budget import NoFormulaError
from attnprof.trace.solve.domain import Domain
from attnprof.user_code import error_text

#: Operations of a symbolic run; each takes some milliseconds.
_MOST = 1500


class PinnedError(NoFormulaError):
    """The code compares a size with a number, or makes one of it; it would in every phase."""


@dataclass(frozen=True)
class SymbolicRun:
    """Formulas by phase, the conditions they rely on, and the run itself.

    ``most`` ends the sizes that floats are made of: a formula that rounds those, or leaves them
    out, is only said to hold as far as it is tried.
    """

    names: Sequence[str]
    forms: Mapping[str, Mapping[str, Any]]
    guards: Domain
    trace: Trace
    most: Mapping[str, int]

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether a shape lies inside; a size of 1 is another case: torch lays it out otherwise."""
        if any(isinstance(size, int) and size == 1 for size in sizes.values()):
            return False
        ends = (sizes[name] <= most for name, most in self.most.items())
        return all(ends) and self.guards.holds(sizes)

    @property
    def domain(self) -> tuple[str, ...]:
        """Where it holds, in words."""
        ends = (f"{name} <= {most}" for name, most in self.most.items())
        return (f"{', '.join(self.names)} >= 2", *self.guards.conditions, *ends)


def run_symbolically(target: Target, hints: Sizes, phases: Sequence[str]) -> SymbolicRun:
    """Formulas for phases of one kind: ``forward`` alone, or ``backward`` and ``train``.

    ``hints`` choose the branch; sizes hinted as 1 stay the number 1. Floats, where sizes become
    some, may have other values: with those the same must happen, so that they are factors, and no
    size is made of them. Raises :class:`NoFormulaError` where a size was pinned to a number or
    the run broke, and where what runs depends on a float that was made of a size.
    """

    def undisturbed(*, integers: bool) -> SymbolicRun:
        found, places = _once(target, hints, phases, None, integers)
        ran = found.trace, found.guards.relations
        for bend in BENDS if places else ():
            try:
                other, _ = _once(target, hints, phases, bend, integers)
                same = (other.trace, other.guards.relations) == ran
            except NoFormulaError:
                same = False
            if not same:
                at = ", ".join(filter(None, places)) or "torch"
                raise PinnedError(f"a size becomes a number at {at}, and what runs depends on it")
        return found

    try:
        return undisturbed(integers=False)
    except PinnedError as pinned:
        try:
            return undisturbed(integers=True)
        except NoFormulaError:
            raise pinned from None


def _once(
    target: Target, hints: Sizes, phases: Sequence[str], bend: Bend | None, integers: bool
) -> tuple[SymbolicRun, list[str]]:
    """One run, and the lines at which it made floats of sizes."""
    from attnprof.trace.doubles import Double

    free = {name: hint for name, hint in hints.items() if hint != 1}
    environment, sizes, names = symbolic_sizes(free, bend, integers=integers)
    with spoken(names):
        trace = _recorded(target, {**hints, **sizes}, phases, environment)
        guards = _guards(environment)
        calls = [call.mapped(guards.simplified) for call in trace.calls]
        trace = replace(trace, calls=calls, parameters=guards.simplified(trace.parameters))
        forms = totals_by_phase(trace, phases)
        floats = environment.conversions
        formulas = [value for form in forms.values() for value in form.values()]
        parts = [x for x in (*formulas, *guards.relations) if not isinstance(x, int)]
        # the sizes that float arithmetic goes through
        rounded = {s.name for x in parts for double in x.atoms(Double) for s in double.free_symbols}
        rounded |= {names[size].name for size in floats.sizes if size in names}
        most = {name: largest(name, hints[name]) for name in hints if name in rounded}
        return SymbolicRun(target.symbols, forms, guards, trace, most), floats.places


def _guards(environment: Any) -> Domain:
    """What the run relied on so far; PinnedError where that leaves a size one value."""
    try:
        guards = Domain(environment)
    except ValueError as error:
        raise NoFormulaError(str(error)) from error
    if guards.pinned:
        branches = [text for text in guards.conditions if text not in guards.pinned]
        where = f"; the code branches on {', '.join(branches)}" if branches else ""
        raise PinnedError(f"the code makes a size a number: {'; '.join(guards.pinned)}{where}")
    return guards


def _recorded(target: Target, sizes: Any, phases: Sequence[str], environment: Any) -> Trace:
    """The run, ended by the first operation after a size was pinned: what follows is wasted."""
    seen = 0
    count = Limit(_MOST)

    def look() -> None:
        nonlocal seen
        count()
        facts = len(environment.guards) + len(environment.replacements)
        if facts != seen:
            seen = facts
            _guards(environment)

    training = trains(phases)
    try:
        return record(target, sizes, training=training, environment=environment, before_each=look)
    except (NoFormulaError, AttnprofError):
        raise
    except Exception as error:
        raise NoFormulaError(error_text(error)) from error
