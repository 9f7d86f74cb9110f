"""Formula text as a tree of numbers, names and calls: arithmetic and functions, nothing is run.

Every formula that anybody types or stores is read here. Length and nesting are bounded, so that
reading takes milliseconds.
"""

from __future__ import annotations

import keyword
import math
import operator
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache, reduce
from typing import Any

#: Longer texts, deeper brackets and longer numbers are no formulas of a cost.
LONGEST = 20_000
DEEPEST = 64
DIGITS = 300
#: Longest name, as messages repeat names.
LONGEST_NAME = 100

#: Functions by the name that trees have, with the numbers of arguments each takes.
MANY = 1000
FUNCTIONS: Mapping[str, tuple[int, int]] = {
    "sqrt": (1, 1), "log": (1, 2), "log2": (1, 1), "exp": (1, 1), "ceil": (1, 1), "floor": (1, 1),
    "max": (1, MANY), "min": (1, MANY),
}  # fmt: skip
#: Functions that only stored closed forms have.
STORED: Mapping[str, tuple[int, int]] = {
    **FUNCTIONS, "cbrt": (1, 1), "Abs": (1, 1), "Mod": (2, 2), "Rational": (2, 2), "Eq": (2, 2),
    "Ne": (2, 2), "Piecewise": (1, MANY),
}  # fmt: skip
_SAME = {"ceiling": "ceil", "Max": "max", "Min": "min", "ln": "log"}
_SIGNS = str.maketrans({"^": "**", "·": "*", "×": "*", "−": "-"})
_HIGH = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
_RAISED = "⁰¹²³⁴-⁹"
_TOKEN = re.compile(
    r"(?P<number>(?:[0-9](?:_?[0-9])*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    rf"|(?P<raised>[{_RAISED}]+)|(?P<name>[^\W\d{_RAISED}][^\W{_RAISED}]*)"
    r"|(?P<sign>\*\*|//|<=|>=|[-+*/%(),<>&|])"
)
#: Operators from the loosest to the tightest; the first of a level joins any number of parts.
_LEVELS = (("<", "<=", ">", ">="), ("|",), ("&",), ("+", "-"), ("*", "/", "//", "%"))
_SUMS = 3
_PAIRED = (*_LEVELS[0], "/", "//", "%")


class FormulaError(ValueError):
    """Raised if a text is no formula, or has no value; says why."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A number as it is written, exactly; in a condition True or False."""

    value: int | Fraction


@dataclass(frozen=True, slots=True)
class Name:
    """A name; the caller of :func:`evaluate` gives its value."""

    name: str


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """An operator (by its sign; ``neg`` for one operand) or a function, with its arguments.

    Sums and products have any number of parts. ``depth`` is how deep calls nest in it.
    """

    function: str
    args: tuple[Tree, ...]
    depth: int = field(default=1, compare=False)


Tree = Literal | Name | FunctionCall


@lru_cache(maxsize=1024)
def parse(text: str, *, longest: int = LONGEST, stored: bool = False) -> Tree:
    """Return the tree of a formula; FormulaError if it cannot be read.

    ``stored`` adds the syntax of closed forms: cases, conditions, remainders.
    """
    if len(text) > longest:
        raise FormulaError(f"it is longer than {longest} characters")
    return _Parser(text, stored).whole()


def name_of(text: str) -> str:
    """Return the name as Python writes it (``ℓ`` is ``l``); "" if it is none or a keyword."""
    name = unicodedata.normalize("NFKC", text.strip())
    usable = name.isidentifier() and not keyword.iskeyword(name) and len(name) <= LONGEST_NAME
    return name if usable else ""


def names_in(tree: Tree) -> tuple[str, ...]:
    """Return the names in a tree, each once, in the order of the text."""
    if isinstance(tree, Name):
        return (tree.name,)
    args = tree.args if isinstance(tree, FunctionCall) else ()
    return tuple(dict.fromkeys(name for arg in args for name in names_in(arg)))


def short(text: str) -> str:
    """Return the text as messages show it."""
    return text if len(text) < 80 else text[:77] + "..."


def parts_of(text: str) -> list[str]:
    """Return the pieces of a text between commas outside brackets: ``B, max(N, 2)`` has two."""
    pieces, depth, start = [], 0, 0
    for at, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth == 0:
            pieces.append(text[start:at].strip())
            start = at + 1
    return [*pieces, text[start:].strip()]


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """Yield kind and text of each token; FormulaError for an unknown sign."""
    text, at = text.translate(_SIGNS), 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        match = _TOKEN.match(text, at)
        if match is None:
            raise FormulaError(f"{text[at]!r} is no arithmetic")
        kind = str(match.lastgroup)
        if kind == "raised":
            yield "sign", "**"
            yield "number", match[0].translate(_HIGH)
        else:
            yield kind, match[0]
        at = match.end()


class _Parser:
    """A recursive-descent parser of one text; operators bind as in Python."""

    def __init__(self, text: str, stored: bool) -> None:
        self._tokens = [*_tokens(text), ("end", "")]
        self._at = 0
        self._open = 0
        self._functions = STORED if stored else FUNCTIONS
        self._stored = stored

    def whole(self) -> Tree:
        """Return the tree of the whole text."""
        if self._next[0] == "end":
            raise FormulaError("it is empty")
        value = self._value()
        kind, text = self._next
        if kind != "end":
            raise FormulaError(f"'{text[:20]}' cannot stand there")
        return value

    @property
    def _next(self) -> tuple[str, str]:
        return self._tokens[self._at]

    def _take(self, *signs: str) -> str:
        """Return the next token, if it is one of these signs."""
        kind, text = self._next
        if kind != "sign" or text not in signs:
            return ""
        self._at += 1
        return text

    def _inside(self, part: Callable[[], Any]) -> Any:
        """Return a part parsed by ``part``; FormulaError if parts are nested too deep."""
        if self._open >= DEEPEST:
            raise FormulaError(f"it is nested deeper than {DEEPEST}")
        self._open += 1
        value = part()
        self._open -= 1
        return value

    def _value(self) -> Tree:
        """Return a sum; in a stored formula a condition, too."""
        return self._chain(0 if self._stored else _SUMS)

    def _chain(self, level: int) -> Tree:
        """Return the tree of operands joined by the operators of one level."""
        if level == len(_LEVELS):
            return self._signed()
        joins = _LEVELS[level][0]
        parts = [self._chain(level + 1)]
        while sign := self._take(*_LEVELS[level]):
            part = self._chain(level + 1)
            if sign in _PAIRED:
                parts = [_call(sign, (_joined(joins, parts), part))]
            else:
                parts.append(_call("neg", (part,)) if sign == "-" else part)
        return _joined(joins, parts)

    def _signed(self) -> Tree:
        negative = False
        while sign := self._take("+", "-"):
            negative ^= sign == "-"
        value = self._atom()
        if self._take("**"):
            value = _call("**", (value, self._inside(self._signed)))
        return _call("neg", (value,)) if negative else value

    def _atom(self) -> Tree:
        kind, text = self._next
        if kind == "number":
            self._at += 1
            return Literal(_number(text))
        if kind == "name":
            self._at += 1
            return self._named(text)
        if self._take("("):
            call: FunctionCall = self._inside(self._arguments)
            return call.args[0] if len(call.args) == 1 else call
        raise FormulaError(f"'{text}' cannot stand there" if text else "it ends too early")

    def _arguments(self) -> FunctionCall:
        """Return the arguments of a call, up to its closing bracket."""
        values = [self._value()]
        while self._take(","):
            values.append(self._value())
        if not self._take(")"):
            next_text = f"'{self._next[1][:20]}'" if self._next[1] else "its end"
            raise FormulaError(f"a bracket is not closed before {next_text}")
        return _call("tuple", values)

    def _named(self, text: str) -> Tree:
        """Return a function and its arguments, or a size."""
        function = _SAME.get(text, text)
        if self._take("("):
            if function not in self._functions:
                raise FormulaError(f"{text}(…) is no function here; for a product type {text}*(…)")
            args = self._inside(self._arguments).args
            least, most = self._functions[function]
            if not least <= len(args) <= most:
                takes = "one argument" if most == 1 else f"{least} to {most} arguments"
                raise FormulaError(f"{text} takes {takes}")
            return _call(function, args)
        if function in self._functions:
            raise FormulaError(f"{text} is a function: {text}(…)")
        if self._stored and text in ("True", "False"):
            return Literal(text == "True")
        if not name_of(text):
            raise FormulaError(f"'{text[:40]}' is no name of a size")
        return Name(name_of(text))


def _joined(sign: str, parts: Sequence[Tree]) -> Tree:
    return parts[0] if len(parts) == 1 else _call(sign, parts)


def _call(function: str, args: Sequence[Tree]) -> FunctionCall:
    """Return a call, unless it nests deeper than formulas do."""
    depth = 1 + max(arg.depth if isinstance(arg, FunctionCall) else 0 for arg in args)
    if depth > 2 * DEEPEST:
        raise FormulaError(f"it is nested deeper than {DEEPEST}")
    return FunctionCall(function, tuple(args), depth)


def _number(text: str) -> int | Fraction:
    """Return a number's exact value; refuse one with more digits than formulas have."""
    mantissa, _, exponent = text.replace("_", "").lower().partition("e")
    if len(mantissa) > DIGITS or len(exponent) > 4 or abs(int(exponent or 0)) > DIGITS:
        raise FormulaError(f"a number has more than {DIGITS} digits")
    value = Fraction(mantissa) * Fraction(10) ** int(exponent or 0)
    return value.numerator if value.denominator == 1 else value


Rules = Mapping[str, Callable[..., Any]]
#: Bits of a number with as many digits as numbers may have.
BITS = math.ceil(DIGITS * math.log2(10))


def evaluate(tree: Tree, values: Callable[[str], Any], rules: Rules) -> Any:
    """Return the tree's value, given one for every name; FormulaError if it has no value."""
    try:
        return _value(tree, values, rules)
    except FormulaError:
        raise
    except ZeroDivisionError as error:
        raise FormulaError("it divides by 0") from error
    except (ArithmeticError, ValueError) as error:
        raise FormulaError("it has no real value") from error


def _value(tree: Tree, values: Callable[[str], Any], rules: Rules) -> Any:
    if isinstance(tree, Literal):
        return rules["number"](tree.value)
    if isinstance(tree, Name):
        return values(tree.name)
    rule = rules.get(tree.function)
    if rule is None:
        spoken = {"tuple": ",", "neg": "-"}.get(tree.function, tree.function)
        raise FormulaError(f"'{spoken}' has no meaning here")
    return rule(*[_value(arg, values, rules) for arg in tree.args])


def check_power(bits: int, exponent: float) -> None:
    """Raise FormulaError if a power of a base with so many bits has too many digits."""
    if bits * abs(exponent) > BITS:
        raise FormulaError(f"a power has more than {DIGITS} digits")


def bits_of(value: int | Fraction) -> int:
    """Return the bits of a number: of its numerator or denominator, whichever is longer."""
    whole = Fraction(value)
    return max(abs(whole.numerator).bit_length(), whole.denominator.bit_length())


def _bounded(value: Any) -> Any:
    """Return a number, as an int if it is whole; FormulaError if it is too long."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise FormulaError("it has no finite value")
        return int(value) if value.is_integer() else value
    if bits_of(value) > BITS:
        raise FormulaError(f"a number has more than {DIGITS} digits")
    return value.numerator if value.denominator == 1 else value


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(exponent, int) and not isinstance(base, float):
        if base not in (0, 1, -1):
            check_power(bits_of(base), exponent)
        return Fraction(base) ** exponent if abs(base) != 1 else base ** abs(exponent)
    if base < 0:
        raise FormulaError("a root of a negative number has no real value")
    return float(base) ** float(exponent)


def _root(value: Any) -> Any:
    whole = math.isqrt(value) if isinstance(value, int) else None
    return whole if whole is not None and whole * whole == value else math.sqrt(value)


_PLAIN: Mapping[str, Callable[..., Any]] = {
    "+": lambda *parts: sum(parts), "neg": operator.neg, "//": operator.floordiv, "%": operator.mod,
    "*": lambda *parts: reduce(lambda a, b: _bounded(a * b), parts, 1),
    "/": lambda a, b: a / b if isinstance(a, float) else Fraction(a) / b, "**": _power,
    "sqrt": _root, "log": math.log, "log2": math.log2, "exp": math.exp, "ceil": math.ceil,
    "floor": math.floor, "max": max, "min": min,
}  # fmt: skip
#: Ints and fractions, exactly, none too long; roots and logarithms that are not whole are floats.
EXACT: Rules = {
    "number": _bounded,
    **{name: lambda *args, rule=rule: _bounded(rule(*args)) for name, rule in _PLAIN.items()},
}
