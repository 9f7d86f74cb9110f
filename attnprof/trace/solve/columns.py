"""Traces of several runs side by side: each size of an operation is a column, one value a run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnprof.trace.events import KINDS, Call, Trace, grouped

Key = tuple[str, str, str, str, str, str]
Column = tuple[int, ...]

#: Turns of a loop, at each of its ends, that are moments of their own.
_ENDS = 4
#: Sizes of a call: bytes that it moves, and bytes that are held.
MOVED, HELD = ("bytes_moved", "touched"), ("takes", "gives", "workspace")


@dataclass(frozen=True)
class Sheet:
    """Runs of one module at several shapes, as one ``trace`` whose sizes are columns.

    ``aligned``: every run did the same operations in the same order, and a call is one of them.
    Otherwise a call is the sum of all operations of one kind at one line, without storages.
    ``held`` are, by phase, the bytes held at each moment that can be the peak, and ``most`` the
    largest of them.
    """

    aligned: bool
    trace: Trace
    held: Mapping[str, frozenset[Column]]
    most: Mapping[str, Column]

    def counts(self) -> Iterator[Column]:
        """Yield the columns of all counts, bytes moved and parameters."""
        yield self.trace.parameters
        yield from self.trace.modules.values()
        for call in self.trace.calls:
            yield from call.counts.values()
            yield from (getattr(call, name) for name in MOVED)

    def others(self) -> Iterator[Column]:
        """Yield the columns of repetitions, storages and routes."""
        for call in self.trace.calls:
            yield call.times
            yield from (getattr(call, name) for name in HELD)
            yield from (size for _, size in call.born)
        for route in self.trace.routes:
            yield from route


def sheet(traces: Sequence[Trace], phases: Iterable[str]) -> Sheet:
    """Return traces as columns: by operation where all traces align, else by kind and line."""
    places = [[(key_of(call), call.module) for call in trace.calls] for trace in traces]
    lives = [[([n for n, _ in call.born], call.died) for call in trace.calls] for trace in traces]
    aligned = all(x == places[0] for x in places) and all(x == lives[0] for x in lives)
    if aligned:
        calls = [_as_columns(row) for row in zip(*(trace.calls for trace in traces), strict=True)]
    else:
        longest = sorted(places, key=len, reverse=True)
        keys = dict.fromkeys(key for order in longest for key, _ in order)
        kinds = [grouped(trace.calls, key_of) for trace in traces]
        calls = [_as_columns([_summed(key, found.get(key, [])) for found in kinds]) for key in keys]
    held, most = {}, {}
    for phase in phases:
        moments = [dict(_moments(trace, phase, aligned=aligned)) for trace in traces]
        known = dict.fromkeys(moment for found in moments for moment in found)
        held[phase] = frozenset(tuple(found.get(m, 0) for found in moments) for m in known)
        most[phase] = tuple(max(found.values(), default=0) for found in moments)
    parameters = tuple(trace.parameters for trace in traces)
    notes = [note for note in traces[0].notes if all(note in trace.notes for trace in traces)]
    alike = all(len(trace.routes) == len(traces[0].routes) for trace in traces)
    routes = [(tuple(rows for rows, _ in runs), tuple(experts for _, experts in runs))
              for runs in zip(*(trace.routes for trace in traces), strict=alike)]  # fmt: skip
    trace = Trace(calls, parameters, notes, modules=_modules(traces), routes=routes)
    return Sheet(aligned, trace, held, most)


def _modules(traces: Sequence[Trace]) -> dict[str, Column]:
    """Return each submodule's parameters; where runs differ in submodules, of ``layers.*``."""
    named = [trace.modules for trace in traces]
    if any(list(modules) != list(named[0]) for modules in named):
        named = [
            {name: sum(n for one, n in modules.items() if unnumbered(one) == name)
             for name in map(unnumbered, modules)}
            for modules in named
        ]  # fmt: skip
    names = dict.fromkeys(name for modules in named for name in modules)
    return {name: tuple(modules.get(name, 0) for modules in named) for name in names}


def unnumbered(module: str) -> str:
    """Return ``layers.*.linear1`` for ``layers.3.linear1``."""
    return ".".join("*" if part.isdigit() else part for part in module.split("."))


def _as_columns(row: Sequence[Call]) -> Call:
    """Return one call whose sizes are columns, given that call in each run."""
    kinds = {kind for call in row for kind in call.counts}
    sizes: dict[str, Any] = {
        name: tuple(getattr(call, name) for call in row) for name in (*MOVED, *HELD, "times")
    }
    storages = zip(*(call.born for call in row), strict=True)
    return replace(
        row[0],
        counts={k: tuple(call.counts.get(k, 0) for call in row) for k in KINDS if k in kinds},
        born=tuple((held[0][0], tuple(size for _, size in held)) for held in storages),
        shape=(),
        **sizes,
    )


def key_of(call: Call, *, by_module: bool = False) -> Key:
    """Return the kind of an operation: its name, phase, line and module, without sizes.

    The module is ``layers.*.linear1``, or, ``by_module``, ``layers.3.linear1``.
    """
    module = call.module if by_module else unnumbered(call.module)
    return call.op, call.part, call.line, call.uncounted, call.scratch, module


def _summed(key: Key, calls: Sequence[Call]) -> Call:
    """Return the sum of a run's operations of one kind, of which there may be none."""
    op, part, line, uncounted, scratch, module = key
    counts = {kind: sum(call.counts.get(kind, 0) for call in calls) for kind in KINDS}
    sizes = {name: sum(getattr(call, name) for call in calls) for name in (*MOVED, "times")}
    return Call(
        op, counts, part=part, line=line, uncounted=uncounted, scratch=scratch, module=module,
        **sizes,
    )  # fmt: skip


def _moments(trace: Trace, phase: str, *, aligned: bool) -> Iterator[tuple[Any, int]]:
    """Yield a name of each moment of a phase, and the bytes held while that operation runs.

    Where runs do not align, the first and last few operations of a kind are moments of their own,
    since what a loop holds grows or shrinks; of all between only the largest is.
    """
    now = 0
    moments: dict[Key, list[int]] = {}
    for place, call in enumerate(trace.calls):
        now += call.takes - call.gives
        if phase not in {"train", "decode", call.part}:
            continue
        if aligned:
            yield place, now + call.workspace
        else:
            moments.setdefault(key_of(call), []).append(now + call.workspace)
    for key, values in moments.items():
        for place, value in enumerate(values[:_ENDS]):
            yield (key, place), value
        for place, value in enumerate(reversed(values[-_ENDS:])):
            yield (key, -1 - place), value
        if len(values) > 2 * _ENDS:
            yield (key, "between"), max(values[_ENDS:-_ENDS])
