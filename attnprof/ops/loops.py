"""Loops and branches of a text: torch runs every turn, the counter one turn for all equal ones.

A symbolic run of torch (:mod:`attnprof.trace`) does as the counter, since its number of turns is a
symbol (:func:`followed_by`). Memory that a turn allocates must be free when it ends.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from attnprof.costs import at_least_one, ceil_div, floor_div, is_plain, is_symbolic, maximum
from attnprof.ops.layout import is_literally
from attnprof.ops.tensor import Tensor

T = TypeVar("T")

#: Recorders of runs on symbolic sizes, the innermost last; a list, which torch.compile can read.
_FOLLOWERS: list[Any] = []


@contextmanager
def followed_by(follower: Any) -> Iterator[None]:
    """Let torch run one turn for all equal ones inside, too; ``follower.repeat`` counts them."""
    _FOLLOWERS.append(follower)
    try:
        yield
    finally:
        _FOLLOWERS.pop()


def _counter_of(like: Any) -> Any:
    """Return the counter or recorder that runs one of equal turns; None if every turn runs."""
    if isinstance(like, Tensor):
        return like.counter
    return _FOLLOWERS[-1] if _FOLLOWERS else None


def turns(like: Any, every: Iterable[T], alike: Iterable[tuple[str, Any, T]]) -> Iterator[T]:
    """Return ``every`` turn of a loop for torch; for the counter one per group of equal turns.

    ``like`` is any tensor of the run. ``alike`` gives of each group a name, a number of turns, and
    one of them. Memory that a turn makes must be free when it ends.
    """
    counter = _counter_of(like)
    return iter(every) if counter is None else _counted(counter, alike)


def _counted(counter: Any, alike: Iterable[tuple[str, Any, T]]) -> Iterator[T]:
    counter.operations += 1
    for name, times, turn in alike:
        half = {"recorded_turns": 2} if name in _HALVES else {}
        if not (is_literally(times, 0) or _is_none(times)):
            with counter.repeat(times, name, **half):
                yield turn


def _is_none(times: Any) -> bool:
    """Return whether there is no turn; a comparison of torch's symbols becomes a condition."""
    return not times > 0 if _of_torch(times) else bool(getattr(times, "is_zero", False))


def _of_torch(size: Any) -> bool:
    return hasattr(size, "node")


def in_blocks(like: Any, count: Any, rows: Any, *, backwards: bool = False) -> Iterator[slice]:
    """Yield slices of at most ``rows`` of ``count`` rows, in order; or with the last one first."""
    counter = _counter_of(like)
    if counter is None:
        return _blocks(count, rows, backwards)
    full = floor_div(count, rows)
    rest = count - full * rows
    whole = "whole blocks", full, slice(0, rows)
    last = "last block", at_least_one(rest), slice(0, _not_empty(rest))
    return _counted(counter, (whole, last))


def _blocks(count: int, rows: int, backwards: bool = False) -> Iterator[slice]:
    starts = range(0, count, rows)
    for start in reversed(starts) if backwards else starts:
        yield slice(start, min(count, start + rows))


def _not_empty(rest: Any) -> Any:
    """Return the last block's length; 1 if there is none, since no shape may be empty."""
    return rest if is_symbolic(rest) or _of_torch(rest) else maximum(1, rest)


#: Names of two turns, the first and last whole block, which stand for half of these each: work is
#: linear in a block's place.
_HALVES = ("first of whole blocks", "last of whole blocks")


def _whole_blocks(full: Any, rows: Any, first: Any, last: Any) -> tuple[Any, ...]:
    return tuple(
        (name, full, (slice(0, rows), columns))
        for name, columns in zip(_HALVES, (first, last), strict=True)
    )


def in_growing_blocks(like: Any, count: Any, rows: Any) -> Iterator[tuple[slice, Any]]:
    """Yield slices of at most ``rows`` of ``count`` rows, each with its end, the rows it may see.

    Work is linear in the end, so the counter runs one block of mean length for all early ones. The
    last two are run themselves: they decide the peak, and the mean of the earlier ones is whole.
    """
    counter = _counter_of(like)
    if counter is None:
        return ((block, block.stop) for block in _blocks(count, rows))
    if _of_torch(full := floor_div(count, rows)):
        rest = count - full * rows
        last = ("last block", at_least_one(rest), (slice(0, rest), count))
        return _counted(counter, (*_whole_blocks(full, rows, rows, full * rows), last))
    full, more, early = _in_pairs(count, rows)
    rest, block = count - full * rows, slice(0, rows)
    mean = (early + 1) / 2 if is_symbolic(full) else maximum(1, (early + 1) // 2)
    alike = (
        ("early blocks", early, (block, rows * mean)),
        ("block before the last whole", more, (block, _not_empty((full - 1) * rows))),
        ("last whole block", 1, (block, full * rows)),
        ("last block", at_least_one(rest), (slice(0, _not_empty(rest)), count)),
    )
    return _counted(counter, alike)


def in_shrinking_blocks(like: Any, count: Any, rows: Any) -> Iterator[tuple[slice, Any]]:
    """Yield slices of at most ``rows`` of ``count`` rows, each with the number of rows from it on.

    Work is linear in that number, so the counter runs one block of mean length for all later ones.
    The first two are run themselves: they decide the peak, and the mean of the later ones is whole.
    """
    counter = _counter_of(like)
    if counter is None:
        return ((block, count - block.start) for block in _blocks(count, rows))
    if _of_torch(full := floor_div(count, rows)):
        rest = count - full * rows
        last = ("last block", at_least_one(rest), (slice(0, rest), rest))
        return _counted(counter, (*_whole_blocks(full, rows, count, rest + rows), last))
    full, more, later = _in_pairs(count, rows)
    rest, block = _not_empty(count - full * rows), slice(0, rows)
    before = (full + more) * rows  # twice the mean of where the later ones start
    mean = before / 2 if is_symbolic(full) else before // 2
    alike = (
        ("first block", 1, (block, count)),
        ("second block", more, (block, _not_empty(count - rows))),
        ("later blocks", later, (block, _not_empty(count - mean))),
        ("last block", at_least_one(count - full * rows), (slice(0, rest), rest)),
    )
    return _counted(counter, alike)


def _in_pairs(count: Any, rows: Any) -> tuple[Any, Any, Any]:
    """Return the whole blocks; of all but one, how many run alone and how many as their mean."""
    full = floor_div(count, rows)
    more = 0 if is_symbolic(full) else full % 2 * at_least_one(full - 1)
    return full, more, full - 1 - more


def other_blocks(
    like: Any, count: Any, rows: Any, block: slice, *, than: str = "last"
) -> Iterator[None]:
    """Yield once within a turn over :func:`in_blocks`, except in the last block (or the first)."""
    counter = _counter_of(like)
    del like
    if counter is None:
        if block.start > 0 if than == "first" else block.stop < count:
            yield
        return
    full = floor_div(count, rows)
    whole, several = block.stop is rows, at_least_one(full)
    if than == "last":  # which may be a whole block
        times: Any = ceil_div(count, rows) - 1 if whole else 0
    else:
        times = full - several if whole else at_least_one(count - rows * full) * several
    # torch's sizes are compared only if their hint is 0: costs are right without the answer
    never = _of_torch(times) and times.node.hint == 0 and _is_none(times)
    if not (never or is_literally(times, 0)):
        with counter.repeat(times, f"not the {than}", instead=True):
            yield


def each(like: Any, start: Any, stop: Any) -> Iterator[int]:
    """Yield indices from start to stop; the counter runs one of them for all."""
    counter = _counter_of(like)
    if counter is None:
        return iter(range(start, stop))
    return _counted(counter, [("", stop - start, start)])


def either(like: Any, flags: tuple[Any, Any], first: Callable[[], T], second: Callable[[], T]) -> T:
    """Return the result of the one of two functions whose flag is 1; the other's flag is 0.

    If flags are symbols or arrays, both run, each counted times its flag, and the result lies in
    the memory of both.
    """
    if is_plain(*flags):
        return first() if flags[0] else second()
    like.counter.operations += 1
    with like.counter.repeat(flags[0], "first way", present=flags[0]):
        one: Any = first()
    with like.counter.repeat(flags[1], "second way", present=flags[1]):
        other: Any = second()
    joint: Any = tuple(map(_joint, one, other)) if isinstance(one, tuple) else _joint(one, other)
    return joint  # type: ignore[no-any-return]


def _joint(a: Any, b: Any) -> Any:
    return a and Tensor(a.counter, a.shape, a.layout, (*a.storages, *b.storages), a.item_size)
