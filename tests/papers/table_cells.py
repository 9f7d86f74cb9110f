"""Published values, and the numbers of tables, changed one at a time: what a check must notice."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib import import_module
from math import ceil
from pkgutil import iter_modules
from typing import Any

from attnprof.papers import documents
from attnprof.papers.checks import MATCH, Check, formula
from attnprof.record import ReproduceRecord

#: Stands for any text that is not a formula.
OTHER = "something else"
#: A number is changed by a little more than twice what it may be off: ours may be off the other way
BEYOND = 2.02
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?")


def perturbed(value: Any, slack: Callable[[float], float] = lambda _: 0.0) -> Iterator[Any]:
    """The value with each of its numbers, statements and texts changed, one at a time.

    A number goes up and down by its last digit, or by more than ``slack`` lets it be off.
    """
    if isinstance(value, dict):
        for name, item in value.items():
            yield from ({**value, name: other} for other in perturbed(item, slack))
    elif isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            for other in perturbed(item, slack):
                yield [*value[:place], other, *value[place + 1 :]]
    else:
        yield from changed(value, slack)


def changed(leaf: Any, slack: Callable[[float], float]) -> Iterator[Any]:
    """Each way in which one leaf is changed."""
    if isinstance(leaf, bool):
        yield not leaf
    elif isinstance(leaf, (int, float)):
        step = BEYOND * slack(leaf) or last_digit(leaf)
        step = max(1, ceil(step)) if isinstance(leaf, int) else step
        yield from (type(leaf)(leaf + step), type(leaf)(leaf - step))
    elif isinstance(leaf, str):
        yield from changed_text(leaf)
    else:
        raise TypeError(f"{leaf!r} is no number, text, statement, list or mapping of these")


def last_digit(number: float) -> float:
    """One in the last place of a number as it is written."""
    if isinstance(number, int):
        return 1
    _, _, decimals = f"{number!r}".partition(".")
    return float(10.0 ** -len(decimals)) if decimals.isdigit() else abs(number) * 1e-6


def changed_text(text: str) -> Iterator[str]:
    """Another text; of a formula, one more, and each of its numbers larger by one."""
    if not is_formula(text):
        yield OTHER
        return
    yield f"({text}) + 1"
    for match in _NUMBER.finditer(text):
        number = match[0]
        more = f"{number[:-1]}{(int(number[-1]) + 1) % 10}" if "." in number else int(number) + 1
        yield f"{text[: match.start()]}{more}{text[match.end() :]}"


def is_formula(text: str) -> bool:
    """Whether a text is an expression; words and orders of growth are not."""
    try:
        return not text.startswith("O(") and bool(formula(text).is_commutative)
    except Exception:  # noqa: BLE001 - sympy says no in many ways
        return False


#: Table (its file's stem), row and column.
Place = tuple[str, int, str]
_WHOLE = re.compile(r"-?\d+(\.\d+)?")
#: Which of these are near to what is printed.
FINE = (0, 2, 3, 4)
_rows = documents.Document.rows


@cache
def _printed(its: documents.Document, table: str) -> list[dict[str, str]]:
    return _rows(its, table)


class _Row(dict[str, str]):
    """A row that notes which of its cells are looked at."""

    def __init__(self, cells: dict[str, str], place: tuple[str, int], read: set[Place]) -> None:
        super().__init__(cells)
        self._place, self._read = place, read

    def __getitem__(self, column: str) -> str:
        self._read.add((*self._place, column))
        return super().__getitem__(column)

    def items(self):
        return [(column, self[column]) for column in self]

    def values(self):
        return [self[column] for column in self]


@contextmanager
def tables(change: tuple[Place, str] | None = None) -> Iterator[set[Place]]:
    """Inside, tables have one changed cell, or, without, the places that are read are noted."""
    read: set[Place] = set()

    def rows(its: documents.Document, table: str) -> list[dict[str, str]]:
        printed = _printed(its, table)
        if change is None:
            return [_Row(row, (table, at), read) for at, row in enumerate(printed)]
        cells = [dict(row) for row in printed]
        (changed, at, column), text = change
        if changed == table:
            cells[at][column] = text
        return cells

    documents.Document.rows = rows
    try:
        yield read
    finally:
        documents.Document.rows = _rows


def cell(number: str, place: Place) -> str:
    """What is printed there."""
    table, row, column = place
    return _printed(documents.DOCUMENTS[number], table)[row].get(column, "")


def changes(text: str) -> list[str]:
    """Other texts for a cell with a number: near it and far away; none without a number."""
    if _WHOLE.fullmatch(text):
        places = len(text.partition(".")[2])
        value, digit = float(text), 10.0**-places
        others = (
            value + digit, 10 * value, value - digit, value + 10 * digit, value - 10 * digit,
            value / 10, 0.0,
        )  # fmt: skip
        return [f"{other:.{places}f}" for other in others]
    return list(changed_text(text))[1:] if is_formula(text) else []


def decides(number: str, check: Check, place: Place, record: ReproduceRecord) -> str:
    """What a cell does to an answer: ``nothing``, ``fine`` or ``coarse`` (a last digit, or more),
    or ``weak``: ours is another, and the claim still holds.
    """
    effect = "nothing"
    judged = replace(check, why="", note="")  # what is said of it is not looked at
    for at, text in enumerate(changes(cell(number, place))):
        if at == 2 and effect == "nothing":
            return effect  # neither its last digit nor ten times as much matters
        forget(number)
        with tables((place, text)):
            try:
                other = judged.answer()
            except Exception:  # noqa: BLE001 - what breaks is an error, and no match
                return "fine"
        if other.ours == record.ours:
            continue
        if record.verdict == other.verdict == MATCH:
            effect = effect if effect == "coarse" else "weak"
        elif at in FINE:
            return "fine"
        else:
            effect = "coarse"
    return effect


#: Modules of which nothing remembered rests on a table.
_WITHOUT_TABLES = {
    "better_attention.checks_parameters", "better_attention.checks_formulas", "extractors.checks",
    "approximation.checks", "taylorshift.checks_costs", "taylorshift.checks_sizes",
}  # fmt: skip


@cache
def _cached(folder: str) -> list[Callable[[], None]]:
    """How to forget what a document's modules remember of their tables."""
    names = {f"{folder}.{item.name}" for item in iter_modules([str(documents.HERE / folder)])}
    clearing = []
    for name in names - _WITHOUT_TABLES:
        module = import_module(f"attnprof.papers.{name}")
        cached = (
            item for item in vars(module).values() if item.__class__.__module__ == "functools"
        )
        clearing += [item.cache_clear for item in cached if item.__module__ == module.__name__]
    return clearing


def forget(number: str) -> None:
    """Let a document's modules read their tables anew."""
    for clear in _cached(documents.DOCUMENTS[number].folder):
        clear()
