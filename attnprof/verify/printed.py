"""Printed formulas and the costs that they claim to be: typed, or rows of a table.

A formula is arithmetic over names, nothing else is run. A table is a CSV file, one formula a row
(:func:`rows_of`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attnprof.algebra.expressions import check_sides, check_size, expression_of
from attnprof.algebra.parser import FormulaError, name_of, parse, short
from attnprof.closed_form.cost_records import CONVENTIONS
from attnprof.errors import AttnprofError, RequestError, closest
from attnprof.record.files import read_table
from attnprof.verify.comparison import EXACT, UP_TO
from attnprof.verify.own_formulas import KINDS, Source
from attnprof.workload import SCOPES

FUNCTIONS = ("sqrt", "log", "log2", "exp", "ceiling", "floor", "Max", "Min")
_HOW = (
    "type numbers and names with + - * / ** (or ^), brackets, and "
    f"{', '.join(FUNCTIONS)}, like 4*N**2*d + 6*N**2"
)
#: The most characters of a printed formula.
LONGEST = 4000
_BOUND = re.compile(r"\s*(?P<kind>[OΘΩ])\s*\((?P<inside>.*)\)\s*", re.DOTALL)
#: Columns of a table of formulas; options give the values that a row leaves out. Options that make
#: a target (--arg, --input, --set) hold for rows on the command line's target.
COLUMNS = (
    "place", "formula", "quantity", "phase", "target", "where", "up_to", "in", "kind", "convention",
    "scope", "causal", "arg", "input", "set",
)  # fmt: skip
PHASES = ("forward", "prefill", "backward", "train", "decode")
_CHOICES: Mapping[str, Sequence[str]] = {
    "phase": PHASES, "up_to": UP_TO, "kind": KINDS, "convention": CONVENTIONS, "scope": SCOPES,
    "causal": ("yes", "no"),
}  # fmt: skip
#: The separator between two meanings, and no comma inside one like Max(a, b).
_BETWEEN = re.compile(r"[;,](?=\s*[^\W\d]\w*\s*=|\s*$)")


@dataclass(frozen=True)
class Printed:
    """A printed formula, and the cost that it claims to be.

    ``where`` has meanings of names: text in the sizes of our formula; a number fixes a size on both
    sides. ``growing`` are the sizes that grow in a comparison of leading terms or order
    (``up_to``), by default all. ``place`` is where it is printed; ``line`` begins the messages
    about it.
    """

    formula: str
    source: Source
    phase: str = "forward"
    quantity: str = "flops"
    where: Mapping[str, str] = field(default_factory=dict)
    up_to: str = EXACT
    growing: tuple[str, ...] = ()
    at: Mapping[str, int] = field(default_factory=dict)
    place: str = ""
    line: str = ""


# -- its formula -----------------------------------------------------------------------
def without_bound(text: str) -> tuple[str, str]:
    """Return the text inside ``O(…)``, ``Θ(…)`` or ``Ω(…)`` and that letter, "" without a bound."""
    match = _BOUND.fullmatch(text)
    return (match["inside"], match["kind"]) if match else (text, "")


def read_formula(text: str, meanings: Mapping[str, Any] | None = None) -> Any:
    """Return a formula as a sympy expression; names are positive symbols, or their meanings.

    Raises :class:`RequestError` if it cannot be read.
    """
    try:
        tree = parse(text, longest=LONGEST)
        check_sides(tree)
        expression = expression_of(tree, meanings=meanings)
        check_size(expression)
    except FormulaError as error:
        touching = re.search(r"(\d)\s*([A-Za-z_(])", text)
        hint = f" (between {touching[1]} and {touching[2]} a * may be missing)" if touching else ""
        raise RequestError(
            f"formula '{short(text)}' cannot be read: {error}{hint}; {_HOW}"
        ) from error
    return expression


def names_in(expression: Any) -> set[str]:
    """Return the names in an expression."""
    return {str(symbol.name) for symbol in expression.free_symbols}


def check_names(expression: Any, meanings: Sequence[str], text: str) -> None:
    """Raise RequestError, with a list of known names, for a name without a meaning."""
    for name in sorted(names_in(expression) - set(meanings)):
        near = closest(name, list(meanings)) if meanings else "there are none here"
        raise RequestError(
            f"formula '{short(text)}': nothing here is called {name}: {near}; say what it stands "
            f"for with --where {name}=…, in {', '.join(meanings) or 'numbers'}"
        )


def meanings(texts: Sequence[str]) -> dict[str, str]:
    """Return ``n=N; D=h*d`` as a mapping; several texts add up; RequestError for other texts."""
    symbols = {}
    for text in (part for whole in texts for part in _BETWEEN.split(whole)):
        if not text.strip():
            continue
        name, equals, meaning = (piece.strip() for piece in text.partition("="))
        if not equals or not name_of(name) or not meaning:
            raise RequestError(
                f"--where {short(text.strip())}: type a name, '=' and sizes, like D=h*d"
            )
        symbols[name_of(name)] = meaning
    return symbols


# -- a table of them -------------------------------------------------------------------
def rows_of(path: Path, defaults: Printed) -> tuple[list[Printed], list[str]]:
    """Return a file's rows and the columns that are ignored; RequestError names a wrong row."""
    lines = read_table(path)
    if not lines or "formula" not in lines[0]:
        raise RequestError(
            f"--table {path}: needs a header with the column formula and at least one row; other "
            f"columns: {', '.join(name for name in COLUMNS if name != 'formula')}"
        )
    rows = [_row(line, f"{path}, row {at}: ", defaults) for at, line in enumerate(lines, start=1)]
    return rows, [name for name in lines[0] if name not in COLUMNS]


def in_row(line: str, work: Any) -> Any:
    """Return the result of ``work``; begin the message of an error with the row, ``line``."""
    try:
        return work()
    except AttnprofError as error:
        raise type(error)(f"{line}{error}") from error


def _row(cells: Mapping[str, str], line: str, defaults: Printed) -> Printed:
    cells = {name: cells[name] for name in COLUMNS if cells.get(name)}
    if "formula" not in cells:
        raise RequestError(f"{line}there is no formula")
    for name, possible in _CHOICES.items():
        if cells.get(name, possible[0]) not in possible:
            raise RequestError(f"{line}{name} '{cells[name]}': {closest(cells[name], [*possible])}")
    row = replace(
        defaults,
        formula=cells["formula"],
        source=_source(cells, defaults.source, line),
        where={**defaults.where, **in_row(line, lambda: meanings([cells.get("where", "")]))},
        place=cells.get("place", ""),
        line=line,
        quantity=cells.get("quantity", defaults.quantity),
        up_to=cells.get("up_to", defaults.up_to),
    )
    if "in" in cells:
        row = replace(row, growing=_parts(cells["in"].replace(",", ";")))
    if not row.source.target:
        raise RequestError(f"{line}say what it speaks of: a column target, or TARGET after --table")
    return with_phase(row, cells.get("phase", row.phase))


def with_phase(row: Printed, phase: str) -> Printed:
    """Return the row with a phase; ``prefill`` is a causal forward pass."""
    if phase != "prefill":
        return replace(row, phase=phase)
    return replace(row, phase="forward", source=replace(row.source, causal=True))


def _source(cells: Mapping[str, str], source: Source, line: str) -> Source:
    if cells.get("target", source.target) != source.target:
        source = replace(source, args=(), inputs=(), params=())
    fields: dict[str, Any] = {
        name: cells[name] for name in ("target", "kind", "convention", "scope") if name in cells
    }
    if "causal" in cells:
        fields["causal"] = cells["causal"] == "yes"
    if "set" in cells:
        pairs = [tuple(map(str.strip, part.split("="))) for part in _parts(cells["set"])]
        if not all(len(pair) == 2 and all(pair) for pair in pairs):
            text = cells["set"]
            raise RequestError(f"{line}set '{text}': type name=value, several with ; between")
        fields["params"] = tuple(pairs)
    for column, name in (("arg", "args"), ("input", "inputs")):
        if column in cells:
            fields[name] = _parts(cells[column])
    return replace(source, **fields)


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(";") if part.strip())
