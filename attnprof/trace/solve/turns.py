"""Code whose loops tell which turns are alike: the run on symbols, and where its formulas hold."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice, product
from typing import Any

from attnprof.errors import RequestError
from attnprof.trace.events import totals_by_phase
from attnprof.trace.request.target import Sizes, Target
from attnprof.trace.run.limits import TooLongError
from attnprof.trace.sizes import evaluate
from attnprof.trace.solve import budget
from attnprof.trace.solve.budget import HELD_OUT, ContradictedError, NoFormulaError, Runs
from attnprof.trace.solve.conditions import remainder
from attnprof.trace.solve.domain import SizeConditions
from attnprof.trace.solve.shapes import shapes_in
from attnprof.trace.solve.symbolic import PinnedError, SymbolicRun, run_symbolically

#: Lengths at which loops over blocks of 16 to 256, or of its root, have turns of every kind: odd
#: numbers of blocks, and a rest; the second where formulas for the first hold at few lengths.
_LENGTHS = 1021, 4133
#: Where blocks depend on the width, the last one of a length is one row at some widths, or whole.
_OTHER_WIDTHS = 48, 24, 40, 64, 16, 96, 8, 128
#: Samples that are more than those of the hints.
_SAMPLES = 13
#: The share of all lengths at which formulas hold that are looked no further for.
_WIDE = 0.15
#: Lengths near which there are shorter runs.
_FEWER = 256, 64
#: How many times as large as hinted sizes are that loops are not over.
_WIDER = 256
#: Operations of a run that formulas are tried by.
_SHORT = 400
#: Operations after which formulas are tried at no more shapes that conditions leave out.
_OPERATIONS = 30_000
#: Shapes outside of the domain that are looked at, and how many a condition is doubted at.
_LOOKED, _DOUBTED = 120, 4
_ONE_TURN = "verified by runs of one of the turns of each loop that are alike: all are too many"
#: Up to where the length of another remainder is looked for.
_BESIDE = 300


def in_blocks(
    target: Target, hints: Sizes, asked: Sizes, phases: Sequence[str], refused: NoFormulaError
) -> tuple[SymbolicRun, list[dict[str, int]] | None]:
    """The same at ``hints`` that blocks divide, where a run at others was ``refused``.

    What made a size a number, and not by being refused, would do so again.
    """
    if isinstance(refused, PinnedError) and not refused.refused:
        raise refused
    try:
        return by_turns(target, hints, asked, phases)
    except NoFormulaError as error:
        raise refused if isinstance(refused, PinnedError) else error from None


def by_turns(
    target: Target,
    hints: Sizes,
    asked: Sizes,
    phases: Sequence[str],
    classed: Collection[str] = (),
) -> tuple[SymbolicRun, list[dict[str, int]] | None]:
    """The run, and shapes at which it was verified; None where there are no loops, and it was not.

    Loops have more kinds of turns at a longer length; and where one of these sizes makes something
    a single one, that is a case of its own. Rounded quotients of ``classed`` sizes may be fixed.
    """
    if not target.in_blocks:
        return run_symbolically(target, hints, phases, classed=classed), None
    failed = list[NoFormulaError]()
    found: Iterable[tuple[SymbolicRun, Sizes]]
    found = _found(
        partial(run_symbolically, target, phases=phases, classed=classed), hints, asked, failed
    )
    if not _is_alone(hints, asked):
        found = sorted(found, key=lambda x: -_share(*x))
    for run, sizes in found:
        if not run.trace.has_loops:
            return run, None
        try:
            return _settled(run, sizes, target, phases)
        except NoFormulaError as error:
            failed.append(error)
    raise failed[0] if failed else NoFormulaError(f"it does not hold at N = {asked['N']}")


def _found(
    ran: Callable[..., SymbolicRun], hints: Sizes, asked: Sizes, failed: list[NoFormulaError]
) -> Iterator[tuple[SymbolicRun, Sizes]]:
    """Runs that hold at the asked length, and their sizes; what others failed for joins those."""
    some = False
    for sizes in _tried(hints, asked, failed):
        try:
            run = ran(hints=sizes)
        except PinnedError as error:
            failed.append(error)
            continue
        except (NoFormulaError, RequestError):  # this one where it was built for one length
            if not (some or failed):
                raise
            return
        if "N" in asked and not run.holds({**sizes, "N": hints["N"]}):
            continue
        yield run, sizes
        some = True
        wide = "N" not in asked and sizes is not hints and _share(run, sizes) > _WIDE
        if wide or not run.trace.has_loops:
            return


def _tried(hints: Sizes, asked: Sizes, failed: Sequence[NoFormulaError]) -> Iterator[Sizes]:
    """Sizes of runs, but for those of which one that failed tells that they would, too."""
    longer = ({**hints, "N": length} for length in _LENGTHS if _has_length(hints))
    for sizes in chain(beside(hints, asked), longer):
        if not any(_same_as(error, sizes) for error in failed):
            yield sizes


def _has_length(hints: Sizes) -> bool:
    """Whether the length is a symbol of a run at these hints."""
    return bool(hints.get("N", 1) > 1)


def _is_alone(hints: Sizes, asked: Sizes) -> bool:
    """Whether formulas are for a length that is asked for, or the only one."""
    return "N" in asked or not _has_length(hints)


def beside(hints: Sizes, asked: Sizes) -> Iterator[Sizes]:
    """The hints; where a length is asked for, others, at which its last block may be longer.

    There formulas for fewer samples than heads may be tried at too few shapes: more are others.
    """
    yield hints
    if "N" in asked and "d" in hints and "d" not in asked:
        yield from ({**hints, "d": width} for width in _OTHER_WIDTHS)
    if _is_alone(hints, asked) and "B" not in asked and hints.get("B", 1) > 1:
        yield {**hints, "B": _SAMPLES}


def _same_as(failed: NoFormulaError, sizes: Sizes) -> bool:
    """Whether a run at these sizes would rely on the conditions that fixed one in another."""
    relations = failed.relations if isinstance(failed, PinnedError) else ()
    return bool(relations) and SizeConditions(relations).holds(sizes)


def _share(found: SymbolicRun, hints: Sizes) -> float:
    """At how many of lengths of all magnitudes it holds."""
    lengths = [int(2 ** (power / 4)) for power in range(24, 65)]
    return sum(found.holds({**hints, "N": length}) for length in lengths) / len(lengths)


def _settled(
    found: SymbolicRun, hints: Sizes, target: Target, phases: Sequence[str]
) -> tuple[SymbolicRun, list[dict[str, int]]]:
    """The formulas where they hold as far as runs show, and the shapes of these.

    Where too few shapes inside are short ones, runs have one of the turns that are alike, too;
    NoFormulaError where those are too few.
    """
    runs = Runs(target, phases, budget.A_LONG_RUN // 2)
    agreed = list[dict[str, int]]()
    found = replace(found, guards=SizeConditions(found.guards.telling))
    with suppress(TooLongError):
        for shape in islice(_shapes(found, hints, runs.longest), 1):
            runs.settle(shape)
        wider = _widened(found, runs, hints)
        try:
            agreed = runs.agreeing(wider, _shapes(wider, hints, runs.longest), strict=True)
        except ContradictedError:
            wider, agreed = found, runs.agreeing(found, _shapes(found, hints, runs.longest))
    if len(agreed) >= HELD_OUT:
        return wider, agreed
    runs = Runs(target, phases, budget.A_LONG_RUN // 2, once=True)
    agreed = runs.agreeing(found, shapes_in(hints, found.holds), strict=True)
    if len(agreed) < HELD_OUT:
        raise NoFormulaError(f"no {HELD_OUT} short runs where it holds")
    trace = replace(found.trace, notes=[*found.trace.notes, _ONE_TURN])
    return replace(found, trace=trace), agreed


def _shapes(found: SymbolicRun, hints: Sizes, longest: int) -> Iterator[dict[str, int]]:
    """Shapes inside, each once: those of short runs first, then those of few turns."""
    inside, seen = list[dict[str, int]](), list[dict[str, int]]()

    def all_inside() -> Iterator[dict[str, int]]:
        for shape in shapes_in(hints, found.holds):
            inside.append(shape)
            yield shape

    for shape in chain(
        (shape for shape in all_inside() if _is_short(found, shape)),
        (shape for shape in inside if _is_short(found, shape, 4)),
        _of_few_turns(found, hints, longest, inside),
    ):
        if shape not in seen:
            seen.append(shape)
            yield shape


def _of_few_turns(
    found: SymbolicRun, hints: Sizes, longest: int, inside: Sequence[dict[str, int]]
) -> Iterator[dict[str, int]]:
    """Shapes inside where sizes other than the length that loops are over are two or three.

    Those of few operations first. Where blocks are small only if sizes are large, some sizes are:
    tensors of these runs have no values. ``inside`` are shapes near the hints.
    """
    times = [x for x in found.repeats if not isinstance(x, int)]
    looped = sorted({size.name for x in times for size in x.free_symbols} - {"N"})
    wider = {name: _WIDER * size for name, size in hints.items() if size > 1 and name != "N"}
    most = found.operations(hints)
    wider = {x: y for x, y in wider.items() if found.operations({**hints, x: y}) <= most}
    lengths = _FEWER if _has_length(hints) else ()
    near = (shapes_in({**hints, "N": length}, found.holds) for length in lengths)
    drawn = [dict(x) for x in chain(inside, *(islice(shapes, _LOOKED) for shapes in near))]
    for shape, name in product(drawn, looped):
        few = {**shape, name: 2 + shape[name] % 2}
        if found.holds(few):
            shape.update(few)
    for (name, size), length in product(wider.items(), range(2, max(lengths, default=0))):
        few = {x: 2 + (length % 4 == place) for place, x in enumerate(looped)}
        shape = {**hints, **few, name: size + length % 5, "N": length}
        drawn += [shape] if found.holds(shape) else []
    taken = [found.operations(shape) for shape in drawn]
    short = min(longest, 2 * min(taken, default=0))
    yield from (shape for shape, many in zip(drawn, taken, strict=True) if many <= short)
    yield from (s for s, many in zip(drawn, taken, strict=True) if short < many <= longest)


def _is_short(found: SymbolicRun, sizes: Sizes, times: int = 1) -> bool:
    return found.operations(sizes) <= times * max(_SHORT, 3 * len(found.trace.calls))


def _widened(found: SymbolicRun, runs: Runs, hints: Sizes) -> SymbolicRun:
    """The same for all remainders of a length for which runs agree.

    Other conditions stay: beyond them another moment may be the peak at shapes that nobody tried.
    """
    agreed, refused = list[list[Any]](), list[list[Any]]()
    if not _has_length(hints):
        return found
    for shape, broken in _doubts(found, hints):
        if runs.operations > _OPERATIONS:
            break
        if trace := runs.tried(shape):
            counted = totals_by_phase(trace, runs.phases)
            (refused if differ(found, counted, shape) else agreed).append(broken)
    told = Counter(chain(*(broken for broken in agreed if all(map(_of_a_rest, broken)))))
    dropped = {condition for condition, times in told.items() if times >= HELD_OUT}
    for broken in refused:
        if dropped.issuperset(broken):
            dropped.difference_update(broken)
    kept = [condition for condition in found.guards.relations if condition not in dropped]
    return replace(found, guards=SizeConditions(kept))


def _of_a_rest(condition: Any) -> bool:
    alone = {size.name for size in condition.free_symbols} == {"N"}
    return alone and hasattr(condition, "lhs") and remainder(condition) is not None


def differ(found: SymbolicRun, counted: Any, shape: Sizes) -> bool:
    """Whether a run at a shape counted something else than formulas say."""
    try:
        return bool(budget.differences(found.forms, counted, shape))
    except ZeroDivisionError:
        return True


def _doubts(found: SymbolicRun, hints: Sizes) -> Iterator[tuple[dict[str, int], list[Any]]]:
    """Shapes and the conditions that they do not meet, those with few of them first."""

    def broken(sizes: Sizes) -> list[Any]:
        try:
            return [c for c in found.guards.relations if not evaluate(c, sizes)]
        except ZeroDivisionError:
            return []

    def beside(sizes: Sizes) -> Iterator[dict[str, int]]:
        """The next length that asks for other remainders alone."""
        longer = ({**sizes, "N": sizes["N"] + more} for more in range(1, _BESIDE))
        others = (x for x in longer if broken(x) and all(map(_of_a_rest, broken(x))))
        return islice(others, 1)

    outside = shapes_in(hints, lambda x: bool(broken(x)) and _is_short(found, x))
    looked = list(islice(outside, _LOOKED))
    inside = shapes_in(hints, lambda x: not broken(x) and _is_short(found, x))
    looked += chain(*map(beside, islice(inside, _DOUBTED)))
    doubted = Counter[Any]()
    for shape, conditions in sorted(((s, broken(s)) for s in looked), key=lambda x: len(x[1])):
        if any(doubted[condition] < _DOUBTED for condition in conditions):
            doubted.update(conditions)
            yield shape, conditions
