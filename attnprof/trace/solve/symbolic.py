"""The first way: one run with symbolic sizes; its totals are the formulas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnprof.errors import AttnprofError
from attnprof.trace.events import Trace
from attnprof.trace.request.expressions import largest
from attnprof.trace.request.target import Target
from attnprof.trace.run.conversions import BENDS, Bend
from attnprof.trace.run.limits import limit
from attnprof.trace.run.runs import record
from attnprof.trace.run.symbols import symbolic_sizes
from attnprof.trace.sizes import spoken
from attnprof.trace.solve.domain import Domain
from attnprof.trace.totals import totals
from attnprof.user_code import error_text

#: Operations of a symbolic run; each takes some milliseconds.
_MOST = 1500


class NotSymbolicError(Exception):
    """The module does not stay symbolic; the message says where.

    ``lasting``: the same would happen in every phase.
    """

    lasting = False


class PinnedError(NotSymbolicError):
    """The code compares a size with a number, or makes one of it."""

    lasting = True


@dataclass(frozen=True)
class SymbolicRun:
    """Formulas by phase, the conditions they rely on, and the run itself.

    ``most`` ends the sizes that floats are made of: a formula that rounds those, or leaves them
    out, is only said to hold as far as it is tried.
    """

    forms: Mapping[str, Mapping[str, Any]]
    domain: Domain
    trace: Trace
    most: Mapping[str, int] = field(default_factory=dict)

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether a shape lies inside."""
        ends = (sizes[name] <= most for name, most in self.most.items())
        return all(ends) and self.domain.holds(sizes)

    @property
    def conditions(self) -> tuple[str, ...]:
        """The domain in words."""
        ends = (f"{name} <= {most}" for name, most in self.most.items())
        return (*self.domain.conditions, *ends)


def run_symbolically(
    target: Target, hints: Mapping[str, int], phases: Sequence[str]
) -> SymbolicRun:
    """Formulas for phases of one kind: ``forward`` alone, or ``backward`` and ``train``.

    ``hints`` choose the branch; sizes hinted as 1 stay the number 1. Raises
    :class:`NotSymbolicError` where a size was pinned to a number or the run broke, and where what
    runs depends on a float that was made of a size.
    """
    try:
        return _undisturbed(target, hints, phases, integers=False)
    except PinnedError as pinned:
        try:
            return _undisturbed(target, hints, phases, integers=True)
        except NotSymbolicError:
            raise pinned from None


def _undisturbed(
    target: Target, hints: Mapping[str, int], phases: Sequence[str], *, integers: bool
) -> SymbolicRun:
    """A run whose floats, where sizes become some, may have other values."""

    def once(bend: Any = None) -> tuple[SymbolicRun, list[str]]:
        return _once(target, hints, phases, bend, integers)

    found, floats = once()
    if floats:
        _refuse_dependence(found, floats, lambda bend: once(bend)[0])
    return found


def _once(
    target: Target, hints: Mapping[str, int], phases: Sequence[str], bend: Any, integers: bool
) -> tuple[SymbolicRun, list[str]]:
    """One run, and the lines at which it made floats of sizes."""
    free = {name: hint for name, hint in hints.items() if hint != 1}
    environment, sizes, names = symbolic_sizes(free, bend, integers=integers)
    with spoken(names):
        trace = _recorded(target, {**hints, **sizes}, phases, environment)
        domain = _domain(environment)
        _refuse_pins(domain)
        trace = trace.mapped(domain.simplified) if domain.simplifies else trace
        forms = {phase: totals(trace, phase) for phase in phases}
        floats = environment.conversions
        rounded = {size.name for size in _rounded(forms, domain)}
        rounded |= {names[size].name for size in floats.sizes if size in names}
        most = {name: largest(name, hints[name]) for name in hints if name in rounded}
        return SymbolicRun(forms, domain, trace, most), floats.places


def _rounded(forms: Mapping[str, Mapping[str, Any]], domain: Domain) -> set[Any]:
    """The sizes that float arithmetic goes through."""
    from attnprof.trace.doubles import Double

    formulas = [value for form in forms.values() for value in form.values()]
    parts = [x for x in (*formulas, *domain.relations) if not isinstance(x, int)]
    return {size for x in parts for double in x.atoms(Double) for size in double.free_symbols}


def _refuse_dependence(
    found: SymbolicRun, places: Sequence[str], again: Callable[[Bend], SymbolicRun]
) -> None:
    """With other numbers the same must happen: then they are factors, and no size is made of them.

    Raises :class:`PinnedError` where it does not.
    """
    for bend in BENDS:
        try:
            other = again(bend)
            same = other.trace == found.trace and other.domain == found.domain
        except NotSymbolicError:
            same = False
        if not same:
            where = ", ".join(filter(None, places)) or "torch"
            raise PinnedError(f"a size becomes a number at {where}, and what runs depends on it")


def _domain(environment: Any) -> Domain:
    try:
        return Domain(environment)
    except ValueError as error:
        raise NotSymbolicError(str(error)) from error


def _recorded(target: Target, sizes: Any, phases: Sequence[str], environment: Any) -> Trace:
    """The run, ended by the first operation after a size was pinned: what follows is wasted."""
    seen = 0
    count = limit(_MOST)

    def look() -> None:
        nonlocal seen
        count()
        facts = len(environment.guards) + len(environment.replacements)
        if facts != seen:
            seen = facts
            _refuse_pins(_domain(environment))

    training = "forward" not in phases
    try:
        return record(target, sizes, training=training, environment=environment, before_each=look)
    except (NotSymbolicError, AttnprofError):
        raise
    except Exception as error:
        raise NotSymbolicError(error_text(error)) from error


def _refuse_pins(domain: Domain) -> None:
    if domain.pinned:
        branches = [text for text in domain.conditions if text not in domain.pinned]
        where = f"; the code branches on {', '.join(branches)}" if branches else ""
        raise PinnedError(f"the code fixes a size: {'; '.join(domain.pinned)}{where}")
