"""Where the sign of a difference changes, and what that says about two costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from attnprof.symbolic.lengths import EVERY, Lengths
from attnprof.symbolic.pieces import Piece
from attnprof.symbolic.polynomials import NotPolynomialError
from attnprof.symbolic.roots import Root, exactly, positive_roots

#: Two ends closer than this are the same point, seen by two isolating intervals.
SAME = Fraction(1, 2**40)
#: Integers tried beside a crossing before polynomials and integers are said to disagree.
BESIDE = 2


@dataclass(frozen=True)
class Run:
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

    runs: tuple[Run, ...]
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

    ``known`` are the integers that count. Raises :class:`NotPolynomialError` where they do not
    confirm the last crossing.
    """
    first = pieces[0].first
    runs = merged([run for piece, start in _spans(pieces) for run in _runs(piece, start)])
    if len(runs) > 1 and runs[0].sign == 0 and runs[1].start.ceiling <= first + 1:
        runs = (replace(runs[1], start=exactly(first)), *runs[2:])  # a tie at one length alone
    runs = _reached(runs, known)
    if len(runs) == 1:
        return Crossings(runs, None, known.start)
    return Crossings(runs, _confirmed(runs, difference, known), known.start)


def _reached(runs: tuple[Run, ...], known: Lengths) -> tuple[Run, ...]:
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


def _runs(piece: Piece, start: Root) -> list[Run]:
    """Signs within one piece, from the right: each root of odd multiplicity turns it."""
    if not piece.coefficients:
        return [Run(start, 0, piece), *_closing(piece)]
    sign = 1 if piece.coefficients[-1] > 0 else -1
    turns = [root for root in positive_roots(piece.coefficients) if root.crosses]
    found = []
    for root in reversed(turns):
        found.append(Run(root, sign, piece))
        sign = -sign
    found.append(Run(exactly(0), sign, piece))
    inside = [run for run in found if run.start.at > start.at + SAME]
    before = found[len(inside)]
    inside = [run for run in inside if not piece.end or run.start.at < piece.end.at - SAME]
    near = before.start if abs(before.start.at - start.at) <= SAME else start
    return [Run(near, before.sign, piece), *reversed(inside), *_closing(piece)]


def _closing(piece: Piece) -> list[Run]:
    """Marks the end of a piece, so that one of no length can be dropped."""
    return [Run(piece.end, 0, None)] if piece.end else []


def merged(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Runs of the same sign joined; those of no length dropped."""
    found: list[Run] = []
    for run, after in zip(runs, [*runs[1:], None], strict=True):
        empty = after is not None and after.start.at - run.start.at <= SAME
        if run.piece is None or empty:
            continue
        if not found or found[-1].sign != run.sign:
            found.append(run)
    return tuple(found)


def _confirmed(runs: Sequence[Run], difference: Callable[[int], int], known: Lengths) -> int:
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
    raise NotPolynomialError(f"integers do not change sign at {last.start.ceiling}")
