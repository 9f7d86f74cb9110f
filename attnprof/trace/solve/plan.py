"""Plan which sizes of a target are symbols in its runs and which are numbers, by trying runs.

Code may fix (pin) a size that is a symbol. That size then becomes a number, or a number of blocks
and a rest, as N = 64*count + rest. Entry point: :func:`plan_for`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from math import gcd
from time import process_time
from typing import Any

import sympy

from attnprof.algebra.expressions import symbol
from attnprof.algebra.values import evaluate
from attnprof.errors import RequestError
from attnprof.trace.events import Trace, totals_by_phase, trains
from attnprof.trace.request.target import EVEN, Sizes, Target, sizes_text
from attnprof.trace.run.limits import TooLongError, TooSlowError
from attnprof.trace.run.runs import outcome
from attnprof.trace.solve.conditions import dividing
from attnprof.trace.solve.domain import SizeConditions
from attnprof.trace.solve.symbolic import BlockedSize, PinnedError, SymbolicRun, run_symbolically
from attnprof.trace.solve.verification import NoFormulaError, OutOfBudgetError, Runs, check_patience

#: Runs of one plan that may each turn a symbol into a number before the plan is given up.
_TRIES = 8
#: Smallest values of sizes that are numbers in runs.
_SMALL = {"B": 2, "N": 4, "h": 2, "d": 8}
#: Budget of all symbolic runs of a plan, in operations (some milliseconds each).
_SYMBOLIC = 28_000
#: About how many symbolic runs a fit takes if N is in blocks whose length is a number, too.
_BOTH = 45
#: Recorded operations of a run that use up one of the budget, as most repeat earlier ones.
_AT_ONCE = 2
#: Operations of the budget that one processor second uses up.
_A_SECOND = 240
#: Conditions modulo 2 or 3 tell odd from even sizes, and are no blocks of a loop.
_SMALL_BLOCK = 3
#: Smallest value of a size that is the length of a block: 1 to 3 are special cases of code.
_BLOCK = 4


@dataclass
class SizePlan:
    """The sizes that are numbers in runs (the keys of ``blocks``); all others are symbols.

    ``blocks``: the unit of a number, 1 for the size itself, 64 or a size ``C`` for blocks of so
    many tokens. ``base``: smallest values of sizes that are numbers. ``runs``: runs made so far, by
    numbers and phases. ``steady``: by phases, lines that make a float of a size without effect on
    what runs. ``kinds``: by a size that counts layers, the kinds in one period: (0, 0, 1).
    ``whole``: the code runs at whole blocks alone. ``by_module``: formulas are for the costs of
    each module, not for peaks. ``concrete`` makes the runs if no size is left a symbol.
    """

    target: Target
    hints: Sizes
    base: Mapping[str, int]
    blocks: dict[str, Any]
    runs: dict[Any, SymbolicRun | NoFormulaError] = field(default_factory=dict)
    steady: dict[tuple[str, ...], set[frozenset[str]]] = field(default_factory=dict)
    spent: int = 0
    limit: int = _SYMBOLIC
    kinds: dict[str, tuple[int, ...]] = field(default_factory=dict)
    whole: bool = False
    by_module: bool = False
    concrete: Runs | None = None

    def begin(self, runs: Runs) -> None:
        """Reset the budget of symbolic runs; ``runs``, with their own, become the concrete ones."""
        self.spent, self.limit = 0, _SYMBOLIC
        self.concrete = self.concrete and runs

    def extend(self) -> None:
        """Double the budget, when all counts are polynomials in each size: few runs are missing."""
        self.limit = 2 * _SYMBOLIC

    def block_counts(self, counts: Mapping[str, int], *, ragged: bool) -> dict[str, BlockedSize]:
        """Return each number of a run with its block and, if ``ragged``, a hint of the rest."""
        block_counts = {}
        for name, block in self.blocks.items():
            sizes = {**self.hints, **{x: n for x, n in counts.items() if self.blocks[x] == 1}}
            length = int(evaluate(block, sizes)) if block != 1 and ragged else 0
            rest = max(2, 37 * length // 64) if length else 0
            block_counts[name] = BlockedSize(block, counts[name], rest)
        return block_counts

    def at(
        self, counts: Mapping[str, int], phases: Sequence[str], *, ragged: bool
    ) -> SymbolicRun | NoFormulaError:
        """Return the symbolic run at these numbers of blocks, or why there is none."""
        block_counts = self.block_counts(counts, ragged=ragged)
        key = tuple(block_counts.items()), tuple(phases)
        if key not in self.runs and self.concrete is not None:
            self.runs[key] = self._counted(counts, self.concrete)
        if key not in self.runs:
            check_patience()
            if self.spent > self.limit:
                raise OutOfBudgetError("the runs on symbols it takes would be too long")
            if ragged and any(block in (2, 3) for block in self.blocks.values()):
                return NoFormulaError("a rest is 1 or 2, which are other cases")
            start = process_time()
            try:
                steady = self.steady.setdefault(key[1], set())
                run = run_symbolically(self.target, self.hints, phases, block_counts, steady)
                run = replace(run, trace=_with_lengths_in_exponents(run.trace, block_counts))
            except NoFormulaError as error:
                self.runs[key] = error
            except (TooLongError, RequestError) as error:  # sizes there may be no whole numbers
                self.runs[key] = NoFormulaError(str(error))
                self.spent += _SYMBOLIC if isinstance(error, TooSlowError) else 0
            else:
                self.runs[key] = run
                slow = int((process_time() - start) * _A_SECOND)
                self.spent += max(len(run.trace.calls) // _AT_ONCE, slow)
        return self.runs[key]

    def _counted(self, sizes: Sizes, runs: Runs) -> SymbolicRun | NoFormulaError:
        """Return a run without symbols as a symbolic one, or why there is none."""
        trace = runs.run_or_none(sizes)
        if trace is None:
            return NoFormulaError(f"it does not run at {sizes_text(sizes)}")
        forms = totals_by_phase(trace, runs.phases)
        return SymbolicRun(self.target.symbols, forms, SizeConditions([]), trace, {})

    def run_of_whole_blocks(
        self, counts: Mapping[str, int], phases: Sequence[str], *, whole: bool
    ) -> SymbolicRun | None:
        """Return the run at counts of whole blocks if it was made; ``whole``: make it now."""
        run = self.runs.get((tuple(self.block_counts(counts, ragged=False).items()), tuple(phases)))
        if whole:
            with suppress(OutOfBudgetError):
                run = self.at(counts, phases, ragged=False)
        alike = whole or set(self.blocks.values()) == {1}
        return run if alike and isinstance(run, SymbolicRun) else None

    def first(self, name: str) -> int:
        """Return the first number (of blocks) of a size."""
        if self.blocks[name] != 1:
            return 2
        return _BLOCK if self.is_block(name) else self.base[name]

    def is_block(self, name: str) -> bool:
        """Return whether a size is the length of another one's blocks."""
        return any(symbol(name) in block.free_symbols for block in self.blocks.values())


def plan_for(
    target: Target, hints: Sizes, phases: Sequence[str], pins: Sequence[Any],
    relations: Sequence[Any] = (), *, by_module: bool,
) -> SizePlan:  # fmt: skip
    """Return a plan with as many symbols as the code allows; NoFormulaError if it allows none.

    ``pins`` are conditions that fixed a size in a run with symbols for all sizes, ``relations`` all
    conditions of that run.
    """
    base, blocks = _base(target, phases), _refined({}, pins)
    # code that asserts N % 64 == 0 and loops over N // 64 blocks fixes N: the quotient is exact
    divisors = {x: dividing(relations, x) for x in blocks if {*blocks.values()} == {1}}
    long = ({x: block} for x, block in divisors.items() if block > _SMALL_BLOCK)
    in_blocks = blocks | next(long, {})
    plan = SizePlan(target, hints, base, blocks, by_module=by_module)
    for plan.blocks in chain([in_blocks, blocks], block_guesses(target, phases)):
        if plan.blocks and _fits_plan(plan, phases):
            return plan
    plan.blocks, plan.whole = {}, False
    return _one_by_one(plan, phases)


def _with_lengths_in_exponents(trace: Trace, block_counts: Mapping[str, BlockedSize]) -> Trace:
    """Return a run in which exponents name a size that is a number: ``2**(-B*N)``.

    With N = 64*2 + rest they were ``2**(-128*B - B*rest)``, another term in every run, and no term
    could be a polynomial in the number of blocks.
    """
    if len(block_counts) != 1:
        return trace
    (name, place), size = *block_counts.items(), symbol(*block_counts)
    tokens = place.count * place.block

    def in_exponent(power: Any) -> Any:
        exponent = sympy.expand(power.exp.xreplace({symbol(place.rest_name(name)): size - tokens}))
        parts = sympy.Add.make_args(exponent)
        named = [x if x.has(size) or (x / tokens).as_coeff_Mul()[0].q != 1 else x / tokens * size
                 for x in parts]  # fmt: skip
        return power.base ** sympy.Add(*(parts if place.rest else named))

    def written(value: Any) -> Any:
        powers = [] if isinstance(value, int) else value.atoms(sympy.Pow)
        named = {x: in_exponent(x) for x in powers if x.base.is_number and x.exp.free_symbols}
        return value.xreplace(named) if named else value

    calls = [replace(call, bytes_moved=written(call.bytes_moved)) for call in trace.calls]
    return replace(trace, calls=calls)


def whole_block_exclusions(symbolic: SymbolicRun, hints: Sizes) -> list[Any]:
    """Return the first condition by which a run excludes lengths in whole blocks, if it has one.

    Blocks of 2 or 3 do not count: an even length is another case than an odd one.
    """
    for relation in symbolic.guards.relations:
        for floor in relation.atoms(sympy.floor):
            number, divisor = floor.args[0].as_numer_denom()
            block = int(evaluate(divisor, hints))
            if block <= _SMALL_BLOCK or number not in (symbol("N"), -symbol("N")):
                continue
            ragged, whole = (
                [evaluate(relation, {**hints, "N": n * block + rest}) for n in (2, 3, 8)]
                for rest in (block // 2, 0)
            )
            if any(ragged) and not any(whole):
                return [relation]
    return []


def _fits_plan(plan: SizePlan, phases: Sequence[str]) -> bool:
    """Return whether the code runs by a plan; sizes that runs pin become numbers in it as well."""
    for _ in range(_TRIES):
        if set(plan.blocks) == set(plan.target.symbols):
            return False
        first = {name: plan.first(name) for name in plan.blocks}
        run = plan.at(first, phases, ragged=True)
        is_long = isinstance(run, SymbolicRun) and len(run.trace.calls) * _BOTH > _SYMBOLIC
        plan.whole = not isinstance(run, SymbolicRun | PinnedError)
        plan.whole |= _needs_blocks(plan, phases, getattr(run, "pins", ()))
        if plan.whole or (is_long and _BLOCK in first.values()):
            whole = plan.at(first, phases, ragged=False)
            plan.whole |= isinstance(whole, SymbolicRun)
            run = whole if plan.whole else run
        if not isinstance(run, PinnedError):
            return isinstance(run, SymbolicRun)
        plan.blocks = _refined(plan.blocks, run.pins)
    return False


def _needs_blocks(plan: SizePlan, phases: Sequence[str], pins: Iterable[Any]) -> bool:
    """Return whether lengths are whole blocks, though a symbolic run only fixed a remainder.

    At some widths the entries of any length can be divided, as by ``x.view(n // C, C, -1)``; so the
    code is run at prime sizes, with whole blocks and with one token more.
    """
    primes = dict(zip(plan.target.symbols, _PRIMES, strict=False))
    rests = {symbol(f"{name} mod {block}"): (name, block) for name, block in plan.blocks.items()}
    fixed = [rests[size] for pin in pins for size in pin.free_symbols if size in rests]
    for name, block in fixed:
        if block.free_symbols and {size.name for size in block.free_symbols} <= {*primes}:
            length = 3 * int(evaluate(block, primes))
            whole, ragged = (
                outcome(plan.target, {**primes, name: tokens}, training=trains(phases), most=SHORT)
                for tokens in (length, length + 1)
            )
            return isinstance(ragged, Exception) and not isinstance(whole, Exception)
    return False


def _base(target: Target, phases: Sequence[str]) -> dict[str, int]:
    """Return small sizes at which the code runs."""
    names = target.symbols
    for sizes in ({x: _SMALL.get(x, 2) for x in names}, {x: EVEN.get(x, 16) for x in names}):
        run = outcome(target, sizes, training=trains(phases), most=SHORT)
        if isinstance(run, Trace | TooLongError):  # so far it runs
            return sizes
    raise NoFormulaError("it does not run at small sizes")


def _one_by_one(plan: SizePlan, phases: Sequence[str]) -> SizePlan:
    """Return a plan made from numbers for all sizes, each replaced by a symbol if the code runs."""
    kept = {name: sympy.Integer(1) for name in plan.target.symbols}
    kept |= plan.blocks
    for name in plan.target.symbols:
        trial = {x: block for x, block in kept.items() if x != name}
        for _ in range(2):
            plan.blocks = trial
            run = plan.at({x: plan.first(x) for x in trial}, phases, ragged=True)
            if isinstance(run, SymbolicRun):
                kept = dict(trial)
                break
            if not isinstance(run, PinnedError):
                break
            again = _refined(trial, run.pins)
            if set(again) != {*trial, name} or again[name] == 1:
                break
            trial = again
    plan.blocks = kept
    if set(kept) == set(plan.target.symbols):
        raise NoFormulaError("the code lets no size be a symbol")
    return plan


def _refined(blocks: Mapping[str, Any], pins: Iterable[Any]) -> dict[str, Any]:
    """Return blocks with each pinned size turned into a number of blocks, or a plain number."""
    refined, changed = dict(blocks), set[str]()
    for pin in pins:
        name, block = _pinned_size(pin, blocks)
        if name in changed and (block / refined[name]).is_Integer:
            continue  # whole numbers of the block so far
        changed.add(name)
        if name in refined:
            old = refined[name]
            are_numbers = old.is_Integer and block.is_Integer
            new = sympy.Integer(gcd(int(old), int(block))) if are_numbers else sympy.Integer(1)
            block = sympy.Integer(1) if new == old else new
        refined[name] = sympy.Integer(1) if block in (2, 3) else block
    # formulas are over blocks of one size: others that come in blocks are numbers
    first = next((name for name, block in refined.items() if block != 1), None)
    return {x: block if x == first else sympy.Integer(1) for x, block in refined.items()}


def _pinned_size(pin: Any, blocks: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the size that a pin fixes, and its block: N and 64 of ``floor(N/64) = 2``."""
    names = {f"{name} mod {block}": name for name, block in blocks.items()}

    def order(size: Any) -> tuple[bool, int, str]:
        usual = size.name in FIRST
        return usual, FIRST.index(size.name) if usual else 0, size.name

    rounded = [x.args[0] for x in pin.atoms(sympy.floor, sympy.ceiling)]
    for quotient in (*rounded, *(x for x in pin.args if sympy.fraction(x)[1].free_symbols)):
        number, divisor = quotient.as_numer_denom()
        for size in sorted(number.free_symbols, key=order):
            factor = number.coeff(size, 1)
            if not divisor.has(size) and factor.is_Integer and factor:
                if divisor.is_Integer:
                    block = divisor / gcd(int(factor), int(divisor))
                else:
                    block = divisor if abs(factor) == 1 else sympy.Integer(1)
                if not any(s.name in names for s in block.free_symbols):
                    return names.get(size.name, size.name), block
    size = min(pin.free_symbols, key=order)
    return names.get(size.name, size.name), sympy.Integer(1)


# -- how many tokens the code takes as one block -----------------------------------------
#: The order in which sizes are turned into numbers if a condition does not name one.
FIRST = ("N", "B", "h", "d")
#: Block lengths to try: if the code runs at multiples of a block alone, and if at any length.
_BLOCKS, _USUAL = (2, 4, 8, 16, 64, 256), (64, 256)
#: Sizes of which none is a multiple of another.
_PRIMES = 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43
#: Operations of a run that only shows whether the code runs.
SHORT = 3000


def block_guesses(target: Target, phases: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield guesses at the block of a length: a size (``{"N": C}``) or a number (``{"N": 64}``)."""
    if "N" not in target.symbols:
        return

    def runs(length: int, **sizes: int) -> bool:
        even = {x: EVEN.get(x, 16) for x in target.symbols} | {"N": length, **sizes}
        run = outcome(target, even, training=trains(phases), most=SHORT)
        return not isinstance(run, Exception)

    others = (x for x in target.symbols if x not in FIRST)
    primes = dict(zip(others, _PRIMES, strict=False))  # {"C": 5, "chunk": 7}
    if len(primes) > 1:  # first the one whose multiples are lengths at which it runs
        primes = dict(sorted(primes.items(), key=lambda x: not runs(3 * x[1], **primes)))
    yield from ({"N": symbol(x)} for x in primes)
    usual = _USUAL if runs(37) else [n for n in _BLOCKS if runs(3 * n) and runs(5 * n)]
    yield from ({"N": sympy.Integer(block)} for block in usual)
