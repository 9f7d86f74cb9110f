"""The target of a derivation: code that makes a module, its inputs, their sizes as expressions."""

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial, reduce
from typing import Any, Self

from attnprof import arguments
from attnprof.algebra.expressions import expression_of
from attnprof.algebra.parser import (
    EXACT,
    FUNCTIONS,
    FormulaError,
    Rules,
    bits_of,
    check_power,
    evaluate,
    names_in,
    parse,
    short,
)
from attnprof.errors import RequestError

#: Sizes of a request without inputs: batch, tokens, heads, head width.
DEFAULT = ("B", "N", "h", "d")
#: Hints: the numbers by which a symbolic run decides branches. All differ and are above 1, heads
#: are even, sides of images are several windows long.
HINTS = {"B": 3, "N": 421, "h": 6, "d": 32, "H": 37, "W": 43}
#: Sizes around which runs are interpolated: a length that blocks divide and that is no power of
#: two; smaller ones for real tensors.
ANCHOR = {"B": 2, "N": 768, "h": 8, "d": 32}
REAL_ANCHOR = {"B": 2, "N": 160, "h": 4, "d": 16}
#: Powers of two, for code that does not run at other sizes; a short length first.
EVEN = {"B": 2, "N": 256, "h": 4, "d": 32}
#: Lengths for code that does not run at longer ones, as its tables are shorter.
SHORTER = (96, 64, 48, 24, 12)
#: Large sizes of different magnitudes, at which the leading term of a formula shows.
LARGE = {"N": 10**6, "h": 8, "d": 64, "B": 2}
#: The largest sizes at which formulas are tried.
FURTHEST = {"B": 64, "N": 65_536, "h": 64, "d": 1024}
#: Most characters of one size as typed.
LONGEST_SIZE = 400
_OTHERS = (7, 11, 13, 17, 19, 23, 29, 31)
Sizes = Mapping[str, Any]


class Sized:
    """A value that depends on sizes."""

    @property
    def names(self) -> tuple[str, ...]:
        """The symbols that the value uses."""
        return ()

    def at(self, sizes: Sizes) -> Any:
        """Return the value at sizes."""
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class Expression(Sized):
    """A size as the request writes it: ``h*d``, ``N//2``, ``4``."""

    text: str

    def __repr__(self) -> str:
        return self.text

    @property
    def names(self) -> tuple[str, ...]:
        """The symbols in the expression."""
        return names_in(parse(self.text))

    def at(self, sizes: Mapping[str, Any]) -> Any:
        """Return the value for ints, SymInts or sympy symbols: exact where it is whole.

        Raises :class:`RequestError` where there is none, like a division by 0.
        """
        try:
            if any(hasattr(size, "free_symbols") for size in sizes.values()):
                return expression_of(parse(self.text), meanings=sizes)
            result = evaluate(parse(self.text), sizes.__getitem__, SIZES)
        except FormulaError as error:
            raise RequestError(f"'{short(self.text)}' at {sizes_text(sizes)}: {error}") from error
        return float(result) if isinstance(result, Fraction) else result

    def whole_at(self, sizes: Mapping[str, Any], where: str) -> Any:
        """Return the value as a tensor's size; raise :class:`RequestError` if it is none."""
        size = self.at(sizes)
        outside = isinstance(size, int) and not 0 <= size <= arguments.LARGEST
        if isinstance(size, float) or outside:
            raise RequestError(
                f"{where}: '{short(self.text)}' is {size} at {sizes_text(sizes)}; "
                f"sizes are whole numbers up to 2**40; N//2 rounds down, ceil(N/2) up"
            )
        return size


def at(value: Any, sizes: Mapping[str, Any]) -> Any:
    """Return a value at sizes: an expression's number, also in lists, tuples and dicts."""
    if type(value) is dict:
        return {name: at(x, sizes) for name, x in value.items()}
    if type(value) in (list, tuple):
        return type(value)(at(x, sizes) for x in value)
    return value.at(sizes) if isinstance(value, Sized) else value


def names_used(value: Any) -> list[str]:
    """Return the symbols that a value uses, also in lists, tuples and dicts."""
    inside = value.values() if type(value) is dict else value
    if type(value) in (list, tuple, dict):
        return [name for x in inside for name in names_used(x)]
    return [*value.names] if isinstance(value, Sized) else []


def sizes_text(values: Mapping[str, Any]) -> str:
    """Return sizes as text: ``B=2, N=64``."""
    return ", ".join(f"{name}={value}" for name, value in values.items()) or "no sizes"


def parsed(text: str, where: str) -> Expression:
    """Return a text as an arithmetic expression over symbols; RequestError for other texts."""
    try:
        tree = parse(text.strip(), longest=LONGEST_SIZE)
        if not names_in(tree):
            evaluate(tree, str, SIZES)  # raises for a number that is no size
    except FormulaError as error:
        raise RequestError(
            f"{where}: '{short(text)}' is not a size: {error}; type numbers and names with "
            f"+ - * / // % **, brackets and {', '.join(FUNCTIONS)}, like h*d"
        ) from error
    return Expression(text.strip())


def hints_for(names: Iterable[str], sizes: Mapping[str, int]) -> dict[str, int]:
    """Return a number for every symbol: as asked, or one that no other symbol has."""
    others = iter(_OTHERS)
    return {name: sizes.get(name) or HINTS.get(name) or next(others, 37) for name in sorted(names)}


def divided_hints_for(names: Iterable[str], sizes: Mapping[str, int]) -> dict[str, int]:
    """Return numbers that blocks and windows of 7 pixels divide, for code that needs it."""
    others = iter(_OTHERS)
    usual = {name: ANCHOR.get(name) or 112 * next(others, 37) for name in sorted(names)}
    return {**usual, **sizes}


def largest(name: str, hint: int) -> int:
    """Return the largest number to try for a size: at least twice its hint."""
    return max(FURTHEST.get(name, 4096), 2 * hint)


@dataclass(frozen=True)
class Input:
    """One argument of the call: a tensor of these dimensions, or (``literal``) a plain value.

    A plain value may be an expression: it is then the number it has at the sizes. ``x.0``, ``x.1``
    are the tensors of a tuple, ``x[0]`` of a list, ``x.name`` of a dict.
    """

    name: str
    dims: tuple[Expression, ...] = ()
    dtype: str = ""
    value: Any = None
    literal: bool = False

    @property
    def text(self) -> str:
        """The value as typed: ``B, N, h*d``, ``N, N bool``, ``True``, ``=H``."""
        if self.literal:
            return f"={self.value}" if isinstance(self.value, Expression) else repr(self.value)
        dims = ", ".join(dim.text for dim in self.dims)
        body = f"{dims}," if len(self.dims) == 1 else dims or "()"
        return f"{body} {self.dtype}".rstrip()

    @property
    def spelled(self) -> str:
        """The input as ``--input`` takes it: ``x: B, N, h*d``."""
        return f"{self.name}: {self.text}"

    def make(self, sizes: Sizes, default_dtype: str, device: str) -> Any:
        """Return the tensor (zeros: values do not matter) or the plain value."""
        import torch

        if self.literal:
            return at(self.value, sizes)
        shape = [dim.whole_at(sizes, f'--input "{self.spelled}"') for dim in self.dims]
        return torch.zeros(shape, dtype=getattr(torch, self.dtype or default_dtype), device=device)


# -- inputs that are parts of one argument: ``x.0`` of a tuple, ``x[0]`` of a list, ``x.name`` --

#: The first name of ``x.0``, of ``[0].name``, and the rest.
_STEP = re.compile(r"(\[?[^.[]*)(.*)", re.DOTALL)


def folded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by argument: ``{"x.0": 1, "x.1": 2}`` is ``{"x": (1, 2)}``.

    Names like ``x[0]`` make a list, any other ``x.name`` a dict.
    """
    result: dict[str, Any] = {}
    inside: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        first, rest = _STEP.match(name).groups()  # type: ignore[union-attr]  # it matches anything
        if rest:
            inside.setdefault(first, {})[rest.removeprefix(".")] = value
        result[first] = value
    for name, entries in inside.items():
        parts = folded(entries)
        if all(key.startswith("[") for key in parts):
            result[name] = list(parts.values())
        else:
            result[name] = tuple(parts.values()) if all(map(str.isdigit, parts)) else parts
    return result


def base_of(name: str) -> str:
    """Return the argument that an input belongs to: ``x`` for ``x.0`` and ``x[0]``."""
    return next(iter(folded({name: None})))


@dataclass(frozen=True)
class RunMode:
    """How a target is run.

    ``real``: on real tensors, as it does something else on fake ones; ``trusted``: it does the same
    on both, as attnprof's own code; ``loops_in_blocks``: it has mechanisms of attnprof, which loop
    over blocks of tokens; ``routed``: experts are taken to be chosen evenly; ``ungraded_inputs``:
    floating inputs have no gradients.
    """

    real: bool = False
    trusted: bool = False
    loops_in_blocks: bool = False
    routed: bool = False
    ungraded_inputs: bool = False


@dataclass(frozen=True)
class Target:
    """Code to derive: ``make`` builds the module (or gives the function) that takes ``inputs``.

    Inputs named in ``keywords`` are passed by name, others in order; ``dtype`` is that of floating
    inputs and parameters. ``notes`` say what was guessed, ``typed_texts`` the arguments and inputs
    that were typed; ``advice`` ends the message if the code does not run. ``step`` is what phase
    ``decode`` runs, if anything; ``numbers`` stand for sizes that are no symbols.
    """

    name: str
    make: Callable[[Sizes], Any]
    inputs: tuple[Input, ...]
    symbols: tuple[str, ...]
    dtype: str = "float32"
    keywords: frozenset[str] = field(default_factory=frozenset)
    notes: tuple[str, ...] = ()
    step: Self | None = None
    mode: RunMode = RunMode()
    typed_texts: Mapping[str, Any] = field(default_factory=dict, compare=False)
    numbers: Mapping[str, int] = field(default_factory=dict, hash=False)
    advice: str = "give what it needs with --arg and --input"

    @property
    def spelled_inputs(self) -> list[str]:
        """The inputs as ``--input`` takes them."""
        return [item.spelled for item in self.inputs]

    def call_inputs(self, sizes: Sizes, device: str = "cpu") -> tuple[list[Any], dict[str, Any]]:
        """Return positional and named arguments of the call."""
        every = {**self.numbers, **sizes}
        return self.placed({x.name: x.make(every, self.dtype, device) for x in self.inputs})

    def placed(self, values: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return positional and named arguments of the call, from values by input."""
        arguments = folded(values)
        positional = [value for name, value in arguments.items() if name not in self.keywords]
        return positional, {name: arguments[name] for name in self.keywords}

    def running(self, **mode: bool) -> Self:
        """Return the target in another :class:`RunMode`, as with ``real=True``."""
        return replace(self, mode=replace(self.mode, **mode))

    def fixed(self, **sizes: int) -> Self:
        """Return the target with numbers for some sizes: the others stay symbols."""
        return replace(
            self,
            make=lambda rest: self.make({**sizes, **rest}),
            numbers={**self.numbers, **sizes},
            symbols=tuple(name for name in self.symbols if name not in sizes),
            step=self.step and self.step.fixed(**sizes),
        )


# -- arithmetic of ints with torch's symbolic sizes ----------------------------------------


def _either(exact: Callable[..., Any], symbolic: Callable[..., Any], *args: Any) -> Any:
    """Apply the exact rule, or torch's if a value is symbolic."""
    if not any(hasattr(arg, "node") for arg in args):
        return exact(*args)
    return symbolic(*(float(arg) if isinstance(arg, Fraction) else arg for arg in args))


def _power(base: Any, exponent: Any) -> Any:
    """Return a power, if its value at the hints is short enough to compute."""
    numbers = [value.node.hint if hasattr(value, "node") else value for value in (base, exponent)]
    if all(isinstance(value, int) for value in numbers):
        check_power(bits_of(numbers[0]), numbers[1])
    return base**exponent


def _divided(a: Any, b: Any) -> Any:
    """Return a quotient; if the sizes divide at the hints, a size, with a guard that they do."""
    import torch

    whole = all(isinstance(value, int | torch.SymInt) for value in (a, b))
    return a // b if whole and a % b == 0 else a / b


def _called(name: str, *args: Any) -> Any:
    """Apply torch's function of this name to symbolic sizes."""
    import torch

    function = getattr(torch, name)
    return reduce(function, args) if len(args) > 1 else function(*args)


def _log(value: Any, base: Any = None) -> Any:
    of_value = _called("_sym_log2", value)
    return of_value * math.log(2) if base is None else of_value / SIZES["log2"](base)


_SYMBOLIC: dict[str, Callable[..., Any]] = {
    "+": lambda *parts: reduce(operator.add, parts),
    "*": lambda *parts: reduce(operator.mul, parts),
    "neg": operator.neg, "/": _divided, "//": operator.floordiv, "%": operator.mod,
    "**": _power, "log": _log, "exp": lambda x: math.e**x, "ceil": math.ceil, "floor": math.floor,
    "sqrt": partial(_called, "sym_sqrt"), "log2": partial(_called, "_sym_log2"),
    "max": partial(_called, "sym_max"), "min": partial(_called, "sym_min"),
}  # fmt: skip
#: Rules of arithmetic for ints and torch's symbolic sizes.
SIZES: Rules = {
    **EXACT, **{name: partial(_either, EXACT[name], rule) for name, rule in _SYMBOLIC.items()}
}  # fmt: skip
