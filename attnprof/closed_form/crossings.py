"""Where the sign of a difference changes: by polynomials, or by exact integers alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

from attnprof.algebra.pieces import Piece
from attnprof.algebra.polynomials import NotPiecewisePolynomialError
from attnprof.algebra.roots import Root, exactly, positive_roots
from attnprof.closed_form.lengths import EVERY, Lengths
from attnprof.errors import RequestError

#: Two ends closer than this are the same point, seen by two isolating intervals.
SAME = Fraction(1, 2**40)
#: Integers tried beside a crossing before polynomials and integers are said to disagree.
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

    ``first`` is the first integer of the last run, decided by integers; None without a crossing.
    ``start`` is the first length that an answer for all lengths is for.
    """

    runs: tuple[SignRun, ...]
    first: int | None
    start: int = 1

    @property
    def roots(self) -> list[Root]:
        """Where the sign changes, ascending."""
        return [run.start for run in self.runs[1:]]

    @property
    def verdict(self) -> str:
        """``never``: B is nowhere cheaper. ``always``: B is cheaper at every length."""
        if len(self.runs) > 1:
            return "crosses" if len(self.runs) == 2 else "several"
        return "always" if self.runs[0].sign > 0 else "never"

    @property
    def first_seq_len(self) -> int | None:
        """First integer from which on the cheaper one above is not dearer; 1 for ``always``."""
        return self.start if self.verdict == "always" else self.first


def crossings_of(
    pieces: Sequence[Piece], difference: Callable[[int], int], known: Lengths = EVERY
) -> Crossings:
    """Signs along all real lengths from the first on; ``difference`` is the integer cost A - B.

    ``known`` are the integers that count. Raises :class:`NotPiecewisePolynomialError` where they
    do not confirm the last crossing.
    """
    first = pieces[0].first
    runs = merged([run for piece, start in _spans(pieces) for run in _runs(piece, start)])
    if len(runs) > 1 and runs[0].sign == 0 and runs[1].start.ceiling <= first + 1:
        runs = (replace(runs[1], start=exactly(first)), *runs[2:])  # a tie at one length alone
    runs = _reached(runs, known)
    if len(runs) == 1:
        return Crossings(runs, None, known.start)
    return Crossings(runs, _confirmed(runs, difference, known), known.start)


def _reached(runs: tuple[SignRun, ...], known: Lengths) -> tuple[SignRun, ...]:
    """Runs that a known length lies in; every real length counts where all integers are known."""
    firsts = [known.after(run.start.ceiling) for run in runs]
    kept = [
        run
        for run, first, after in zip(runs, firsts, [*firsts[1:], None], strict=True)
        if first is not None and (known.step == 1 or first != after)
    ]
    return tuple(run for i, run in enumerate(kept) if i == 0 or run.sign != kept[i - 1].sign)


def _spans(pieces: Sequence[Piece]) -> list[tuple[Piece, Root]]:
    """Each piece with its real start: the end of the one before it."""
    starts = [exactly(pieces[0].first)]
    for piece in pieces[:-1]:
        starts.append(piece.end or starts[-1])
    return list(zip(pieces, starts, strict=True))


def _runs(piece: Piece, start: Root) -> list[SignRun]:
    """Signs within one piece, from the right: each root of odd multiplicity turns it."""
    if not piece.coefficients:
        return [SignRun(start, 0, piece), *_closing(piece)]
    sign = 1 if piece.coefficients[-1] > 0 else -1
    turns = [root for root in positive_roots(piece.coefficients) if root.crosses]
    found = []
    for root in reversed(turns):
        found.append(SignRun(root, sign, piece))
        sign = -sign
    found.append(SignRun(exactly(0), sign, piece))
    inside = [run for run in found if run.start.at > start.at + SAME]
    before = found[len(inside)]
    inside = [run for run in inside if not piece.end or run.start.at < piece.end.at - SAME]
    near = before.start if abs(before.start.at - start.at) <= SAME else start
    return [SignRun(near, before.sign, piece), *reversed(inside), *_closing(piece)]


def _closing(piece: Piece) -> list[SignRun]:
    """Marks the end of a piece, so that one of no length can be dropped."""
    return [SignRun(piece.end, 0, None)] if piece.end else []


def merged(runs: Sequence[SignRun]) -> tuple[SignRun, ...]:
    """Runs of the same sign joined; those of no length dropped."""
    found: list[SignRun] = []
    for run, after in zip(runs, [*runs[1:], None], strict=True):
        empty = after is not None and after.start.at - run.start.at <= SAME
        if run.piece is None or empty:
            continue
        if not found or found[-1].sign != run.sign:
            found.append(run)
    return tuple(found)


def _confirmed(runs: Sequence[SignRun], difference: Callable[[int], int], known: Lengths) -> int:
    """The first integer of the last run, by the sign that integers have there."""
    last = runs[-1]
    length: int | None = last.start.ceiling
    for _ in range(BESIDE):
        length = None if length is None else known.after(length)
        if length is None:
            break
        if difference(length) * last.sign >= 0 and (last.sign or not difference(length)):
            return length
        length += 1
    raise NotPiecewisePolynomialError(f"integers do not change sign at {last.start.ceiling}")


#: Lengths looked at one by one around each crossing: rounding makes costs cross more than once.
AROUND = 32

Integers = Callable[[int], int]


def bisected(difference: Integers, known: Lengths = EVERY) -> Crossings:
    """Signs of an integer difference up to 2**40; a crossing is the first integer of the new sign.

    Only ``known`` lengths are looked at, and a pair of crossings between two neighbours of their
    grid can be missed. Those that a mechanism refuses are left out. Raises the refusal itself
    where all are.
    """
    signs: dict[int, int] = {}
    refusals: list[RequestError] = []
    for length in known.grid():
        try:
            signs[length] = _sign(difference(length))
        except RequestError as refusal:
            refusals.append(refusal)
    if not signs:
        raise refusals[0]
    for start, stop in _changes(signs):
        _narrow(difference, signs, known, start, stop)
    lengths = sorted(signs)
    runs = [SignRun(exactly(lengths[0]), signs[lengths[0]])]
    for length in lengths[1:]:
        if signs[length] != runs[-1].sign:
            runs.append(SignRun(exactly(length), signs[length]))
    runs = _without_ties(runs, lengths)
    first = runs[-1].start.floor if len(runs) > 1 else None
    return Crossings(tuple(runs), first, known.start)


def _sign(value: int) -> int:
    return (value > 0) - (value < 0)


def _changes(signs: dict[int, int]) -> list[tuple[int, int]]:
    lengths = sorted(signs)
    return [(a, b) for a, b in pairwise(lengths) if signs[a] != signs[b]]


def _narrow(
    difference: Integers, signs: dict[int, int], known: Lengths, start: int, stop: int
) -> None:
    """Halve until neighbours differ, then look around them one by one within the bracket."""
    low, high = start, stop
    while high - low > known.step:
        middle = known.after(low + max(known.step, (high - low) // 2))
        if middle is None or not low < middle < high:
            break
        if _look(difference, signs, middle) == signs[low]:
            low = middle
        elif middle in signs:
            high = middle
        else:
            return
    around = AROUND * known.step
    for length in known.within(low - around, high + around - 1):
        _look(difference, signs, length)


def _look(difference: Integers, signs: dict[int, int], length: int) -> int | None:
    try:
        signs[length] = _sign(difference(length))
    except RequestError:
        return None
    return signs[length]


def _without_ties(runs: list[SignRun], lengths: list[int]) -> list[SignRun]:
    """A tie at a single length belongs to the run that follows: there it is not dearer."""
    places = {length: i for i, length in enumerate(lengths)}
    found: list[SignRun] = []
    pending = None
    for run, after in zip(runs, [*runs[1:], None], strict=True):
        start = pending or run.start
        pending = None
        if run.sign == 0 and after and places[after.start.floor] - places[start.floor] == 1:
            pending = start
        elif not found or found[-1].sign != run.sign:
            found.append(SignRun(start, run.sign))
    return found
