"""Symbolic runs of code that marks its loops, and the domain of their formulas.

Our mechanisms loop over blocks of tokens and mark equal turns, so that a run needs one of each
kind: the first, one between, a shorter last one. Which kinds there are depends on the length: 130
tokens in blocks of 64 have a last block of 2, 128 have none. Formulas are verified by concrete
runs, and the domain is widened as far as these agree. Entry point: :func:`run_with_marked_loops`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice, product, tee
from typing import Any

from attnprof.algebra.values import evaluate
from attnprof.errors import RequestError
from attnprof.trace.events import totals_by_phase
from attnprof.trace.request.target import Sizes, Target
from attnprof.trace.run.limits import TooLongError
from attnprof.trace.solve.conditions import remainder
from attnprof.trace.solve.domain import SizeConditions, shapes_in
from attnprof.trace.solve.symbolic import PinnedError, SymbolicRun, run_symbolically
from attnprof.trace.solve.verification import (
    A_LONG_RUN,
    HELD_OUT,
    ContradictedError,
    NoFormulaError,
    Runs,
    differences,
)

#: Lengths at which loops over blocks of 16 to 256 tokens, or of sqrt(N), have turns of every kind:
#: odd numbers of blocks, and a rest. The second is tried if formulas of the first hold at few.
_LENGTHS = 1021, 4133
#: Widths to try: if blocks depend on the width, the last block has one row at some, or no rest.
_OTHER_WIDTHS = 48, 24, 40, 64, 16, 96, 8, 128
#: A batch larger than that of the hints.
_LARGER_BATCH = 13
#: The search ends with formulas that hold at this share of all lengths.
_WIDE = 0.15
#: Lengths near which runs are shorter than near the hints.
_SHORTER_LENGTHS = 256, 64
#: Factor that enlarges sizes if blocks grow with them: loops then have few turns.
_WIDER = 256
#: Operations of a short run, by which formulas are verified first.
_SHORT = 400
#: Operations after which no more shapes outside the domain are run.
_OPERATIONS = 30_000
#: Shapes that are drawn outside the domain, and how many of these are run for a condition.
_SHAPES_OUTSIDE, _RUN_OUTSIDE = 120, 4
_ONE_TURN = "verified by runs of one of the turns of each loop that are alike: all are too many"
#: The most tokens by which a length grows until it has another remainder.
_NEXT = 300


def run_with_marked_loops(
    target: Target, hints: Sizes, asked_sizes: Sizes, phases: Sequence[str],
    classed: Collection[str] = (),
) -> tuple[SymbolicRun, list[dict[str, int]] | None]:  # fmt: skip
    """Return a symbolic run and the shapes that verify it, or None for these without marked loops.

    Code with marked loops is run at longer lengths, at which they have every kind of turn, and at
    other sizes, since one of the hints may make a block of a single row. Rounded quotients of
    ``classed`` sizes may be fixed.
    """
    if not target.mode.loops_in_blocks:
        return run_symbolically(target, hints, phases, classed=classed), None
    failed = list[NoFormulaError]()
    runs: Iterable[tuple[SymbolicRun, Sizes]]
    run_with = partial(run_symbolically, target, phases=phases, classed=classed)
    runs = _runs_at_asked(run_with, hints, asked_sizes, failed)
    if not _is_alone(hints, asked_sizes):
        runs = sorted(runs, key=lambda x: -_share_of_lengths(*x))
    for run, sizes in runs:
        if not run.trace.has_loops:
            return run, None
        try:
            return _verified_run(run, sizes, target, phases)
        except NoFormulaError as error:
            failed.append(error)
    raise failed[0] if failed else NoFormulaError(f"it does not hold at N = {asked_sizes['N']}")


def _runs_at_asked(
    run_with: Callable[..., SymbolicRun], hints: Sizes, asked_sizes: Sizes,
    failed: list[NoFormulaError],
) -> Iterator[tuple[SymbolicRun, Sizes]]:  # fmt: skip
    """Yield runs that hold at the asked length, and their sizes; append errors to ``failed``.

    Sizes at which the conditions of an earlier failure hold are skipped: it would repeat.
    """
    any_run = False
    for sizes in chain(nearby_hints(hints, asked_sizes), _longer(hints)):
        relations = [error.relations for error in failed if isinstance(error, PinnedError)]
        if any(SizeConditions(met).holds(sizes) for met in filter(None, relations)):
            continue
        try:
            run = run_with(hints=sizes)
        except PinnedError as error:
            failed.append(error)
            continue
        except (NoFormulaError, RequestError):  # the latter of a module built for one length
            if not (any_run or failed):
                raise
            return
        if "N" in asked_sizes and not run.holds({**sizes, "N": hints["N"]}):
            continue
        yield run, sizes
        any_run = True
        longer = "N" not in asked_sizes and sizes is not hints
        if (longer and _share_of_lengths(run, sizes) > _WIDE) or not run.trace.has_loops:
            return


def _longer(hints: Sizes) -> Iterator[Sizes]:
    """Yield the hints with lengths at which loops have turns of every kind."""
    yield from ({**hints, "N": length} for length in _LENGTHS if _has_length(hints))


def holds_at_asked(symbolic: SymbolicRun, hints: Sizes, asked_sizes: Sizes) -> bool:
    """Return whether formulas hold at the asked sizes, for any of the other sizes of the runs.

    If no length is asked for, any of these lengths is enough: 421 tokens may be another case.
    """
    lengths = [] if "N" in asked_sizes else _longer(hints)
    return any(map(symbolic.holds, chain(nearby_hints(hints, asked_sizes), lengths)))


def _has_length(hints: Sizes) -> bool:
    """Return whether the length is a symbol of a run at these hints."""
    return bool(hints.get("N", 1) > 1)


def _is_alone(hints: Sizes, asked_sizes: Sizes) -> bool:
    """Return whether formulas have to hold at one length only, or the code has no length."""
    return "N" in asked_sizes or not _has_length(hints)


def nearby_hints(hints: Sizes, asked_sizes: Sizes) -> Iterator[Sizes]:
    """Yield the hints; if a length is asked for, also widths at which its last block is longer.

    Then with a larger batch: formulas for fewer samples than heads hold at too few shapes to run.
    """
    yield hints
    if "N" in asked_sizes and "d" in hints and "d" not in asked_sizes:
        yield from ({**hints, "d": width} for width in _OTHER_WIDTHS)
    if _is_alone(hints, asked_sizes) and "B" not in asked_sizes and hints.get("B", 1) > 1:
        yield {**hints, "B": _LARGER_BATCH}


def _share_of_lengths(symbolic: SymbolicRun, hints: Sizes) -> float:
    """Return the share of lengths, of all magnitudes, at which a run's formulas hold."""
    lengths = [int(2 ** (power / 4)) for power in range(24, 65)]
    return sum(symbolic.holds({**hints, "N": length}) for length in lengths) / len(lengths)


def _verified_run(
    symbolic: SymbolicRun, hints: Sizes, target: Target, phases: Sequence[str]
) -> tuple[SymbolicRun, list[dict[str, int]]]:
    """Return the run with the domain that concrete runs confirm, and the shapes of these.

    If too few shapes of the domain have short runs, one of the equal turns of each loop is run.
    Raises :class:`NoFormulaError` if there are still too few.
    """
    runs = Runs(target, phases, A_LONG_RUN // 2)
    agreed = list[dict[str, int]]()
    symbolic = replace(symbolic, guards=SizeConditions(symbolic.guards.essential))
    with suppress(TooLongError):
        for shape in islice(_shapes(symbolic, hints, runs.longest), 1):
            runs.use_meta_if_same(shape)
        wider = _without_remainders(symbolic, runs, hints)
        try:
            agreed = runs.verify(wider, _shapes(wider, hints, runs.longest), strict=True)
        except ContradictedError:
            wider, agreed = symbolic, runs.verify(symbolic, _shapes(symbolic, hints, runs.longest))
    if len(agreed) >= HELD_OUT:
        return wider, agreed
    runs = Runs(target, phases, A_LONG_RUN // 2, once=True)
    agreed = runs.verify(symbolic, shapes_in(hints, symbolic.holds), strict=True)
    if len(agreed) < HELD_OUT:
        raise NoFormulaError(f"no {HELD_OUT} short runs where it holds")
    trace = replace(symbolic.trace, notes=[*symbolic.trace.notes, _ONE_TURN])
    return replace(symbolic, trace=trace), agreed


def _shapes(symbolic: SymbolicRun, hints: Sizes, longest: int) -> Iterator[dict[str, int]]:
    """Yield shapes of the domain, each once: first those of short runs, then those of few turns."""
    first, longer, inside = tee(shapes_in(hints, symbolic.holds), 3)
    candidates = chain(
        (shape for shape in first if _is_short(symbolic, shape)),
        (shape for shape in longer if _is_short(symbolic, shape, 4)),
        _shapes_of_few_turns(symbolic, hints, longest, inside),
    )
    yielded = list[dict[str, int]]()
    for shape in candidates:
        if shape not in yielded:
            yielded.append(shape)
            yield shape


def _shapes_of_few_turns(
    symbolic: SymbolicRun, hints: Sizes, longest: int, inside: Iterable[dict[str, int]]
) -> Iterator[dict[str, int]]:
    """Yield shapes of the domain at which loops have few turns, those of few operations first.

    Sizes other than the length that loops are over are 2 or 3. Some sizes are far larger, if that
    makes blocks larger: tensors have no values here. ``inside`` are shapes near the hints.
    """
    times = [x for x in symbolic.repeats if not isinstance(x, int)]
    looped = sorted({size.name for x in times for size in x.free_symbols} - {"N"})
    wider = {name: _WIDER * size for name, size in hints.items() if size > 1 and name != "N"}
    most = symbolic.operations(hints)
    wider = {x: y for x, y in wider.items() if symbolic.operations({**hints, x: y}) <= most}
    lengths = _SHORTER_LENGTHS if _has_length(hints) else ()
    near = (shapes_in({**hints, "N": length}, symbolic.holds) for length in lengths)
    drawn = [dict(x) for x in chain(inside, *(islice(shapes, _SHAPES_OUTSIDE) for shapes in near))]
    for shape, name in product(drawn, looped):
        few_turns = {**shape, name: 2 + shape[name] % 2}
        if symbolic.holds(few_turns):
            shape.update(few_turns)
    for (name, size), length in product(wider.items(), range(2, max(lengths, default=0))):
        few_turns = {x: 2 + (length % 4 == place) for place, x in enumerate(looped)}
        shape = {**hints, **few_turns, name: size + length % 5, "N": length}
        drawn += [shape] if symbolic.holds(shape) else []
    operations = [symbolic.operations(shape) for shape in drawn]
    short = min(longest, 2 * min(operations, default=0))
    yield from (shape for shape, number in zip(drawn, operations, strict=True) if number <= short)
    yield from (s for s, number in zip(drawn, operations, strict=True) if short < number <= longest)


def _is_short(symbolic: SymbolicRun, sizes: Sizes, times: int = 1) -> bool:
    return symbolic.operations(sizes) <= times * max(_SHORT, 3 * len(symbolic.trace.calls))


def _without_remainders(symbolic: SymbolicRun, runs: Runs, hints: Sizes) -> SymbolicRun:
    """Return the run without conditions on remainders of N if runs that break them agree.

    Other conditions stay: beyond them memory may peak elsewhere at shapes that were not tried.
    """
    agreed, refused = list[list[Any]](), list[list[Any]]()
    if not _has_length(hints):
        return symbolic
    for shape, broken in _shapes_outside(symbolic, hints):
        if runs.operations > _OPERATIONS:
            break
        if trace := runs.run_or_none(shape):
            counted = totals_by_phase(trace, runs.phases)
            (refused if differs(symbolic, counted, shape) else agreed).append(broken)
    counts = Counter(chain(*(broken for broken in agreed if all(map(_is_of_remainder, broken)))))
    dropped = {condition for condition, times in counts.items() if times >= HELD_OUT}
    for broken in refused:
        if dropped.issuperset(broken):
            dropped.difference_update(broken)
    conditions = [condition for condition in symbolic.guards.relations if condition not in dropped]
    return replace(symbolic, guards=SizeConditions(conditions))


def _is_of_remainder(condition: Any) -> bool:
    alone = {size.name for size in condition.free_symbols} == {"N"}
    return alone and hasattr(condition, "lhs") and remainder(condition) is not None


def differs(symbolic: SymbolicRun, counted: Any, shape: Sizes) -> bool:
    """Return whether the counts of a concrete run differ from the formulas."""
    try:
        return bool(differences(symbolic.forms, counted, shape))
    except ZeroDivisionError:
        return True


def _shapes_outside(
    symbolic: SymbolicRun, hints: Sizes
) -> Iterator[tuple[dict[str, int], list[Any]]]:
    """Yield shapes outside the domain, and the conditions that each breaks, fewest first."""

    def broken(sizes: Sizes) -> list[Any]:
        try:
            return [c for c in symbolic.guards.relations if not evaluate(c, sizes)]
        except ZeroDivisionError:
            return []

    def next_length(sizes: Sizes) -> Iterator[dict[str, int]]:
        """Yield the next length that breaks conditions on remainders alone."""
        longer = ({**sizes, "N": sizes["N"] + more} for more in range(1, _NEXT))
        others = (x for x in longer if broken(x) and all(map(_is_of_remainder, broken(x))))
        return islice(others, 1)

    outside = shapes_in(hints, lambda x: bool(broken(x)) and _is_short(symbolic, x))
    drawn = list(islice(outside, _SHAPES_OUTSIDE))
    inside = shapes_in(hints, lambda x: not broken(x) and _is_short(symbolic, x))
    drawn += chain(*map(next_length, islice(inside, _RUN_OUTSIDE)))
    times = Counter[Any]()
    for shape, conditions in sorted(((s, broken(s)) for s in drawn), key=lambda x: len(x[1])):
        if any(times[condition] < _RUN_OUTSIDE for condition in conditions):
            times.update(conditions)
            yield shape, conditions
