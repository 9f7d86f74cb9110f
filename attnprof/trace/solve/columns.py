"""Traces side by side: what each operation, or each kind of operation, did in every run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnprof.trace.events import KINDS, Call, Trace

Key = tuple[str, str, str, str, str]
Column = tuple[int, ...]
Fit = Callable[[Column], Any]
Read = Callable[[Call], int]

#: Sizes of a call that tell what is held.
#: Passes of a loop, at each of its ends, that are moments of their own.
_ENDS = 4
_HELD = ("takes", "gives", "workspace")


@dataclass(frozen=True)
class Sheet:
    """Runs of one module at several shapes, with the same rows in all of them.

    ``aligned``: every run did the same operations in the same order, and a row is an operation.
    Otherwise a row is every operation of one name at one line, added up. ``held`` are, for a
    phase, the bytes held at each moment that can be the worst, and ``most`` the largest of them.
    ``notes`` are those that all runs have.
    """

    aligned: bool
    rows: Sequence[Sequence[Call]]
    parameters: Column
    held: Mapping[str, frozenset[Column]]
    most: Mapping[str, Column]
    notes: Sequence[str] = ()

    def counts(self) -> Iterator[Column]:
        """Every count and number of bytes moved, at all runs."""
        yield self.parameters
        for row in self.rows:
            for read in _counts(row).values():
                yield tuple(map(read, row))

    def times(self) -> Iterator[Column]:
        """How many operations each row is."""
        for row in self.rows if not self.aligned else ():
            yield tuple(map(_times, row))

    def storages(self) -> Iterator[Column]:
        """What each operation brings to life, ends, and holds for itself."""
        for row in self.rows if self.aligned else ():
            for read in _lives(row):
                yield tuple(map(read, row))

    def moments(self) -> Iterator[Column]:
        """What is held at each moment of each phase."""
        for held in self.held.values():
            yield from held

    def rebuilt(self, fit: Fit, known: Fit, *, with_storages: bool) -> Trace:
        """One trace whose numbers are what ``fit`` makes of each column; None where not ``known``.

        Only how many operations a row is may be no polynomial.
        """
        lives = with_storages and self.aligned
        calls = [_fitted(row, fit, lives=lives) for row in self.rows]
        if not self.aligned:
            calls = [
                replace(call, times=known(column))
                for call, column in zip(calls, self.times(), strict=True)
            ]
        return Trace(calls, fit(self.parameters), list(self.notes))


def sheet(traces: Sequence[Trace], phases: Iterable[str]) -> Sheet:
    """Traces as rows: operation by operation where they align, else by kind and line."""
    parameters = tuple(trace.parameters for trace in traces)
    orders = [[_key(call) for call in trace.calls] for trace in traces]
    aligned = all(order == orders[0] for order in orders) and _same_storages(traces)
    rows: list[Sequence[Call]]
    if aligned:
        rows = list(zip(*(trace.calls for trace in traces), strict=True))
    else:
        longest = sorted(orders, key=len, reverse=True)
        keys = dict.fromkeys(key for order in longest for key in order)
        merged = [_merged(trace) for trace in traces]
        rows = [tuple(found.get(key, _none(key)) for found in merged) for key in keys]
    held, most = {}, {}
    for phase in phases:
        moments = [dict(_moments(trace, phase, aligned=aligned)) for trace in traces]
        known = dict.fromkeys(moment for found in moments for moment in found)
        held[phase] = frozenset(tuple(found.get(m, 0) for found in moments) for m in known)
        most[phase] = tuple(max(found.values(), default=0) for found in moments)
    notes = [note for note in traces[0].notes if all(note in trace.notes for trace in traces)]
    return Sheet(aligned, rows, parameters, held, most, notes)


def _same_storages(traces: Sequence[Trace]) -> bool:
    """Whether the same storages come to life and die at the same operations."""
    lives = [
        [([number for number, _ in call.born], call.died) for call in trace.calls]
        for trace in traces
    ]
    return all(life == lives[0] for life in lives)


def _key(call: Call) -> Key:
    return call.op, call.part, call.line, call.uncounted, call.scratch


def _none(key: Key) -> Call:
    op, part, line, uncounted, scratch = key
    return Call(op, {}, 0, part, line, uncounted=uncounted, scratch=scratch, times=0)


def _times(call: Call) -> int:
    return int(call.times)


def _merged(trace: Trace) -> dict[Key, Call]:
    """Operations of one name at one line as one; what they hold is left out."""
    found: dict[Key, Call] = {}
    for call in trace.calls:
        key = _key(call)
        one = found.get(key, _none(key))
        found[key] = replace(
            one,
            counts={k: one.counts.get(k, 0) + call.counts.get(k, 0) for k in KINDS},
            bytes_moved=one.bytes_moved + call.bytes_moved,
            touched=one.touched + call.touched,
            times=one.times + call.times,
        )
    return found


def _moments(trace: Trace, phase: str, *, aligned: bool) -> Iterator[tuple[Any, int]]:
    """Bytes held while each operation of a phase runs, by a name of that moment.

    Where runs do not align, of all operations of one name at one line the first few and the last
    few are moments of their own, for in a loop what is held grows or shrinks; of those between
    only the largest is.
    """
    now = 0
    found: dict[Key, list[int]] = {}
    for place, call in enumerate(trace.calls):
        now += call.takes - call.gives
        if phase not in {"train", call.part}:
            continue
        if aligned:
            yield place, now + call.workspace
        else:
            found.setdefault(_key(call), []).append(now + call.workspace)
    for key, values in found.items():
        for place, value in enumerate(values[:_ENDS]):
            yield (key, place), value
        for place, value in enumerate(reversed(values[-_ENDS:])):
            yield (key, -1 - place), value
        if len(values) > 2 * _ENDS:
            yield (key, "between"), max(values[_ENDS:-_ENDS])


def _counts(row: Sequence[Call]) -> dict[str, Read]:
    """What reads each count that some call of a row has, and its bytes."""
    kinds = {kind for call in row for kind in call.counts}
    found = {kind: _count(kind) for kind in KINDS if kind in kinds}
    return {**found, "bytes_moved": _size("bytes_moved"), "touched": _size("touched")}


def _lives(row: Sequence[Call]) -> list[Read]:
    return [*map(_born, range(len(row[0].born))), *map(_size, _HELD)]


def _count(kind: str) -> Read:
    def read(call: Call) -> int:
        return int(call.counts.get(kind, 0))

    return read


def _size(name: str) -> Read:
    def read(call: Call) -> int:
        return int(getattr(call, name))

    return read


def _born(place: int) -> Read:
    def read(call: Call) -> int:
        return int(call.born[place][1])

    return read


def _fitted(row: Sequence[Call], fit: Fit, *, lives: bool) -> Call:
    found = {name: fit(tuple(map(read, row))) for name, read in _counts(row).items()}
    counts = {kind: found[kind] for kind in KINDS if kind in found}
    moved = {"bytes_moved": found["bytes_moved"], "touched": found["touched"]}
    if not lives:
        blank: dict[str, Any] = dict.fromkeys(_HELD, 0)
        return replace(row[0], counts=counts, **moved, **blank, born=(), died=(), shape=())
    held = {name: fit(tuple(map(_size(name), row))) for name in _HELD}
    born = tuple(
        (number, fit(tuple(map(_born(place), row))))
        for place, (number, _) in enumerate(row[0].born)
    )
    return replace(row[0], counts=counts, **moved, **held, born=born, shape=())
