"""A run as an account: each size as a sum of monomials, which can be compared between runs.

``4*B*N + 7`` is kept as ``{B*N: 4, 1: 7}``. Formulas are fitted to each factor over several runs.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnprof.algebra.maxima import plus, terms_of
from attnprof.trace.events import KINDS, Call, Trace
from attnprof.trace.solve.columns import HELD, MOVED, key_of, unnumbered

#: Factors of monomials.
Terms = Mapping[Any, Any]
#: A size of a call by its name: a kind of count, a field, or a storage.
Field = Any

#: Moments at the end of a run, or of a loop's turn, that have a name counted from there, too.
_ENDS = 12


def terms(size: Any) -> Terms:
    """Return a size as monomials and their factors: ``{B*N: 4, 1: 7}`` for ``4*B*N + 7``."""
    if isinstance(size, int):
        return {1: size} if size else {}
    return terms_of(size)


@dataclass(frozen=True)
class Account:
    """The sizes of one run by operation, and the bytes ``held`` at each moment of a phase.

    A key is an operation's index, or the kind of operations that are added up (``key_of``);
    ``example`` is one operation of each key.
    """

    sizes: Mapping[tuple[Any, Field], Terms]
    example: Mapping[Any, Call]
    held: Mapping[str, Mapping[Any, Terms]]


def account(
    trace: Trace, phases: Iterable[str], *, aligned: bool, by_module: bool = False
) -> Account:
    """Return the account of a run: by index of operation if ``aligned``, else by kind and line.

    ``by_module``: layers of one list are kept apart, and no moments are held.
    """
    sizes: dict[tuple[Any, Field], Terms] = defaultdict(dict)
    example: dict[Any, Call] = {}
    sizes["", "parameters"] = terms(trace.parameters)
    for module, own in trace.modules.items():
        name = "", (module if aligned or by_module else unnumbered(module), "own")
        sizes[name] = plus(sizes[name], terms(own), 1)
    for place, call in enumerate(trace.calls):
        key = place if aligned else key_of(call, by_module=by_module)
        example.setdefault(key, call)
        for name, size in fields(call, aligned=aligned):
            sizes[key, name] = plus(sizes[key, name], terms(size), 1)
    measured = () if by_module else phases
    held = {phase: _moments(trace, phase, aligned=aligned) for phase in measured}
    return Account(dict(sizes), example, held)


def operation_signature(call: Call) -> tuple[Any, ...]:
    """Return an operation's kind, module, storages and maxima, which have to match across runs.

    Maxima in its scratch memory are part of it, since a maximum is no polynomial.
    """
    born = [number for number, _ in call.born]
    return key_of(call), call.module, born, call.died, maxima_in(call.workspace)


def fields(call: Call, *, aligned: bool) -> Iterator[tuple[Field, Any]]:
    """Yield the name and value of each size of a call; of its storages only if ``aligned``."""
    yield from call.counts.items()
    yield from ((name, getattr(call, name)) for name in (*MOVED, "times"))
    if aligned:
        yield from ((name, getattr(call, name)) for name in HELD)
        yield from (((number, "born"), size) for number, size in call.born)


def _moments(trace: Trace, phase: str, *, aligned: bool) -> dict[Any, Terms]:
    """Return the bytes held while each operation of a phase runs, by names of that moment.

    Where runs do not align, a moment is named by its kind and its place among that kind, counted
    from either end of the run and of the turn of a loop around it. Scratch memory that is a maximum
    of several sums gives one moment a sum.
    """
    now: Terms = {}
    found = list[tuple[Any, list[Terms]]]()
    for place, call in enumerate(trace.calls):
        now = plus(plus(now, terms(call.gives), -1), terms(call.takes), 1)
        if phase in {"train", "decode", call.part}:
            key = place if aligned else key_of(call)
            found.append((key, [plus(now, side, 1) for side in sides_of(call.workspace)]))
    named: dict[Any, Terms] = {}
    keys = [key for key, _ in found]
    for names, (_, sides) in zip(_moment_names(keys, aligned=aligned), found, strict=True):
        for side, value in enumerate(sides):
            named |= {(key, (place, side), *turn): value for key, place, *turn in names}
    return named


def sides_of(size: Any) -> list[Terms]:
    """Return the sums that a size is the maximum of, ordered by their monomials."""
    found = _sides(terms(size))
    if len(found) == 1:
        return found
    return sorted(found, key=lambda x: (sorted(map(str, x)), sorted(x.values())))


def maxima_in(size: Any) -> list[Any]:
    """Return the maxima that a size has as terms: ``[Max(B, N)]`` of ``2*Max(B, N) + d``."""
    if isinstance(size, int):
        return []
    import sympy

    found = size if isinstance(size, Mapping) else terms(size)
    return [x for x, n in found.items() if isinstance(x, sympy.Max) and n > 0]


def _sides(value: Terms) -> list[Terms]:
    largest = next(iter(maxima_in(value)), None)
    if largest is None:
        return [value]
    times, rest = value[largest], {x: n for x, n in value.items() if x is not largest}
    sides = ({x: times * n for x, n in terms(side).items()} for side in largest.args)
    return [found for side in sides for found in _sides(plus(rest, side, 1))]


def _moment_names(keys: Sequence[Any], *, aligned: bool) -> Iterator[list[Any]]:
    """Yield the names of every moment: its kind, and its place from either end of the run.

    Inside a loop also the turn and its place from either end of that turn. A turn begins with the
    last operation of a rarer kind before the moment.
    """
    times = Counter(keys)
    begins: list[Any] = [None] * len(keys) if aligned else list(_loop_turns(keys, times))
    lengths = Counter(zip(keys, begins, strict=True))
    before, inside = Counter[Any](), Counter[Any]()
    for key, turn in zip(keys, begins, strict=True):
        names: list[Any] = [(key, place) for place in _end_names(before[key], times[key])]
        for outer in _end_names(turn[1], times[turn[0]]) if turn else ():
            ends = _end_names(inside[key, turn], lengths[key, turn])
            names += [(key, place, turn[0], outer) for place in ends]
        before[key] += 1
        inside[key, turn] += 1
        yield names


def _loop_turns(keys: Sequence[Any], times: Mapping[Any, int]) -> Iterator[Any]:
    """Yield for each operation the last one of a rarer kind before it, with its number, or None."""
    open_turns = list[tuple[Any, int]]()
    number = Counter[Any]()
    for key in keys:
        while open_turns and times[open_turns[-1][0]] >= times[key]:
            open_turns.pop()
        yield open_turns[-1] if open_turns else None
        open_turns.append((key, number[key]))
        number[key] += 1


def _end_names(place: int, many: int) -> list[int]:
    """Return an index among ``many``, and the negative index as well near the end."""
    return [place, place - many] if place - many >= -_ENDS else [place]


def with_sizes(call: Call, sizes: Mapping[Any, Any]) -> Call:
    """Return a call with these sizes, and with no storages where the sizes have none."""
    born = tuple((number, sizes.get((number, "born"), 0)) for number, _ in call.born)
    held = {name: sizes.get(name, 0) for name in HELD}
    moved = {name: sizes[name] for name in (*MOVED, "times")}
    counts = {kind: sizes[kind] for kind in KINDS if kind in sizes}
    alone = bool(held["takes"] or held["gives"]) or "takes" in sizes
    lives = {"born": born, "died": call.died} if alone else {"born": (), "died": ()}
    return replace(call, counts=counts, shape=(), **moved, **held, **lives)
