"""The request's sizes: names, expressions over them, and the symbols of a symbolic run."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from attnprof.errors import RequestError

#: Sizes of a request that says nothing else: batch, tokens, heads, head width.
DEFAULT = ("B", "N", "h", "d")
#: What a symbol stands for while a symbolic run looks for its branch: apart, above one, heads even.
HINTS = {"B": 3, "N": 421, "h": 6, "d": 32}
#: Up to where formulas are tried; where they hold no further, that is said.
LARGEST = {"B": 64, "N": 65_536, "h": 64, "d": 1024}
_OTHERS = (7, 11, 13, 17, 19, 23, 29, 31)
_ALLOWED = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Constant, ast.Name, ast.Load,
    ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.Pow, ast.USub, ast.UAdd, ast.Div,
)  # fmt: skip


@dataclass(frozen=True)
class Expression:
    """A size as the request writes it: ``h*d``, ``N//2``, ``4``; ``given`` are fixed names."""

    text: str
    given: Mapping[str, int] = field(default_factory=dict, hash=False)

    @property
    def names(self) -> frozenset[str]:
        """The symbols it uses."""
        tree = ast.parse(self.text, mode="eval")
        return frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))

    def at(self, sizes: Mapping[str, Any]) -> Any:
        """Its value for ints, SymInts or sympy symbols."""
        code = compile(ast.parse(self.text, mode="eval"), "<size>", "eval")
        value = eval(code, {"__builtins__": {}}, {**self.given, **sizes})  # noqa: S307 - checked by `parsed`
        return int(value) if isinstance(value, float) and value.is_integer() else value


def parsed(text: str, where: str) -> Expression:
    """An arithmetic expression over symbols; RequestError for anything else."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        tree = None
    if tree is None or not all(isinstance(node, _ALLOWED) for node in ast.walk(tree)):
        raise RequestError(
            f"{where}: '{text}' is not a size; type numbers and names with + - * // %, like h*d"
        )
    return Expression(text.strip())


def hints_for(names: Iterable[str], asked: Mapping[str, int]) -> dict[str, int]:
    """A value for every symbol: the asked one, or a number that coincides with no other."""
    others = iter(_OTHERS)
    return {name: asked.get(name) or HINTS.get(name) or next(others, 37) for name in sorted(names)}


def largest(name: str, hint: int = 0) -> int:
    """Up to where a size is tried, and at least twice a hint."""
    return max(LARGEST.get(name, 4096), 2 * hint)


def symbol(name: str) -> Any:
    """The sympy symbol of a size: positive and real, as in a symbolic workload."""
    import sympy

    return sympy.Symbol(name, positive=True)


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
