"""Find where the difference of two costs changes its sign, by polynomials or by integers alone.

A cost is played on polynomials, which hold over ranges of lengths (:class:`Piece`): their roots are
the crossings, and integers confirm them. Costs that round sizes have no polynomials; for these,
integers are bisected. :func:`solved` is the entry point.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import groupby, pairwise
from typing import Any

from attnprof.algebra import polynomials
from attnprof.algebra.polynomials import (
    Branches,
    NotPiecewisePolynomialError,
    Polynomial,
    at_width,
    value_of,
)
from attnprof.algebra.roots import Root, closed_form, exactly, positive_roots
from attnprof.costs import Number
from attnprof.crossovers.axis import EVERY, CrossoverAxis, Lengths
from attnprof.crossovers.order_search import (
    OrderSearch,
    nearest_to_middle,
    sign,
    try_all_between,
    try_as_array,
)
from attnprof.crossovers.sides import Contest, Meeting, contests
from attnprof.errors import CannotRunError, RequestError

#: Difference of two costs at (seq_len, head_dim); ints and polynomials alike.
CostDifference = Callable[[Any, Any], Any]
MOST_PIECES = 300


@dataclass(frozen=True)
class Piece:
    """One polynomial, valid for every length from ``first`` to ``end`` (None: for ever).

    ``coefficients`` are those in the length, lowest first, scaled to integers; ``terms`` hold
    powers of the head width too where the cost could be run on a symbolic one (``general``).
    """

    first: int
    end: Root | None
    coefficients: tuple[int, ...]
    terms: Polynomial
    general: bool


#: Variables at a sample (seq_len, head_dim), the second one a symbol or not.
BranchesAt = Callable[[tuple[int, int], bool], Branches]


def pieces(
    difference: CostDifference, head_dim: int, start: int = 1,
    branches_at: BranchesAt = lambda sample, _: Branches(sample),
) -> list[Piece]:  # fmt: skip
    """Return the whole difference from a length on, for one head width.

    Raises :class:`NotPiecewisePolynomialError` if it is none (floors, ceilings), or if integers
    disagree with its polynomials.
    """
    try:
        traced = _all_pieces(difference, head_dim, start, branches_at, symbolic_width=True)
    except NotPiecewisePolynomialError:
        traced = _all_pieces(difference, head_dim, start, branches_at, symbolic_width=False)
    return _check_pieces(traced, difference, head_dim)


def _all_pieces(
    difference: CostDifference, head_dim: int, start: int, branches_at: BranchesAt, *,
    symbolic_width: bool,
) -> list[Piece]:  # fmt: skip
    """Return the pieces, each played at the first length at which the one before ends."""
    result: list[Piece] = []
    first: int | None = start
    while first is not None:
        if len(result) == MOST_PIECES:
            raise NotPiecewisePolynomialError(f"more than {MOST_PIECES} pieces")
        branches = branches_at((first, head_dim), symbolic_width)
        n = branches.size(0)
        d = branches.size(1) if symbolic_width else head_dim
        terms = polynomials.terms_of(lambda n=n, d=d: difference(n, d))  # type: ignore[misc]
        unique = {tuple(one.items()): one for one in branches.decided}.values()
        compared = {at_width(one, head_dim) for one in unique}
        roots = [root for one in compared for root in positive_roots(one) if root.at >= first]
        end = min(roots, default=None)  # there the first comparison may change its answer
        result.append(Piece(first, end, at_width(terms, head_dim), terms, symbolic_width))
        first = None if end is None else max(end.ceiling, first + 1)
    return result


def _check_pieces(pieces: list[Piece], difference: CostDifference, head_dim: int) -> list[Piece]:
    """Return the pieces, each compared with integers at its first length.

    At length 1 tensors broadcast instead of being summed, and a cost may take another path: that
    length is then a piece of its own. So is a single length through which the next piece does not
    pass.
    """

    def agrees(piece: Piece) -> bool:
        counted = difference(piece.first, head_dim)
        return bool(value_of(piece.terms, piece.first, head_dim) == counted)

    start = pieces[0]
    if start.first == 1 and not agrees(start):
        longer = start.end is None or start.end.at >= 2
        one = _one_length(1, difference(1, head_dim), head_dim)
        pieces = [one, *([replace(start, first=2)] if longer else []), *pieces[1:]]
    for place, (piece, after) in enumerate(pairwise(list(pieces))):
        value = value_of(piece.terms, piece.first, head_dim)
        single = piece.end is not None and piece.end.at == piece.first
        if single and value != value_of(after.terms, piece.first, head_dim):
            pieces[place] = _one_length(piece.first, value, head_dim)
    for piece in pieces:
        if not agrees(piece):
            raise NotPiecewisePolynomialError(f"integers disagree at length {piece.first}")
    return pieces


def _one_length(length: int, value: int, head_dim: int) -> Piece:
    """Return a piece for one length, which keeps its value until the next one."""
    terms: Polynomial = {(0, 0): value} if value else {}
    return Piece(length, exactly(length + 1), at_width(terms, head_dim), terms, general=False)


# -- signs -----------------------------------------------------------------------------
#: Two ends closer than this are the same point, seen by two isolating intervals.
SAME = Fraction(1, 2**40)
#: Integers tried from a crossing on, before polynomials and integers are said to disagree.
BESIDE = 2


@dataclass(frozen=True)
class SignRun:
    """A stretch of lengths over which the difference keeps its sign (-1, 0 or 1)."""

    start: Root
    sign: int
    piece: Piece | None = None


@dataclass(frozen=True)
class Crossings:
    """Signs of cost A minus cost B along the length, and where they change.

    ``first`` is the first integer of the last stretch, decided by integers; None without a
    crossing. ``start`` is the first length that an answer for all lengths is for.
    """

    runs: tuple[SignRun, ...]
    first: int | None
    start: int = 1
    #: first and last of the values looked at, where a list of them was
    looked_at: tuple[int, int] | None = None

    @property
    def roots(self) -> list[Root]:
        """Return the values at which the sign changes, ascending."""
        return [run.start for run in self.runs[1:]]

    @property
    def verdict(self) -> str:
        """Return ``never`` (B is nowhere cheaper), ``always`` (B is), ``crosses``, ``several``."""
        if len(self.runs) > 1:
            return "crosses" if len(self.runs) == 2 else "several"
        return "always" if self.runs[0].sign > 0 else "never"

    @property
    def first_seq_len(self) -> int | None:
        """Return the first integer from which on one side is not dearer; 1 for ``always``."""
        return self.start if self.verdict == "always" else self.first


def crossings_of(
    pieces: Sequence[Piece], difference: Callable[[int], int], domain: Lengths = EVERY
) -> Crossings:
    """Return the signs along all real lengths; ``difference`` is the integer cost A - B.

    ``domain`` are the integers that count. Raises :class:`NotPiecewisePolynomialError` if they do
    not confirm the last crossing.
    """
    first, runs = pieces[0].first, list[SignRun]()
    start = exactly(first)
    for piece in pieces:
        if piece.end is None or piece.end.at - start.at > SAME:
            # each root of odd multiplicity turns the sign
            last = sign(piece.coefficients[-1]) if piece.coefficients else 0
            roots = positive_roots(piece.coefficients)
            after = [root for root in roots if root.crosses and root.at > start.at + SAME]
            inside = [root for root in after if not piece.end or root.at < piece.end.at - SAME]
            for number, at in enumerate([start, *inside]):
                runs.append(SignRun(at, last * (-1) ** (len(after) - number), piece))
        start = piece.end or start
    runs = _merged(runs)
    if len(runs) > 1 and runs[0].sign == 0 and runs[1].start.ceiling <= first + 1:
        runs = [replace(runs[1], start=exactly(first)), *runs[2:]]  # a tie at one length alone
    runs = _inside(runs, domain)
    confirmed = _confirmed(runs, difference, domain) if len(runs) > 1 else None
    return Crossings(tuple(runs), confirmed, domain.start)


def _merged(runs: Iterable[SignRun]) -> list[SignRun]:
    """Return neighbours of the same sign as one stretch."""
    return [next(group) for _, group in groupby(runs, key=lambda run: run.sign)]


def _inside(runs: Sequence[SignRun], domain: Lengths) -> list[SignRun]:
    """Return the stretches with a known length inside; all reals count if all integers do."""
    firsts = [domain.after(run.start.ceiling) for run in runs]
    return _merged(
        run
        for run, first, after in zip(runs, firsts, [*firsts[1:], None], strict=True)
        if first is not None and (domain.step == 1 or first != after)
    )


def _confirmed(runs: Sequence[SignRun], difference: Callable[[int], int], domain: Lengths) -> int:
    """Return the first integer of the last stretch, by the sign that integers have there."""
    last = runs[-1]
    length: int | None = last.start.ceiling
    for _ in range(BESIDE):
        length = None if length is None else domain.after(length)
        if length is None:
            break
        if difference(length) * last.sign >= 0 and (last.sign or not difference(length)):
            return length
        length += 1
    raise NotPiecewisePolynomialError(f"integers do not change sign at {last.start.ceiling}")


#: Lengths tried one by one around each crossing: rounding makes costs cross more than once.
AROUND = 32
#: All lengths are tried up to here, and to twice the last crossing if that is no more than these.
ALL_TRIED, MOST_TRIED = 4096, 32_768
#: Costs below this leave room for products of sizes in int64.
SAFE = 2**53


def bisected(
    difference: Callable[[int], int],
    domain: Lengths = EVERY,
    candidates: Sequence[int] | None = None,
    differences: Callable[[Sequence[int]], Sequence[int]] | None = None,
) -> Crossings:
    """Return signs of an integer difference up to 2**40; a crossing is an integer of new sign.

    ``candidates`` are tried first, else lengths of all magnitudes. Only ``domain`` lengths are
    tried, and a pair of crossings between two neighbours of their grid can be missed. Lengths that
    a mechanism refuses are left out; if all are, the refusal is raised. ``differences`` takes many
    lengths at once: none of them is missed then.
    """
    search, step = OrderSearch(lambda length: (difference(length), 0)), domain.step

    def try_all(lengths: Iterable[int]) -> None:
        grid = list(lengths)
        if differences is not None:
            try_as_array(search, differences, grid)
        search.try_all(grid)

    try_all(domain.grid() if candidates is None else candidates)
    if not search.signs and search.first_refusal:
        raise search.first_refusal

    def between(low: int, high: int) -> Iterator[int]:
        """Yield the middle; where values may be refused, then the ones around it."""
        middle = domain.after(low + max(step, (high - low) // 2)) if high - low > step else None
        if middle is not None and low < middle < high:
            yield middle
            yield from nearest_to_middle(low, high) if candidates is not None else ()

    known = 0 if differences is None else try_all_between(search, differences, domain, ALL_TRIED)
    for bracket in search.brackets():
        if bracket[1] > known:
            low, high = search.halve(*bracket, between)
            try_all(domain.within(low - AROUND * step, high + AROUND * step - 1))
    search.narrow(between)
    if differences and known < (last := 2 * max(search.crossings, default=0)) <= MOST_TRIED:
        try_all_between(search, differences, domain, last)
        search.narrow(between)
    runs = _merged(
        SignRun(exactly(length), search.signs[length]) for length in sorted(search.signs)
    )
    first = runs[-1].start.ceiling if len(runs) > 1 else None
    looked_at = None if candidates is None else search.ends
    return Crossings(tuple(runs), first, looked_at[0] if looked_at else domain.start, looked_at)


# -- solved ----------------------------------------------------------------------------
def solved(meeting: Meeting, contest: Contest, fixed_size: int) -> tuple[Crossings, str | None]:
    """Return all crossings at a fixed size, and the last one's closed form in it, or None.

    By polynomials if the costs are any, else by bisection of integers. Only lengths at which both
    costs are known count.
    """
    axis, (first, second) = meeting.axis, contest.at(fixed_size)
    domain = contest.lengths(fixed_size, axis)

    def difference(n: Number, d: Number) -> Number:
        if not isinstance(d, int) and not (first.general and second.general):
            raise NotPiecewisePolynomialError("costs of one head width")
        sides, workload = meeting.at(n, d)
        return first.cost(sides, workload) - second.cost(sides, workload)

    @cache
    def at(length: int) -> Number:
        value = difference(length, fixed_size)
        return int(value) if value == int(value) else value

    def integers(n: Number, d: Number) -> Number:
        return at(n) if isinstance(n, int) else difference(n, d)

    # over a parameter the first value may be one that a mechanism refuses
    not_this_way = NotPiecewisePolynomialError, *[RequestError] * (axis.name != "seq")
    if len(domain.stretches) == 1:
        with suppress(*not_this_way):
            start = domain.stretches[0][0]
            played = pieces(integers, fixed_size, start, meeting.branches_at)
            crossings = crossings_of(played, at, domain)
            solvable = crossings.roots and crossings.runs[-1].piece
            return crossings, _last_form(crossings, fixed_size, axis) if solvable else None
    if axis.name != "seq":
        return bisected(at, domain, axis.values(meeting.workload, fixed_size)), None

    def at_lengths(lengths: Sequence[int]) -> list[int]:
        import numpy as np

        most = max(side.cost(*meeting.at(lengths[-1], fixed_size)) for side in (first, second))
        sizes = np.array(lengths, dtype=np.int64 if most < SAFE else object)
        values: list[int] = np.broadcast_to(difference(sizes, fixed_size), sizes.shape).tolist()
        return values

    return bisected(at, domain, differences=None if contest.derived else at_lengths), None


def _last_form(crossings: Crossings, fixed_size: int, axis: CrossoverAxis) -> str | None:
    """Return a closed form of the last crossing, from a polynomial that vanishes there, or None."""
    root = crossings.roots[-1]
    for run in reversed(crossings.runs[-2:]):
        if run.piece and run.piece.general:
            for terms in _factors(run.piece.terms, axis):
                roots = positive_roots(at_width(terms, fixed_size))
                vanishes = any(abs(zero.at - root.at) <= SAME for zero in roots)
                if vanishes and (form := closed_form(terms, fixed_size, root)):
                    return form.replace("d", axis.letter)
    return None


def _factors(terms: Polynomial, axis: CrossoverAxis) -> list[Polynomial]:
    """Return the difference; over other axes than the length its factors, too.

    Over lengths, differences are of the second degree.
    """
    if axis.name == "seq":
        return [terms]
    from sympy import factor_list, symbols

    x, y = symbols("x y")
    whole = sum(factor * x**i * y**j for (i, j), factor in terms.items())
    return [terms, *(dict(part.as_poly(x, y).terms()) for part, _ in factor_list(whole, x, y)[1])]


def roots_of_formulas(meeting: Meeting, metric: str, fixed_size: int) -> list[float]:
    """Return where our closed forms of a metric cross; [] if a side has none."""
    if meeting.own_modules:
        return []
    try:
        (contest,) = contests(meeting, ("formula",), (metric,))
        return [float(root.at) for root in solved(meeting, contest, fixed_size)[0].roots]
    except (CannotRunError, RequestError):
        return []
