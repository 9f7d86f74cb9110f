"""The request's sizes: names, expressions over them, and the symbols of a symbolic run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from attnprof import arguments
from attnprof.algebra.evaluation import evaluate
from attnprof.algebra.expressions import expression_of, symbol
from attnprof.algebra.parser import FUNCTIONS, FormulaError, names_in, parse, short
from attnprof.errors import RequestError
from attnprof.trace.torch_sizes import SIZES

#: Sizes of a request that says nothing else: batch, tokens, heads, head width.
DEFAULT = ("B", "N", "h", "d")
#: What a symbol stands for while a symbolic run looks for its branch: apart, above one, heads even.
HINTS = {"B": 3, "N": 421, "h": 6, "d": 32}
#: Up to where formulas are tried; where they hold no further, that is said.
FURTHEST = {"B": 64, "N": 65_536, "h": 64, "d": 1024}
#: Signs of one size of a request.
LONGEST_SIZE = 400
_OTHERS = (7, 11, 13, 17, 19, 23, 29, 31)


@dataclass(frozen=True)
class Expression:
    """A size as the request writes it: ``h*d``, ``N//2``, ``4``; ``given`` are fixed names."""

    text: str
    given: Mapping[str, int] = field(default_factory=dict, hash=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The symbols it uses, in the order of the text."""
        return names_in(parse(self.text))

    def at(self, sizes: Mapping[str, Any]) -> Any:
        """Its value for ints, SymInts or sympy symbols: exact where it is whole.

        Raises :class:`RequestError` where it has none, like a division by 0.
        """
        values = {**self.given, **sizes}
        try:
            if any(hasattr(value, "free_symbols") for value in values.values()):
                return expression_of(parse(self.text), meanings=values)
            found = evaluate(parse(self.text), values.__getitem__, SIZES)
        except FormulaError as error:
            raise RequestError(f"'{short(self.text)}' at {_told(values)}: {error}") from error
        return float(found) if isinstance(found, Fraction) else found

    def whole_at(self, sizes: Mapping[str, Any], where: str) -> Any:
        """The same as a tensor's size; :class:`RequestError` for what is none."""
        found = self.at(sizes)
        if isinstance(found, float) or (
            isinstance(found, int) and not 0 <= found <= arguments.LARGEST
        ):
            raise RequestError(
                f"{where}: '{short(self.text)}' is {found} at {_told({**self.given, **sizes})}; "
                f"sizes are whole numbers up to 2**40; N//2 rounds down, ceil(N/2) up"
            )
        return found


def _told(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items()) or "no sizes"


def parsed(text: str, where: str) -> Expression:
    """An arithmetic expression over symbols; RequestError for anything else."""
    try:
        tree = parse(text.strip(), longest=LONGEST_SIZE)
        if not names_in(tree):
            evaluate(tree, str, SIZES)  # a number is one, or none
    except FormulaError as error:
        raise RequestError(
            f"{where}: '{short(text)}' is not a size: {error}; type numbers and names with "
            f"+ - * / // % **, brackets and {', '.join(FUNCTIONS)}, like h*d"
        ) from error
    return Expression(text.strip())


def hints_for(names: Iterable[str], asked: Mapping[str, int]) -> dict[str, int]:
    """A value for every symbol: the asked one, or a number that coincides with no other."""
    others = iter(_OTHERS)
    return {name: asked.get(name) or HINTS.get(name) or next(others, 37) for name in sorted(names)}


def largest(name: str, hint: int = 0) -> int:
    """Up to where a size is tried, and at least twice a hint."""
    return max(FURTHEST.get(name, 4096), 2 * hint)


def _environment() -> Any:
    """A shape environment that does not look for the line behind every guard.

    Torch imports its whole exporter to tell its own lines from the user's.
    """
    from torch._guards import SLoc
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    class Environment(ShapeEnv):
        def _get_stack_summary(self, *_args: Any, **_named: Any) -> tuple[SLoc, str]:
            return SLoc("", None), ""

    return Environment()


def symbolic_sizes(
    hints: Mapping[str, int], bend: Any = None
) -> tuple[Any, dict[str, Any], dict[Any, Any]]:
    """A shape environment, torch's size for every name, and torch's symbols → the user's.

    ``bend`` gives floats that sizes become other values.
    """
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    from attnprof.trace.conversions import Conversions

    environment = _environment()
    environment.conversions = Conversions(bend)
    sizes, names = {}, {}
    for name, hint in hints.items():
        source = ConstantSource(name)
        own = environment.create_symbol(hint, source, DimDynamic.DYNAMIC)
        sizes[name] = environment.create_symintnode(own, hint=hint, source=source)
        names[own] = symbol(name)
    return environment, sizes, names
