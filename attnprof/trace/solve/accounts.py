"""A run whose sizes may be expressions, as sums of monomials: what is compared between runs."""

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

#: Passes of a loop, at its end, that are moments with a name: those of two layers or more.
_ENDS = 12


def terms(size: Any) -> Terms:
    """A size as monomials and their factors."""
    if isinstance(size, int):
        return {1: size} if size else {}
    return terms_of(size)


@dataclass(frozen=True)
class Account:
    """What one run counts and moves, by operations that are alike, and holds, moment by moment.

    ``example`` is one of the operations that a key stands for.
    """

    sizes: Mapping[tuple[Any, Field], Terms]
    example: Mapping[Any, Call]
    held: Mapping[str, Mapping[Any, Terms]]


def account(trace: Trace, phases: Iterable[str], *, aligned: bool) -> Account:
    """A run by its operations in order where runs are ``aligned``, else by kind and line."""
    sizes: dict[tuple[Any, Field], Terms] = defaultdict(dict)
    example: dict[Any, Call] = {}
    sizes["", "parameters"] = terms(trace.parameters)
    for module, own in trace.modules.items():
        name = "", (module if aligned else unnumbered(module), "own")
        sizes[name] = plus(sizes[name], terms(own), 1)
    for place, call in enumerate(trace.calls):
        key = place if aligned else key_of(call)
        example.setdefault(key, call)
        for name, size in fields(call, aligned=aligned):
            sizes[key, name] = plus(sizes[key, name], terms(size), 1)
    held = {phase: _moments(trace, phase, aligned=aligned) for phase in phases}
    return Account(dict(sizes), example, held)


def told_by(call: Call) -> tuple[Any, ...]:
    """What an operation does and holds, without sizes; of a maximum there is no polynomial."""
    born = [number for number, _ in call.born]
    return key_of(call), call.module, born, call.died, maxima_in(call.workspace)


def fields(call: Call, *, aligned: bool) -> Iterator[tuple[Field, Any]]:
    """All sizes of a call; what it holds only where it stands for itself."""
    yield from call.counts.items()
    yield from ((name, getattr(call, name)) for name in (*MOVED, "times"))
    if aligned:
        yield from ((name, getattr(call, name)) for name in HELD)
        yield from (((number, "born"), size) for number, size in call.born)


def _moments(trace: Trace, phase: str, *, aligned: bool) -> dict[Any, Terms]:
    """Bytes held while each operation of a phase runs, by names of that moment.

    Where runs do not align a moment is named by how many of its kind came before, or come after;
    in all, and within a turn of the loop around it. What is the largest of several sums has a
    moment of each.
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
    for names, (_, sides) in zip(_names(keys, aligned=aligned), found, strict=True):
        for side, value in enumerate(sides):
            named |= {(key, (place, side), *turn): value for key, place, *turn in names}
    return named


def sides_of(size: Any) -> list[Terms]:
    """The sums that a size is the largest of, in an order that their factors have no part in."""
    found = _sums(terms(size))
    if len(found) == 1:
        return found
    return sorted(found, key=lambda x: (sorted(map(str, x)), sorted(x.values())))


def maxima_in(size: Any) -> list[Any]:
    """The largest of several that a size, or its terms, have as a term."""
    if isinstance(size, int):
        return []
    import sympy

    found = size if isinstance(size, Mapping) else terms(size)
    return [x for x, n in found.items() if isinstance(x, sympy.Max) and n > 0]


def _sums(value: Terms) -> list[Terms]:
    largest = next(iter(maxima_in(value)), None)
    if largest is None:
        return [value]
    times, rest = value[largest], {x: n for x, n in value.items() if x is not largest}
    sides = ({x: times * n for x, n in terms(side).items()} for side in largest.args)
    return [found for side in sides for found in _sums(plus(rest, side, 1))]


def _names(keys: Sequence[Any], *, aligned: bool) -> Iterator[list[Any]]:
    """Every moment's names: its kind and its place from either end.

    Then those of its turn, which begins with the last operation before it of a rarer kind, and its
    place from either end of that turn.
    """
    times = Counter(keys)
    begins: list[Any] = [None] * len(keys) if aligned else list(_turns(keys, times))
    lengths = Counter(zip(keys, begins, strict=True))
    before, inside = Counter[Any](), Counter[Any]()
    for key, turn in zip(keys, begins, strict=True):
        names: list[Any] = [(key, place) for place in _ends(before[key], times[key])]
        for outer in _ends(turn[1], times[turn[0]]) if turn else ():
            ends = _ends(inside[key, turn], lengths[key, turn])
            names += [(key, place, turn[0], outer) for place in ends]
        before[key] += 1
        inside[key, turn] += 1
        yield names


def _turns(keys: Sequence[Any], times: Mapping[Any, int]) -> Iterator[Any]:
    """The last operation of a rarer kind before each, with its number; None where there is none."""
    open_turns = list[tuple[Any, int]]()
    number = Counter[Any]()
    for key in keys:
        while open_turns and times[open_turns[-1][0]] >= times[key]:
            open_turns.pop()
        yield open_turns[-1] if open_turns else None
        open_turns.append((key, number[key]))
        number[key] += 1


def _ends(place: int, many: int) -> list[int]:
    """A place of so many, and counted from the end where that is near."""
    return [place, place - many] if place - many >= -_ENDS else [place]


def told(call: Call, sizes: Mapping[Any, Any]) -> Call:
    """A call with these sizes; it holds nothing where they do not say so."""
    born = tuple((number, sizes.get((number, "born"), 0)) for number, _ in call.born)
    held = {name: sizes.get(name, 0) for name in HELD}
    moved = {name: sizes[name] for name in (*MOVED, "times")}
    counts = {kind: sizes[kind] for kind in KINDS if kind in sizes}
    alone = bool(held["takes"] or held["gives"]) or "takes" in sizes
    lives = {"born": born, "died": call.died} if alone else {"born": (), "died": ()}
    return replace(call, counts=counts, shape=(), **moved, **held, **lives)
