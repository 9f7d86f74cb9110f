"""A run as an account: each size as a sum of monomials, which can be compared between runs.

``4*B*N + 7`` is kept as ``{B*N: 4, 1: 7}``. Formulas are fitted to each factor over several runs.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, product
from operator import mul
from typing import Any

import sympy

from attnprof.algebra.maxima import above, covering, dominates, plus, terms_of
from attnprof.trace.events import KINDS, Call, Trace, unnumbered

#: Factors of monomials.
Terms = Mapping[Any, Any]
#: A size of a call by its name: a kind of count, a field, or a storage.
Field = Any
#: Places of a run along each size that is a number.
Index = tuple[int, ...]
#: Sizes of a call: bytes that it moves, and bytes that are held.
MOVED, HELD = ("bytes_moved", "touched"), ("takes", "gives", "workspace")

#: Moments at the end of a run, or of a loop's turn, that have a name counted from there, too.
_ENDS = 12


def terms(size: Any) -> Terms:
    """Return a size as monomials and their factors: ``{B*N: 4, 1: 7}`` for ``4*B*N + 7``."""
    if isinstance(size, int):
        return {1: size} if size else {}
    return terms_of(size)


def key_of(call: Call, *, by_module: bool = False) -> tuple[str, ...]:
    """Return the kind of an operation: its name, phase, line and module, without sizes.

    The module is ``layers.*.linear1``, or, ``by_module``, ``layers.3.linear1``.
    """
    module = call.module if by_module else unnumbered(call.module)
    return call.op, call.part, call.line, call.uncounted, call.scratch, module


@dataclass(frozen=True)
class Account:
    """The sizes of one run by operation, and the ``live_bytes`` at each moment of a phase.

    A key is an operation's index, or the kind of operations that are added up (``key_of``);
    ``example`` is one operation of each key.
    """

    sizes: Mapping[tuple[Any, Field], Terms]
    example: Mapping[Any, Call]
    live_bytes: Mapping[str, Mapping[Any, Terms]]


def account(
    trace: Trace, phases: Iterable[str], *, aligned: bool, by_module: bool = False
) -> Account:
    """Return the account of a run: by index of operation if ``aligned``, else by kind and line.

    ``by_module``: layers of one list are kept apart, and no moments are held.
    """
    sizes: dict[tuple[Any, Field], Terms] = defaultdict(dict)
    example: dict[Any, Call] = {}
    sizes["", "parameters"] = terms(trace.parameters)
    for module, entries in trace.modules.items():
        name = "", (module if aligned or by_module else unnumbered(module), "entries")
        sizes[name] = plus(sizes[name], terms(entries), 1)
    for place, call in enumerate(trace.calls):
        key = place if aligned else key_of(call, by_module=by_module)
        example.setdefault(key, call)
        for name, size in fields(call, aligned=aligned):
            sizes[key, name] = plus(sizes[key, name], terms(size), 1)
    measured = () if by_module else phases
    live_bytes = {phase: _moments(trace, phase, aligned=aligned) for phase in measured}
    return Account(dict(sizes), example, live_bytes)


def operation_signature(call: Call) -> tuple[Any, ...]:
    """Return an operation's kind, module, storages and maxima, which have to match across runs.

    Maxima in its scratch memory are part of it, since a maximum is no polynomial.
    """
    born = [number for number, _ in call.born]
    return key_of(call), call.module, born, call.died, maxima_in(call.workspace)


def fields(call: Call, *, aligned: bool) -> Iterator[tuple[Field, Any]]:
    """Yield the name and value of each size of a call; of its storages only if ``aligned``."""
    yield from ((kind, call.counts[kind]) for kind in KINDS if kind in call.counts)
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
    moments = list[tuple[Any, list[Terms]]]()
    for place, call in enumerate(trace.calls):
        now = plus(plus(now, terms(call.gives), -1), terms(call.takes), 1)
        if phase in {"train", "decode", call.part}:
            key = place if aligned else key_of(call)
            moments.append((key, [plus(now, side, 1) for side in sides_of(call.workspace)]))
    named: dict[Any, Terms] = {}
    keys = [key for key, _ in moments]
    for names, (_, sides) in zip(_moment_names(keys, aligned=aligned), moments, strict=True):
        for side, value in enumerate(sides):
            named |= {(key, (place, side), *turn): value for key, place, *turn in names}
    return named


def sides_of(size: Any) -> list[Terms]:
    """Return the sums that a size is the maximum of, ordered by their monomials."""
    sides = _sides(terms(size))
    if len(sides) == 1:
        return sides
    return sorted(sides, key=lambda x: (sorted(map(str, x)), sorted(x.values())))


def maxima_in(size: Any) -> list[Any]:
    """Return the maxima that a size has as terms: ``[Max(B, N)]`` of ``2*Max(B, N) + d``."""
    by_monomial = size if isinstance(size, Mapping) else terms(size)
    return [x for x, n in by_monomial.items() if isinstance(x, sympy.Max) and n > 0]


def _sides(value: Terms) -> list[Terms]:
    largest = next(iter(maxima_in(value)), None)
    if largest is None:
        return [value]
    times, rest = value[largest], {x: n for x, n in value.items() if x is not largest}
    sides = ({x: times * n for x, n in terms(side).items()} for side in largest.args)
    return [one for side in sides for one in _sides(plus(rest, side, 1))]


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
    """Return a call with these sizes; its storages are dropped if the sizes do not cover them."""
    born = tuple((number, sizes.get((number, "born"), 0)) for number, _ in call.born)
    memory = {name: sizes.get(name, 0) for name in HELD}
    moved = {name: sizes[name] for name in (*MOVED, "times")}
    counts = {kind: sizes[kind] for kind in KINDS if kind in sizes}
    has_storages = bool(memory["takes"] or memory["gives"]) or "takes" in sizes
    storages = {"born": born, "died": call.died} if has_storages else {"born": (), "died": ()}
    return replace(call, counts=counts, shape=(), **moved, **memory, **storages)


# -- families: moments of several runs that belong together ------------------------------
#: By degree of a polynomial, the factors of the latest values whose sum is the next value.
_NEXT = {1: (2, -1), 2: (3, -3, 1)}
#: Runs that confirm a polynomial; last members that are tried for a kind of operation; longer runs
#: in which a family has to have a member.
_FURTHER, _MANY, _LONGER = 2, 4_000, 400
#: Moments of one kind: the factors of the bytes held, and their place among how many.
_Rows = set[tuple[tuple[Any, ...], tuple[int, ...]]]


def families(
    runs: Sequence[Mapping[Any, Terms]], worst: Callable[[Mapping[Any, Terms]], Mapping[Any, Terms]]
) -> Iterator[list[Terms]]:
    """Yield the bytes held by each family's moments, one value a run; runs are in equal steps.

    A polynomial of degree 1 or 2 joins these values. Another joins the moments' places, and stays
    within longer runs. The last moments of a family are candidates for the peak.
    """
    monomials = list(dict.fromkeys(chain(*(x for moments in runs for x in moments.values()))))
    kinds = [_by_kind(moments, moments, monomials) for moments in runs]
    ends = [_by_kind(worst(moments), moments, monomials) for moments in runs[-3:]]
    for degree, factors in _NEXT.items():
        if len(runs) < degree + 1 + _FURTHER:
            return
        for kind in ends[-1]:
            of_kind = [run[kind] for run in kinds]
            for start in islice(product(*(x[kind] for x in ends[-degree - 1 :])), _MANY):
                if members := _members(of_kind, start, factors):
                    rows = [row for row, _ in members]
                    yield [{x: n for x, n in zip(monomials, row, strict=True) if n} for row in rows]


def _by_kind(
    moments: Mapping[Any, Terms], every: Mapping[Any, Terms], monomials: Sequence[Any]
) -> Mapping[Any, _Rows]:
    """Return the moments of each kind: held bytes, and place in the run or in a loop's turn."""
    counts: dict[Any, int] = defaultdict(int)
    for kind, (place, _), *turn in every:
        counts[kind, *turn] = max(counts[kind, *turn], place + 1)
        if turn:
            counts[kind, turn[0]] = max(counts[kind, turn[0]], turn[1] + 1)
    turned = {kind for kind, _, *turn in every if turn}
    rows: dict[Any, _Rows] = defaultdict(set)
    for (kind, (place, _), *turn), value in moments.items():
        if place >= 0 and (turn[1] >= 0 if turn else kind not in turned):
            where = [place, counts[kind, *turn]]
            where += [turn[1], counts[kind, turn[0]]] if turn else []
            rows[kind].add((tuple([value.get(x, 0) for x in monomials]), tuple(where)))
    return rows


def _members(runs: Sequence[_Rows], start: Any, factors: Sequence[int]) -> list[Any] | None:
    """Return a family, followed from its last members back to the first run.

    None if a run, or a longer one than all, has no such moment.
    """
    members = [*start]
    for run in reversed(runs[: -len(start)]):
        value = _next([row for row, _ in members], factors), _next([x for _, x in members], factors)
        if value not in run:
            return None
        members = [value, *members]
    positions = [place for _, place in reversed(members[-len(factors) :])]
    for _ in range(_LONGER):
        positions = [_next(positions, factors), *positions[:-1]]
        ends = zip(positions[0][::2], positions[0][1::2], strict=True)
        if not all(0 <= x < end for x, end in ends):
            return None
    return members


def _next(before: Sequence[Sequence[Any]], factors: Sequence[int]) -> tuple[Any, ...]:
    """Return the row that follows ``before``, whose nearest row comes first."""
    return tuple([sum(map(mul, factors, row)) for row in zip(*before[: len(factors)], strict=True)])


# -- moments that can be the peak for some sizes -----------------------------------------
def finite_differences(indices: Sequence[Index], values: Sequence[Terms]) -> list[Terms]:
    """Return the differences of values in equal steps, of the order of each of the ``indices``.

    These are a lower set: the values 1, 4, 9 at (0,), (1,), (2,) have 1, 3 and 2.
    """
    table = dict(zip(indices, values, strict=False))
    for axis in range(len(indices[0])):
        for level in range(1, 1 + max(index[axis] for index in table)):
            for index in sorted(table, reverse=True):
                if index[axis] >= level:
                    before = (*index[:axis], index[axis] - 1, *index[axis + 1 :])
                    table[index] = plus(table[index], table[before], -1)
    return list(table.values())


#: The highest power of a rest that is written in Bernstein's polynomials.
_POWER = 2


class PeakMoments:
    """Finds moments that can be the peak; ``rests`` gives for each rest the block that it is below.

    Rests from 0 to the block are compared: at whole blocks, too, no other moment is the peak.
    """

    def __init__(self, rests: Mapping[Any, Any]) -> None:
        self._rests = rests
        self._parts: dict[Any, list[tuple[Any, Any]]] = {}
        self._among: dict[int, tuple[Any, dict[Any, Terms]]] = {}
        self._leading: dict[Any, tuple[Any, list[Any]]] = {}

    def among(self, moments: Mapping[Any, Terms]) -> dict[Any, Terms]:
        """Return the moments that no other one always exceeds, and all of equal ones."""
        if id(moments) not in self._among:
            kept = self._undominated({name: [value] for name, value in moments.items()})
            self._among[id(moments)] = moments, {name: moments[name] for name in kept}
        return self._among[id(moments)][1]

    def leading(
        self, names: frozenset[Any], runs: Sequence[Mapping[Any, Terms]], indices: Sequence[Index]
    ) -> list[Any]:
        """Return the named moments that may be the worst in a run, or beyond all of them.

        Runs are those at ``indices`` in equal steps. A moment that differs by no more than another
        one in every order of differences is never above it: a quadratic one may be so from far on.
        """
        key = names, tuple(map(id, runs)), tuple(indices)
        if key not in self._leading:
            columns = {x: finite_differences(indices, [run[x] for run in runs]) for x in names}
            self._leading[key] = list(runs), [*self._undominated(columns)]
        return self._leading[key][1]

    def _undominated(self, moments: Mapping[Any, Sequence[Terms]]) -> list[Any]:
        kept: dict[Any, tuple[Terms, list[Any]]] = {}
        names_of: dict[Any, list[Any]] = {}
        for name, values in moments.items():
            names_of.setdefault(tuple(frozenset(x.items()) for x in values), []).append(name)
        for values, names in names_of.items():
            compared = {
                (place, term): factor
                for place, value in enumerate(values)
                for term, factor in self.compared(dict(value)).items()
            }
            if any(dominates(other, compared) for other, _ in kept.values()):
                continue
            kept = {k: v for k, v in kept.items() if not dominates(compared, v[0])}
            kept[values] = compared, names
        return [name for _, names in kept.values() for name in names]

    def covering(self, kept: Iterable[Terms]) -> Callable[[Terms], bool]:
        """Return a test whether a value never exceeds one of the ``kept``, or a mean of two."""
        same = {frozenset(x.items()): x for x in kept}
        is_covered = covering([self.compared(x) for x in same.values()])
        return lambda value: frozenset(value.items()) in same or is_covered(self.compared(value))

    def compared(self, value: Terms) -> Terms:
        """Return twice a value in terms that are never negative: sizes minus 2, for instance.

        A value with no smaller factor of any term is never smaller. A rest is written in
        Bernstein's polynomials on the interval from 0 to its block.
        """
        compared: dict[Any, Any] = {}
        for term, factor in value.items():
            for name, times in self._nonnegative_parts(term):
                compared[name] = compared.get(name, 0) + factor * times
        return {name: factor for name, factor in compared.items() if factor}

    def _nonnegative_parts(self, term: Any) -> list[tuple[Any, Any]]:
        if term not in self._parts:
            parts = [2 * sympy.sympify(term)]
            for rest, block in self._rests.items():
                bounds = []
                for part in parts:
                    others, power = sympy.sympify(part).as_coeff_exponent(rest)
                    ends = [part] * (_POWER + 1)  # of a higher power, which is not negative either
                    if power == 1:
                        ends = [0, others * block / 2, others * block]
                    elif power == _POWER:
                        ends = [0, 0, others * block**2]
                    bounds += ends
                parts = bounds
            self._parts[term] = [
                ((place, name), factor * times)
                for place, part in enumerate(parts)
                for product, factor in terms_of(sympy.sympify(part)).items()
                for name, times in above(product, 2).items()
            ]
        return self._parts[term]
