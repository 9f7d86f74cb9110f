"""How a claim is answered: what is printed, what comes out here, whether the two agree.

A verdict is never written down: it follows from comparing ``published`` with what ``ours``
computes. Give a check another published value and its verdict changes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from attnprof.papers.agreement import exactly

MATCH, ERRATUM, NOT_REPRODUCIBLE = "match", "erratum", "not-reproducible"
VERDICTS = (MATCH, ERRATUM, NOT_REPRODUCIBLE)
COMPUTED, MEASURED, READING = "computed", "measured", "reading"

#: Stands for "what the document prints", which itself may be None.
_PRINTED: Any = object()


@dataclass(frozen=True)
class ClaimAnswer:
    """A claim's verdict with what it rests on. Values are numbers, text, or lists and dicts."""

    claim: str
    published: Any
    ours: Any
    verdict: str
    basis: str
    why: str
    how: str


@dataclass(frozen=True)
class Check:
    """Answers one claim by computing.

    Args:
        claim: Its id in ``claims.csv``.
        published: What the document says: numbers, a formula's text, a bool for a statement
            ("the claim holds"), or a dict or list of these; from the document's tables if there.
        ours: What our formulas, definitions, code, or measurements say, in the same form.
        how: What was computed from what, in one sentence.
        agree: Whether two such values are the same; see :mod:`attnprof.papers.agreement`.
        why: For a difference, what is right and where the document goes wrong: text, or made from
            (published, ours). Not shown for a match unless ``note`` says something.
        note: What to know although it matches: text, or made from what comes out here.
        otherwise: What a difference means: ``erratum``, or ``not-reproducible`` where the value
            rests on something the document does not give (``why`` says what is missing).
        lacking: What ours takes from elsewhere because the document does not give it. Then even
            an agreement is ``not-reproducible``: it says what those values would give.
        part: What of the tables' numbers it tests, where a last digit more or less does not
            matter: ``their order``; ``how`` says so.
        unchecked: Names in a printed dict that are shown and not compared, with the reason;
            ``how`` says so.
        basis: ``computed``; ``measured`` where ``ours`` reads a measurement; ``reading`` where it
            rests on facts that were read in the document.
        tables: Numbers of the document's tables it belongs to, as ``--table`` takes them.
    """

    claim: str
    published: Any
    ours: Callable[[], Any]
    how: str
    agree: Callable[[Any, Any], bool] = exactly
    why: str | Callable[[Any, Any], str] = ""
    note: str | Callable[[Any], str] = ""
    otherwise: str = ERRATUM
    lacking: str = ""
    part: str = ""
    unchecked: Mapping[str, str] = field(default_factory=dict)
    basis: str = COMPUTED
    tables: tuple[str, ...] = ()

    def answer(self, published: Any = _PRINTED) -> ClaimAnswer:
        """The verdict on what is printed, or on another value in its place."""
        said = self.published if published is _PRINTED else published
        found = self.ours()
        agrees = self.agree(self._checked(said), self._checked(found))
        verdict, why = self._judged(agrees, said, found)
        return ClaimAnswer(self.claim, said, found, verdict, self.basis, why, self.told())

    def told(self) -> str:
        """How it is checked, and which part is not."""
        names: dict[str, list[str]] = {}
        for name, why in self.unchecked.items():
            names.setdefault(why, []).append(name)
        tested = (f"of the tables' numbers it tests {self.part}",) if self.part else ()
        parts = (f"not checked ({', '.join(some)}): {why}" for why, some in names.items())
        return "; ".join((self.how, *tested, *parts))

    def _checked(self, value: Any) -> Any:
        if not self.unchecked:
            return value
        return {name: item for name, item in value.items() if name not in self.unchecked}

    def _judged(self, agrees: bool, said: Any, found: Any) -> tuple[str, str]:
        if self.lacking:
            words = "is what is printed" if agrees else "is not what is printed"
            more = self.why(said, found) if callable(self.why) else self.why
            told = f"the document does not give {self.lacking}; that {words}"
            return NOT_REPRODUCIBLE, "; ".join(filter(None, (told, more)))
        if agrees:
            return MATCH, self.note(found) if callable(self.note) else self.note
        return self.otherwise, self.why(said, found) if callable(self.why) else self.why


@dataclass(frozen=True)
class Reading:
    """A claim that only reading can judge (wording): where to read, and the reason.

    At most fifty of all claims may be answered so.
    """

    claim: str
    published: Any
    ours: Any
    verdict: str
    why: str
    how: str
    tables: tuple[str, ...] = ()
    basis = READING

    def answer(self) -> ClaimAnswer:
        """The verdict of whoever read it."""
        return ClaimAnswer(
            self.claim, self.published, self.ours, self.verdict, READING, self.why, self.how
        )
