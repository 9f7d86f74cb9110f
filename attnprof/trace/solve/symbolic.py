"""Strategy "symbolic": one run with symbolic sizes, whose totals are the formulas."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import process_time
from typing import Any

import sympy

from attnprof.algebra.expressions import symbol
from attnprof.algebra.values import evaluate
from attnprof.errors import AttnprofError
from attnprof.trace.doubles import Double
from attnprof.trace.events import Trace, totals_by_phase, trains
from attnprof.trace.request.target import Expression, Sizes, Target, largest
from attnprof.trace.run.limits import EVERY, Limit, TooLongError
from attnprof.trace.run.runs import record
from attnprof.trace.run.symbols import BENDS, Bend, symbolic_sizes
from attnprof.trace.sizes import user_symbols
from attnprof.trace.solve.domain import Domain, SizeConditions
from attnprof.trace.solve.verification import NoFormulaError, Solution, check_patience
from attnprof.user_code import error_text

#: Most operations of a symbolic run, of up to a millisecond each: where some sizes are numbers and
#: where none is, as of many layers. Most processor seconds: long expressions are compared slowly.
_SOME, _NONE, _SECONDS = 12_000, 16_000, 30
#: How many times as long as looking for pinned sizes a run has to take.
_LOOKING = 3


class PinnedError(NoFormulaError):
    """The code fixes a size: it compares it with a number, or makes a number of it.

    ``pins`` are the conditions that leave a size one value, ``relations`` all conditions until
    then: wherever these hold, a run is pinned as well. ``integers``: a run in which ``int(size)``
    stays symbolic may not be pinned; ``refused``: the code does not run that way at this shape.
    """

    refused = False

    def __init__(
        self,
        message: str,
        pins: Sequence[Any] = (),
        *,
        integers: bool = True,
        relations: Sequence[Any] = (),
    ) -> None:
        super().__init__(message)
        self.pins = pins
        self.integers = integers
        self.relations = relations


@dataclass(frozen=True)
class Place:
    """A size that is no symbol in a run: ``count`` blocks, and a rest that may be a symbol.

    ``block`` is an expression over the other sizes, ``rest`` the hint of the rest, or 0 for none.
    """

    block: Any
    count: int
    rest: int = 0

    def rest_name(self, name: str) -> str:
        """Return the name of the rest as a size, ``N mod 64``."""
        return f"{name} mod {self.block}"

    def size(self, name: str, sizes: Sizes) -> Any:
        """Return the size's value, given the other sizes and the rest, which is below a block."""
        block = Expression(str(self.block)).at(sizes)
        rest = sizes[self.rest_name(name)] if self.rest else 0
        if self.rest and not rest < block:
            raise ValueError(f"{rest} is not below {block}")
        return self.count * block + rest


def turns_of(name: str) -> Any:
    """Return the symbol of a size's number of whole blocks, ``blocks of N``."""
    return symbol(f"blocks of {name}")


@dataclass
class Blocks:
    """A size (``name``) in blocks of another size or of a number: ``Blocks("N", 64)``."""

    name: str
    block: Any

    def at(self, sizes: Sizes) -> int:
        """Return the length of a block at a shape."""
        return int(evaluate(self.block, sizes))

    @property
    def rest(self) -> Any:
        """The symbol of the remainder after whole blocks, ``N mod 64``."""
        return symbol(f"{self.name} mod {self.block}")

    @cached_property
    def _substitutions(self) -> dict[str, Mapping[Any, Any]]:
        size = symbol(self.name)
        floor, ceiling = sympy.floor(size / self.block), sympy.ceiling(size / self.block)
        turns = turns_of(self.name)
        return {
            "ceil": {turns: ceiling - 1, self.rest: size - self.block * (ceiling - 1)},
            "floor": {turns: floor, self.rest: size - self.block * floor},
            "whole": {turns: size / self.block},
        }

    def written(self, expression: Any, way: str) -> Any:
        """Return an expression in turns and rest over the size; ``way``: ceil, floor or whole."""
        replaced = sympy.sympify(expression).xreplace(self._substitutions[way])
        if isinstance(replaced, sympy.Rel):
            return replaced.func(sympy.expand(replaced.lhs - replaced.rhs), 0)
        is_condition = isinstance(replaced, sympy.logic.boolalg.Boolean)
        return replaced if is_condition else sympy.expand(replaced)

    def inside(self, sizes: Sizes, way: str = "floor") -> dict[str, int]:
        """Return a shape with its number of blocks and rest, counted as ``written`` does.

        Sizes that were numbers in the runs are blocks of 1.
        """
        block, size = self.at(sizes), sizes[self.name]
        turns = -(-size // block) - 1 if way == "ceil" else size // block
        numbers = {turns_of(name).name: x for name, x in {**sizes, self.name: turns}.items()}
        return {**sizes, **numbers, self.rest.name: size - block * turns}

    def combined(self, between: Any, whole: Any) -> Any:
        """Return one formula of two: ``between`` at lengths with a rest, ``whole`` without one."""
        turns, floor = turns_of(self.name), sympy.floor(symbol(self.name) / self.block)
        at_whole = sympy.sympify(between).xreplace({turns: floor - 1, self.rest: self.block})
        more = sympy.sympify(whole).xreplace({turns: floor}) - at_whole
        ragged = sympy.ceiling(symbol(self.name) / self.block) - floor
        return sympy.expand(self.written(between, "ceil") + (1 - ragged) * more)


@dataclass(frozen=True)
class SymbolicRun(Solution):
    """Formulas by phase, the conditions they rely on, and the run itself.

    ``most`` ends the ranges of sizes that the code makes floats of, or values that decide what
    runs: formulas with such sizes hold only as far as they are tried.
    """

    names: Sequence[str]
    forms: dict[str, dict[str, Any]]
    guards: SizeConditions
    trace: Trace
    most: Mapping[str, int]
    withheld: dict[str, dict[str, str]] = field(default_factory=dict)

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Return whether a shape lies inside; sizes of 1 do not: torch has another layout there."""
        if any(isinstance(size, int) and size == 1 for size in sizes.values()):
            return False
        ends = (sizes[name] <= most for name, most in self.most.items())
        return all(ends) and self.guards.holds(sizes)

    @property
    def domain(self) -> tuple[str, ...]:
        """The conditions in words: ``B, N >= 2``, ``64 divides N``."""
        ends = (f"{name} <= {most}" for name, most in self.most.items())
        return (f"{', '.join(self.names)} >= 2", *self.guards.conditions, *ends)


def run_symbolically(
    target: Target,
    hints: Sizes,
    phases: Sequence[str],
    block_counts: Mapping[str, Place] | None = None,
    steady: set[frozenset[str]] | None = None,
    classed: Collection[str] = (),
) -> SymbolicRun:
    """Return the run with formulas for ``forward`` alone, or for ``backward`` and ``train``.

    ``hints`` choose the branch; sizes hinted as 1 stay the number 1, those in ``block_counts`` are
    numbers of blocks. If the code makes floats of sizes, it is run again with other floats: trace
    and conditions have to stay equal, so that no size is made of a float. ``steady`` are lines of
    floats that passed this test in earlier runs. Rounded quotients of ``classed`` sizes may be
    fixed: formulas are then for sizes of that class. Raises :class:`NoFormulaError` if a size was
    pinned, if the run broke, or if what runs depends on a float that was made of a size.
    """
    passed = set[frozenset[str]]() if steady is None else steady

    def checked_run(*, integers: bool) -> SymbolicRun:
        run, lines = _run(target, hints, phases, None, integers, block_counts or {}, classed)
        is_steady = target.mode.trusted or not lines or frozenset(lines) in passed
        for bend in () if is_steady else BENDS:
            try:
                other, _ = _run(target, hints, phases, bend, integers, block_counts or {}, classed)
                same = (other.trace, other.guards.relations) == (run.trace, run.guards.relations)
            except NoFormulaError:
                same = False
            if not same:
                at = ", ".join(filter(None, lines)) or "torch"
                raise PinnedError(f"a size becomes a number at {at}, and what runs depends on it")
        passed.add(frozenset(lines))
        return run

    try:
        return checked_run(integers=False)
    except PinnedError as pinned:
        if not pinned.integers:
            raise
        try:
            return checked_run(integers=True)
        except NoFormulaError as further:
            pinned.refused = not getattr(further, "pins", ())
            raise pinned if pinned.refused else further from None


def _run(
    target: Target,
    hints: Sizes,
    phases: Sequence[str],
    bend: Bend | None,
    integers: bool,
    block_counts: Mapping[str, Place],
    classed: Collection[str],
) -> tuple[SymbolicRun, list[str]]:
    """Return one symbolic run, and the lines at which it made floats of sizes."""
    free = {name: hint for name, hint in hints.items() if hint != 1 and name not in block_counts}
    rests = {place.rest_name(name): place for name, place in block_counts.items() if place.rest}
    free |= {name: place.rest for name, place in rests.items()}
    numbers = {symbol(x): y.count for x, y in block_counts.items() if y.block == 1}
    blocks = {name: place.block.subs(numbers) for name, place in rests.items()}
    environment, sizes, names = symbolic_sizes(
        free, bend, integers=integers, below=blocks, classed=classed
    )
    environment.loops_in_blocks = target.mode.loops_in_blocks
    for name in sorted(block_counts, key=lambda x: len(block_counts[x].block.free_symbols)):
        sizes[name] = block_counts[name].size(name, sizes)
    with user_symbols(names):
        count = Limit(_SOME if block_counts else _NONE, _SECONDS)
        trace = _record_until_pinned(target, {**hints, **sizes}, phases, environment, blocks, count)
        guards = _guards(environment, blocks)
        calls = [call.mapped(guards.written) for call in trace.calls]
        modules = {name: guards.written(entries) for name, entries in trace.modules.items()}
        parameters = guards.written(trace.parameters)
        trace = replace(trace, calls=calls, parameters=parameters, modules=modules)
        forms = totals_by_phase(trace, phases)
        floats = environment.conversions
        formulas = [value for form in forms.values() for value in form.values()]
        parts = [x for x in (*formulas, *guards.relations) if not isinstance(x, int)]
        if {x.name for part in parts for x in part.free_symbols} - {*hints, *rests}:
            raise NoFormulaError("the code makes a size of a tensor's value")
        # the sizes that float arithmetic goes through
        rounded = {s.name for x in parts for double in x.atoms(Double) for s in double.free_symbols}
        rounded |= {names[size].name for size in floats.sizes if size in names}
        if target.mode.routed and not trace.routes:  # values of as many entries as sizes say
            rounded |= {*hints}
        most = {name: largest(name, hints[name]) for name in hints if name in rounded}
        return SymbolicRun(target.symbols, forms, guards, trace, most), floats.lines


def _guards(environment: Any, blocks: Mapping[str, Any]) -> Domain:
    """Return the conditions of a run so far; raise PinnedError if they leave a size one value."""
    try:
        guards = Domain(environment, blocks)
    except ValueError as error:
        raise NoFormulaError(str(error)) from error
    if guards.pinned:
        branches = [text for text in guards.conditions if text not in guards.pinned]
        where = f"; the code branches on {', '.join(branches)}" if branches else ""
        pinned = f"the code makes a size a number: {'; '.join(guards.pinned)}{where}"
        whole = environment.conversions.whole
        relations = [*guards.relations, *guards.pins]
        raise PinnedError(pinned, guards.pins, integers=whole, relations=relations)
    return guards


def _record_until_pinned(
    target: Target,
    sizes: Any,
    phases: Sequence[str],
    environment: Any,
    blocks: Mapping[str, Any],
    count: Limit,
) -> Trace:
    """Record the run, and end it at the first operation after a size was pinned."""
    checked, looked, start = 0, 0.0, process_time()

    def look() -> None:
        nonlocal checked, looked
        if not (count.done + 1) % EVERY:  # before the limit itself looks, which says less
            check_patience()
        count()
        facts = len(environment.guards) + len(environment.replacements)
        if facts != checked and (now := process_time()) - start >= _LOOKING * looked:
            checked = facts
            _guards(environment, blocks)
            looked += process_time() - now

    training = trains(phases)
    try:
        return record(target, sizes, training=training, environment=environment, before_each=look)
    except (NoFormulaError, AttnprofError, TooLongError):
        raise
    except Exception as error:
        raise NoFormulaError(error_text(error)) from error
