"""Check a claim: compare the published value with the value that our code computes.

A verdict is never written down: it follows from comparing ``published`` with the result of
``ours``. Give a check another published value and its verdict changes with it.

The texts of a claim are data: ``claims.toml`` in its document's folder holds the fields of its
:class:`Check`. Modules compute values, by claim: ``OURS``, ``PRINTED`` for published values from a
table, and ``FACTS``, numbers for the gaps in ``why``, ``note`` and ``lacking``.
:func:`load_checks` puts both together.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import lru_cache, partial
from operator import ge
from pathlib import Path
from typing import Any

from attnprof.algebra.expressions import expression_of
from attnprof.algebra.parser import FormulaError, Literal, parse
from attnprof.errors import RequestError
from attnprof.record import ReproduceRecord

MATCH, ERRATUM, NOT_REPRODUCIBLE = "match", "erratum", "not-reproducible"
VERDICTS = (MATCH, ERRATUM, NOT_REPRODUCIBLE)
COMPUTED, MEASURED, READING = "computed", "measured", "reading"

Agree = Callable[[Any, Any], bool]
#: Dicts by claim: our values, printed values, and numbers for the texts.
Ours = dict[str, Callable[[], Any]]
Printed = dict[str, Any]
Facts = dict[str, Callable[[Any, Any], Mapping[str, Any]]]
#: Fields that are prose: lines are joined.
_TEXTS = ("how", "why", "note", "lacking", "part")


def _identical(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


@dataclass(frozen=True)
class Agreement:
    """A comparison of two values, which agree if all their leaves in lists and dicts do.

    ``near`` compares two unequal numbers, ``alike`` all other values. ``slack`` is the error that a
    printed number may have: half of its last digit if it was rounded, 0 if it is exact.
    """

    near: Agree = lambda *_: False
    slack: Callable[[float], float] = lambda _: 0.0
    alike: Agree = _identical

    def __call__(self, published: Any, ours: Any) -> bool:
        """Return whether the two values agree."""
        a, b = published, ours
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            return set(a) == set(b) and all(self(a[key], b[key]) for key in a)
        if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
            return len(a) == len(b) and all(map(self, a, b))
        if isinstance(a, (Mapping, list, tuple)) or isinstance(b, (Mapping, list, tuple)):
            return False
        if _is_number(a) and _is_number(b):
            return float(a) == float(b) or self.near(a, b)
        return self.alike(a, b)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


#: Equality of all leaves; tuples and lists are alike.
exactly = Agreement()


def rounded(digits: int) -> Agreement:
    """Return an agreement: ours rounds to the printed number of decimals (halves either way)."""
    return within(absolute=0.5 * 10.0**-digits * (1 + 1e-9))


def within(*, absolute: float = 0.0, relative: float = 0.0) -> Agreement:
    """Return an agreement of numbers that differ by no more than this; ``relative`` is of ours."""
    return Agreement(
        lambda a, b: bool(abs(a - b) <= absolute + relative * abs(b)),
        lambda value: absolute + relative * abs(value),
    )


def above(digits: int = 0) -> Agreement:
    """Return an agreement for "more than 4": ours is less than one last digit above the number."""
    step = 10.0**-digits
    return Agreement(lambda a, b: bool(a <= b < a + step), lambda _: step / 2)


def between(published: Any, ours: Any) -> bool:
    """Return whether each printed number lies in our interval (low, high) of that name."""
    return set(published) == set(ours) and all(
        low <= published[name] <= high for name, (low, high) in ours.items()
    )


@lru_cache(maxsize=4096, typed=True)
def formula(text: Any) -> Any:
    """Return a formula's text as a sympy expression, every name a positive symbol."""
    import sympy

    if not isinstance(text, str):
        return sympy.sympify(text)
    tree = parse(text, stored=True)
    if isinstance(tree, Literal) and isinstance(tree.value, Fraction):
        return sympy.Float(text)  # to as many digits as are printed
    return expression_of(tree)


@lru_cache(maxsize=4096, typed=True)
def _equal_formulas(a: Any, b: Any) -> bool:
    import sympy

    if _identical(a, b):
        return True
    try:
        difference = sympy.expand(formula(a) - formula(b))
    except (FormulaError, TypeError):  # words, not formulas
        return False
    point = {name: at for at, name in enumerate(sorted(difference.free_symbols, key=str), 2)}
    if not difference.has(sympy.Float) and difference.subs(point).is_zero is False:
        return False  # simplifying would say so, too, after much longer
    return bool(difference == 0 or sympy.simplify(difference) == 0)


#: Equality; of formulas for all positive values of their symbols.
same_formula = Agreement(alike=_equal_formulas)


def same_digits(digits: int) -> Agreement:
    """Return an agreement of constants to this many digits, of which the last is rounded."""
    import sympy

    def agree(published: Any, ours: Any) -> bool:
        difference = (formula(published) - formula(ours)).evalf(digits + 5)
        return bool(abs(difference) < sympy.Float(0.6, digits) * sympy.Integer(10) ** -digits)

    return Agreement(alike=agree)


def agreement(entry: str | Mapping[str, float]) -> Agree:
    """Return the comparison of an entry ``agree``: ``{ rounded = 2 }``, ``{ relative = 0.01 }``."""
    if isinstance(entry, str):
        return {"between": between, "at least": ge}[entry]
    by_digits: dict[str, Callable[[int], Agreement]]
    by_digits = {"rounded": rounded, "above": above, "digits": same_digits}
    ((name, value), *_) = entry.items()
    return by_digits[name](int(value)) if name in by_digits else within(**entry)


@dataclass(frozen=True)
class Check:
    """The check of one claim, by computing.

    Args:
        claim: Its id in ``claims.csv``.
        published: The document's value: numbers, a formula's text, a bool for a statement, or a
            dict or list of these; from the document's tables if there.
        ours: Computes our value, in the same form, by formulas, definitions, code or measurements.
        how: The computation, in one sentence.
        agree: The comparison of the two values: an :class:`Agreement` or :func:`between`.
        why: The sentence on a difference: the right value, and the document's mistake. Gaps like
            ``{ours[percent]:.2f}`` are filled with ``published``, ``ours`` and ``facts``.
        note: The sentence on a match, with gaps, too.
        facts: More values for the gaps, from (published, ours).
        otherwise: The verdict on a difference: ``erratum``, or ``not-reproducible`` if the value
            depends on something that the document does not give (``why`` names it).
        lacking: An input of ours that the document does not give. Then even an agreement is
            ``not-reproducible``. With gaps, too.
        part: The part of the tables' numbers that is tested; in ``how``.
        unchecked: Names in a printed dict that are not compared, with the reason; in ``how``.
        basis: ``measured`` if ``ours`` reads a measurement, ``reading`` if it depends on our
            reading of the document.
        tables: Tables it belongs to, as ``--table`` takes them, besides those in the claim's place.
    """

    claim: str
    published: Any
    ours: Callable[[], Any]
    how: str
    agree: Agree = same_formula
    why: str = ""
    note: str = ""
    facts: Callable[[Any, Any], Mapping[str, Any]] = lambda *_: {}
    otherwise: str = ERRATUM
    lacking: str = ""
    part: str = ""
    unchecked: Mapping[str, str] = field(default_factory=dict)
    basis: str = COMPUTED
    tables: Sequence[str] = ()

    def answer(self) -> ReproduceRecord:
        """Return the record of the verdict, with both values and the reason."""
        published, ours = self.published, self.ours()
        agrees = self.agree(self._checked(published), self._checked(ours))
        matches = agrees and not self.lacking
        verdict, why = (MATCH, self.note) if matches else (self.otherwise, self.why)
        if self.lacking:
            words = "is what is printed" if agrees else "is not what is printed"
            gap = f"the document does not give {self.lacking}; that {words}"
            verdict, why = NOT_REPRODUCIBLE, f"{gap}; {why}" if why else gap
        if "{" in why:
            why = why.format(published=published, ours=ours, **self.facts(published, ours))
        return ReproduceRecord(
            claim=self.claim, published=published, ours=ours, verdict=verdict, basis=self.basis,
            why=why, how=self._how_text(),
        )  # fmt: skip

    def _how_text(self) -> str:
        """Return how the claim is checked, and the parts that are not checked."""
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


def load_checks(path: Path, modules: Sequence[Any]) -> dict[str, Check]:
    """Return a check for each claim in the modules' ``OURS``, with its fields from ``path``.

    A head of the file is a claim's id or a pattern like ``004-T2-d*``. A claim has the fields of
    every head that it fits, the last one if a field is repeated. A claim with wrong fields gets a
    check that raises :class:`RequestError`.
    """
    entries = tomllib.loads(path.read_text(encoding="utf-8"))
    ours, printed, facts = (
        {claim: x for module in modules for claim, x in getattr(module, name, {}).items()}
        for name in ("OURS", "PRINTED", "FACTS")
    )
    checks = {}
    for claim, compute in ours.items():
        fields: dict[str, Any] = {"published": printed.get(claim), "ours": compute}
        fields |= {"facts": facts[claim]} if claim in facts else {}
        for pattern, entry in entries.items():
            fields |= entry if fnmatchcase(claim, pattern) else {}
        try:
            texts = {name: " ".join(fields[name].split()) for name in _TEXTS if name in fields}
            agree = {"agree": agreement(fields["agree"])} if "agree" in fields else {}
            checks[claim] = Check(claim, **{**fields, **texts, **agree})
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            why = f"{path.name}, {claim}: {error}"
            checks[claim] = Check(claim, None, partial(_refuse, why), how="")
    return checks


def _refuse(why: str) -> None:
    raise RequestError(why)
