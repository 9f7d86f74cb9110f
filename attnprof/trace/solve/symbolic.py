"""Strategy "symbolic": one run with symbolic sizes, whose totals are the formulas."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
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

#: Most operations of a symbolic run, of up to a millisecond each: where some sizes are numbers of
#: blocks, and where none is.
_MOST_WITH_BLOCKS, _MOST = 12_000, 16_000
#: Most processor seconds of a symbolic run: long expressions are compared slowly.
_MOST_S = 30
#: A run looks for pinned sizes again once it has taken so many times as long as all looks so far.
_RUN_PER_LOOK = 3


class PinnedError(NoFormulaError):
    """The code fixes a size: it compares it with a number, or makes a number of it.

    ``pins`` are the conditions that leave a size one value, such as ``N = 64``; ``relations`` all
    conditions until then: wherever these hold, a run is pinned as well. ``integers``: a run in
    which ``int(size)`` stays symbolic may not be pinned; ``refused``: the code failed in that one.
    """

    refused = False

    def __init__(
        self, message: str, guards: Domain | None = None, *, integers: bool = True
    ) -> None:
        super().__init__(message)
        self.pins = guards.pins if guards else []
        self.relations = [*guards.relations, *guards.pins] if guards else []
        self.integers = integers
        self._guards = guards

    def __str__(self) -> str:
        """Return the message, with conditions in words: most errors are never shown."""
        message, guards = super().__str__(), self._guards
        if guards is None:
            return message
        branches = [text for text in guards.conditions if text not in guards.pinned]
        where = f"; the code branches on {', '.join(branches)}" if branches else ""
        return f"{message}: {'; '.join(guards.pinned)}{where}"


@dataclass(frozen=True)
class BlockedSize:
    """A size that is ``count`` blocks and a rest in a run, where only the rest is a symbol.

    ``block`` is an expression over other sizes, or 1 for a size that is the number ``count``.
    ``rest`` is the hint of the rest, 0 for none.
    """

    block: Any
    count: int
    rest: int = 0

    def rest_name(self, name: str) -> str:
        """Return the name of the rest, ``N mod 64``."""
        return f"{name} mod {self.block}"

    def size(self, name: str, sizes: Sizes) -> Any:
        """Return the size, given the others and the rest; ValueError if that is a block or more."""
        block = Expression(str(self.block)).at(sizes)
        rest = sizes[self.rest_name(name)] if self.rest else 0
        if self.rest and not rest < block:
            raise ValueError(f"{rest} is not below {block}")
        return self.count * block + rest


def block_count(name: str) -> Any:
    """Return the symbol of the number of whole blocks of a size, ``blocks of N``."""
    return symbol(f"blocks of {name}")


@dataclass
class Blocks:
    """A size in blocks of another size or of a number: ``Blocks("N", 64)``.

    Formulas of runs are over the number of blocks and the rest. Over the size a length of 128 is
    two blocks by floor and by division, and one block with a rest of 64 by ceil: ``rounding``.
    """

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
        count = block_count(self.name)
        return {
            "ceil": {count: ceiling - 1, self.rest: size - self.block * (ceiling - 1)},
            "floor": {count: floor, self.rest: size - self.block * floor},
            "whole": {count: size / self.block},
        }

    def over_size(self, expression: Any, rounding: str) -> Any:
        """Return an expression over the size; ``rounding`` is ceil, floor or whole (division)."""
        replaced = sympy.sympify(expression).xreplace(self._substitutions[rounding])
        if isinstance(replaced, sympy.Rel):
            return replaced.func(sympy.expand(replaced.lhs - replaced.rhs), 0)
        is_condition = isinstance(replaced, sympy.logic.boolalg.Boolean)
        return replaced if is_condition else sympy.expand(replaced)

    def shape(self, sizes: Sizes, rounding: str = "floor") -> dict[str, int]:
        """Return a shape with its number of blocks and rest; other sizes are blocks of 1."""
        block, size = self.at(sizes), sizes[self.name]
        count = -(-size // block) - 1 if rounding == "ceil" else size // block
        counts = {block_count(name).name: x for name, x in {**sizes, self.name: count}.items()}
        return {**sizes, **counts, self.rest.name: size - block * count}

    def combined(self, ragged: Any, whole: Any) -> Any:
        """Return one formula of two: ``ragged`` at lengths with a rest, ``whole`` without one."""
        count, floor = block_count(self.name), sympy.floor(symbol(self.name) / self.block)
        ragged_at_whole = sympy.sympify(ragged).xreplace({count: floor - 1, self.rest: self.block})
        difference = sympy.sympify(whole).xreplace({count: floor}) - ragged_at_whole
        has_rest = sympy.ceiling(symbol(self.name) / self.block) - floor  # 1 or 0
        return sympy.expand(self.over_size(ragged, "ceil") + (1 - has_rest) * difference)


@dataclass(frozen=True)
class SymbolicRun(Solution):
    """Formulas by phase (``forms``), the ``guards`` they rely on, and the ``trace`` of the run.

    ``most`` is the largest value of a size from which the code makes floats, or tensors whose
    values decide what runs: a formula holds for such a size only as far as it is verified.
    """

    names: Sequence[str]
    forms: dict[str, dict[str, Any]]
    guards: SizeConditions
    trace: Trace
    most: Mapping[str, int]
    withheld: dict[str, dict[str, str]] = field(default_factory=dict)

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Return whether the formulas hold at a shape; not for sizes of 1, whose layout differs."""
        if any(isinstance(size, int) and size == 1 for size in sizes.values()):
            return False
        ends = (sizes[name] <= most for name, most in self.most.items())
        return all(ends) and self.guards.holds(sizes)

    @property
    def domain(self) -> tuple[str, ...]:
        """The conditions in words: ``B, N >= 2``, ``64 divides N``."""
        ends = (f"{name} <= {most}" for name, most in self.most.items())
        return (*self.guards.least_of(self.names), *self.guards.conditions, *ends)


def run_symbolically(
    target: Target, hints: Sizes, phases: Sequence[str],
    block_counts: Mapping[str, BlockedSize] | None = None,
    steady: set[frozenset[str]] | None = None, classed: Collection[str] = (),
) -> SymbolicRun:  # fmt: skip
    """Return a symbolic run with formulas for ``forward`` alone, or for ``backward`` and ``train``.

    ``hints`` decide comparisons of sizes. A size hinted as 1 stays a number; sizes in
    ``block_counts`` are numbers of blocks. If the code makes floats of sizes, it is run again with
    other floats: trace and conditions have to stay equal, since a count that depends on a float has
    no formula. ``steady`` are sets of lines that make floats and passed this test in earlier runs.
    Rounded quotients of ``classed`` sizes may be fixed: the formulas are then for sizes with the
    same quotients. Raises :class:`PinnedError` if the code fixes a size or if what it does depends
    on such a float, :class:`NoFormulaError` if it fails.
    """
    passed = set[frozenset[str]]() if steady is None else steady
    run_with = partial(_run, target, hints, phases, block_counts or {}, classed)

    def checked_run(*, integers: bool) -> SymbolicRun:
        run, lines = run_with(None, integers)
        is_steady = target.mode.trusted or not lines or frozenset(lines) in passed
        for bend in () if is_steady else BENDS:  # functions that change the floats
            try:
                other, _ = run_with(bend, integers)
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
    target: Target, hints: Sizes, phases: Sequence[str], block_counts: Mapping[str, BlockedSize],
    classed: Collection[str], bend: Bend | None, integers: bool,
) -> tuple[SymbolicRun, list[str]]:  # fmt: skip
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
        count = Limit(_MOST_WITH_BLOCKS if block_counts else _MOST, _MOST_S)
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
        in_floats = {s.name for x in parts for step in x.atoms(Double) for s in step.free_symbols}
        in_floats |= {names[size].name for size in floats.sizes if size in names}
        if target.mode.routed and not trace.routes:  # tensors of any size decide what runs
            in_floats |= {*hints}
        most = {name: largest(name, hints[name]) for name in hints if name in in_floats}
        return SymbolicRun(target.symbols, forms, guards, trace, most), floats.lines


def _guards(environment: Any, blocks: Mapping[str, Any]) -> Domain:
    """Return the conditions of a run so far; raise PinnedError if they leave a size one value."""
    try:
        guards = Domain(environment, blocks)
    except ValueError as error:
        raise NoFormulaError(str(error)) from error
    if guards.pins:
        whole = environment.conversions.whole
        raise PinnedError("the code makes a size a number", guards, integers=whole)
    return guards


def _record_until_pinned(
    target: Target, sizes: Any, phases: Sequence[str], environment: Any, blocks: Mapping[str, Any],
    count: Limit,
) -> Trace:  # fmt: skip
    """Record the run; raise PinnedError at an operation soon after a size was pinned."""
    facts_before, look_s, start = 0, 0.0, process_time()

    def look() -> None:
        nonlocal facts_before, look_s
        if not (count.done + 1) % EVERY:  # before the limit raises, whose message says less
            check_patience()
        count()
        facts = len(environment.guards) + len(environment.replacements)
        if facts != facts_before and (now := process_time()) - start >= _RUN_PER_LOOK * look_s:
            facts_before = facts
            _guards(environment, blocks)
            look_s += process_time() - now

    training = trains(phases)
    try:
        return record(target, sizes, training=training, environment=environment, before_each=look)
    except (NoFormulaError, AttnprofError, TooLongError):
        raise
    except Exception as error:
        raise NoFormulaError(error_text(error)) from error
