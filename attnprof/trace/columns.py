"""Traces side by side: what each operation, or each kind of operation, did in every run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnprof.trace.events import KINDS, Call, Trace

Key = tuple[str, str, str, str, str]
Column = tuple[int, ...]
Fit = Callable[[Column], Any]


@dataclass(frozen=True)
class Sheet:
    """Runs of one module at several shapes, with the same rows in all of them.

    ``aligned``: every run did the same operations in the same order, and a row is an operation.
    Otherwise a row is every operation of one name at one line, added up; ``held`` are then, for a
    phase, the bytes held at the worst moment of each row.
    """

    aligned: bool
    rows: Sequence[Sequence[Call]]
    parameters: Column
    held: Mapping[str, Mapping[Key, Column]]

    def columns(self) -> Iterator[Column]:
        """Every number that must be a polynomial, at all runs."""
        yield self.parameters
        for row in self.rows:
            for read in _readers(row):
                yield tuple(map(read, row))

    def peaks(self) -> Iterator[Column]:
        """Bytes held, which have a formula only where they are polynomials."""
        for phase in self.held.values():
            yield from phase.values()

    def rebuilt(self, fit: Fit) -> Trace:
        """One trace whose numbers are what ``fit`` makes of each column."""
        calls = [_fitted(row, fit) for row in self.rows]
        return Trace(calls, fit(self.parameters))


def sheet(traces: Sequence[Trace], phases: Iterable[str]) -> Sheet:
    """Traces as rows: operation by operation where they align, else by kind and line."""
    parameters = tuple(trace.parameters for trace in traces)
    orders = [[_key(call) for call in trace.calls] for trace in traces]
    if all(order == orders[0] for order in orders) and _same_storages(traces):
        rows = list(zip(*(trace.calls for trace in traces), strict=True))
        return Sheet(True, rows, parameters, {})
    keys = dict.fromkeys(key for order in sorted(orders, key=len, reverse=True) for key in order)
    merged = [_merged(trace) for trace in traces]
    rows = [tuple(found.get(key, _none(key)) for found in merged) for key in keys]
    held = {}
    for phase in phases:
        most = [_held(trace, phase) for trace in traces]
        held[phase] = {
            key: tuple(found.get(key, 0) for found in most)
            for key in keys
            if any(key in found for found in most)
        }
    return Sheet(False, rows, parameters, held)


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
    return Call(op, {}, 0, part, line, uncounted=uncounted, scratch=scratch)


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
        )
    return found


def _held(trace: Trace, phase: str) -> dict[Key, int]:
    """Most bytes held while an operation of each kind and line runs."""
    most: dict[Key, int] = {}
    now = 0
    for call in trace.calls:
        now += call.takes - call.gives
        if phase in {"train", call.part}:
            key = _key(call)
            most[key] = max(most.get(key, 0), now + call.workspace)
    return most


def _readers(row: Sequence[Call]) -> list[Callable[[Call], int]]:
    kinds = {kind for call in row for kind in call.counts}
    counts = [_count(kind) for kind in KINDS if kind in kinds]
    storages = [_born(place) for place in range(len(row[0].born))]
    return [*counts, *storages, *_SIZES.values()]


def _count(kind: str) -> Callable[[Call], int]:
    def read(call: Call) -> int:
        return int(call.counts.get(kind, 0))

    return read


def _size(name: str) -> Callable[[Call], int]:
    def read(call: Call) -> int:
        return int(getattr(call, name))

    return read


def _born(place: int) -> Callable[[Call], int]:
    def read(call: Call) -> int:
        return int(call.born[place][1])

    return read


_SIZES = {name: _size(name) for name in ("bytes_moved", "takes", "gives", "workspace", "touched")}


def _fitted(row: Sequence[Call], fit: Fit) -> Call:
    kinds = [kind for kind in KINDS if any(kind in call.counts for call in row)]
    counts = {kind: fit(tuple(map(_count(kind), row))) for kind in kinds}
    sizes = {name: fit(tuple(map(read, row))) for name, read in _SIZES.items()}
    born = tuple(
        (number, fit(tuple(map(_born(place), row))))
        for place, (number, _) in enumerate(row[0].born)
    )
    return replace(row[0], counts=counts, born=born, **sizes)
