"""Make symbolic sizes, and keep them symbolic where code would make Python numbers of them.

In a symbolic run the functions of :mod:`math` keep a symbolic argument symbolic. Code that needs a
float or a text gets the number that the size is at the hints, and its line is noted: the run is
then repeated with other numbers (:data:`BENDS`), and must do the same. ``int(size)`` ends the run,
which is repeated with an ``int`` that keeps sizes symbolic. Entry points: :func:`symbolic_sizes`,
:func:`conversions_kept`.
"""

import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from types import ModuleType
from typing import Any
from unittest.mock import patch

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental import sym_node
from torch.utils._sympy import functions as symbolic

from attnprof.algebra.expressions import symbol
from attnprof.trace.run.remainders import Rests, SizeClasses, at_once, keeping_roots, once_each
from attnprof.user_code import calling_line

_sym_float: Any = torch.sym_float
_sym_int: Any = torch.sym_int
_sym_log2: Any = vars(torch)["_sym_log2"]

#: A function that changes the floats which code makes of sizes.
Bend = Callable[[float], float]
#: To numbers far above, and down to about 1.
BENDS: tuple[Bend, ...] = (lambda x: 1024.37 * x, lambda x: 1 + (x - 1) / 64)
#: Packages without code of users: sizes reach no function of ``math`` in them.
_OTHERS = sys.stdlib_module_names | {"torch", "sympy", "mpmath", "numpy", "networkx", "pytest",
    "_pytest", "hypothesis", "matplotlib", "PIL", "rich", "typer", "fvcore"}  # fmt: skip
may_be_foreign = cache(lambda module: module.partition(".")[0] not in _OTHERS)
#: Methods of torch's nodes: most of the arithmetic on sizes.
_ARITHMETIC = ("_add", "_sub", "_mul", "_eq", "_ne", "_lt", "_le", "_gt", "_ge", "_mod")
#: Those that decide a comparison, mostly of a size with itself.
_QUESTIONS = ("guard_bool", "expect_true", "guard_or_false", "guard_or_true")
#: Those that round a float.
_ROUNDING = ("_trunc", "_floor", "_ceil", "_round")
#: Decorators of these methods during a symbolic run.
_ON_NODES: dict[tuple[str, ...], Callable[..., Any]] = {
    _ARITHMETIC: once_each,
    _QUESTIONS: at_once,
    _ROUNDING: keeping_roots,
}
#: Packages of ours that work on sizes, and run no layer.
_OURS = ("attnprof.trace", "attnprof.algebra")


@dataclass
class Conversions:
    """The ``lines`` of a run at which ``sizes`` (torch's symbols) became floats.

    ``bend`` changes the floats; ``integers``: ``int`` in the user's code keeps sizes symbolic;
    ``whole``: the code made an integer of a size.
    """

    bend: Bend | None = None
    integers: bool = False
    whole: bool = False
    lines: list[str] = field(default_factory=list)
    sizes: set[Any] = field(default_factory=set)

    def value(self, node: Any) -> float:
        """Return the number that an expression of sizes is at the hints; note the line."""
        number = float(node.hint)
        if not node.expr.free_symbols:
            return number
        self.sizes |= node.expr.free_symbols
        place = calling_line()
        if place not in self.lines:
            self.lines.append(place)
        return self.bend(number) if self.bend else number


def symbolic_sizes(
    hints: Mapping[str, int], bend: Any = None, *, integers: bool = False,
    below: Mapping[str, Any] | None = None, classed: Collection[str] = (),
) -> tuple[Any, dict[str, Any], dict[Any, Any]]:  # fmt: skip
    """Return a shape environment, torch's size for every name, and torch's symbols → the user's.

    ``bend`` and ``integers`` are those of its :class:`Conversions`. ``below`` has the block of each
    size that is a remainder. Rounded quotients of ``classed`` sizes may be fixed.
    """
    from torch._dynamo.source import ConstantSource
    from torch._guards import SLoc
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

    class Environment(ShapeEnv):
        """A shape environment without lines of guards, which would import torch's exporter."""

        def _get_stack_summary(self, *_args: Any, **_named: Any) -> tuple[SLoc, str]:
            return SLoc("", None), ""

        rests, classes = Rests({}, {}), SizeClasses()
        _replacements_version_counter = 0  # where torch has none

        def replace(self, expr: Any) -> Any:  # type: ignore[override]
            return self.learned_classes().rounded(self.rests.rounded(super().replace(expr)))

        def learned_classes(self) -> SizeClasses:
            """Return the classes of sizes, narrowed by all guards so far."""
            self._replacements_version_counter += self.classes.learn(self.guards)
            return self.classes

    environment: Any = Environment()
    environment.conversions = Conversions(bend, integers)
    environment.arithmetic_results, environment.looked_up = {}, {}
    sizes, names = {}, {}
    for name, hint in hints.items():
        source = ConstantSource(name)
        symbols = environment.create_symbol(hint, source, DimDynamic.DYNAMIC)
        sizes[name] = environment.create_symintnode(symbols, hint=hint, source=source)
        names[symbols] = symbol(name)
    torchs = {ours: symbols for symbols, ours in names.items()}
    environment.classes = SizeClasses(frozenset(torchs[symbol(name)] for name in classed))
    blocks = {torchs[symbol(name)]: size.xreplace(torchs) for name, size in (below or {}).items()}
    for symbols, block in blocks.items():
        if block.is_Integer:
            environment.constrain_symbol_range(symbols, 2, int(block) - 1)
    if blocks or classed:  # else torch leaves expressions as they are
        environment._replacements_version_counter += 1
    numbers = {symbols: sympy.Integer(hints[x.name]) for symbols, x in names.items()}
    environment.rests = Rests(blocks, numbers)
    return environment, sizes, names


@contextmanager
def conversions_kept(*, integers: bool = False) -> Iterator[None]:
    """Keep sizes symbolic in the body: patch ``math``, functions of Python and torch's nodes."""
    with ExitStack() as stack:
        for patched in _patches():
            stack.enter_context(patched)
        outside = {"range": _Range, "len": _length} | ({"int": _Integer} if integers else {})
        added = list[tuple[dict[str, Any], str]]()
        stack.callback(_remove, added)
        for module in foreign_modules():
            if module.__name__.startswith(_OURS):
                continue
            is_ours = module.__name__.partition(".")[0] == "attnprof"
            for name in ("range",) if is_ours else outside:
                if name not in vars(module):
                    module.__dict__[name] = outside[name]
                    added.append((vars(module), name))
        yield


def _remove(names: Iterable[tuple[dict[str, Any], str]]) -> None:
    """Remove names from namespaces."""
    for namespace, name in names:
        namespace.pop(name, None)


class _RangeType(type):
    """The type of ``range`` in user code: what calling it and ``isinstance`` give."""

    def __call__(cls, *args: Any) -> Any:
        return _range_items(*args) if any(map(_is_symbolic, args)) else range(*args)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, range)


class _Range(metaclass=_RangeType):
    """``range`` in user code: of symbolic sizes, only the number of items becomes a number."""


def _range_items(first: Any, stop: Any = None, step: Any = 1) -> tuple[Any, ...]:
    start, stop = (0, first) if stop is None else (first, stop)
    count = -((start - stop) // step)
    # not ``Conversions.whole``: a run that keeps ``int`` symbolic would need this number, too
    count = _plain_int(count) if isinstance(count, torch.SymInt) else int(count)
    return tuple(start + index * step for index in range(count))


def _length(items: Any) -> Any:
    """Return ``len`` of user code: the first size of a tensor, which may be symbolic."""
    is_rows = isinstance(items, torch.Tensor) and items.dim() > 0
    return items.shape[0] if is_rows else len(items)


class _IntegerType(type):
    """The type of ``int`` in user code: what calling it, ``isinstance`` and ``issubclass`` give."""

    def __call__(cls, *args: Any, **named: Any) -> Any:
        args = tuple(x.item() if isinstance(x, FakeTensor) else x for x in args)
        return _sym_int(args[0]) if args and _is_symbolic(args[0]) else int(*args, **named)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, int | torch.SymInt)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, int | torch.SymInt)


class _Integer(int, metaclass=_IntegerType):
    """``int`` in user code: symbolic sizes are integers, and stay symbolic."""


def _patches() -> Iterator[Any]:
    named = _math_functions()
    kept = {getattr(math, name): function for name, function in named.items()}
    # and under the names they were imported by
    for module, name, value in names_of(kept, (math, *foreign_modules())):
        yield patch.object(module, name, kept[value])
    yield patch.object(torch.SymInt, "__float__", lambda x: _number(x.node), create=True)
    yield patch.object(sym_node.SymNode, "guard_float", _number)
    # a size in a text is the number that it is in a run without symbols
    yield patch.object(torch.SymInt, "__repr__", lambda x: str(int(_number(x.node))))
    yield patch.object(torch.SymInt, "__format__", lambda x, how: format(int(_number(x.node)), how))
    yield patch.object(sym_node.SymNode, "statically_known_true", _is_known)
    for names, decorator in _ON_NODES.items():
        for name in names:
            yield patch.object(sym_node.SymNode, name, decorator(getattr(sym_node.SymNode, name)))
    plain = torch.SymInt.bit_length

    def bit_length(size: Any) -> Any:
        return math.floor(_sym_log2(size)) + 1 if size > 0 else plain(size)

    yield patch.object(torch.SymInt, "bit_length", bit_length)
    for name, method in _METHODS_OF_INT.items():
        yield patch.object(torch.SymInt, name, method, create=True)
    yield patch.object(torch.nn.modules.rnn, "int", _Integer, create=True)
    strict: Any = sys.modules.get("huggingface_hub.dataclasses")
    if strict is not None:  # fields of whole numbers take sizes
        valid = _where_symbolic(strict.type_validator, lambda *_: None)
        yield patch.object(strict, "type_validator", valid)
    yield patch.object(torch.SymInt, "__int__", _int_of)
    yield patch.object(FakeTensor, "__int__", lambda x: int(x.item()), create=True)
    for kind in (torch.SymInt, torch.SymFloat):  # numpy calls methods of objects
        for name in ("sqrt", "log2", "log", "exp"):
            yield patch.object(kind, name, named[name], create=True)


def names_of(
    values: Collection[Any], modules: Iterable[ModuleType]
) -> Iterator[tuple[ModuleType, str, Any]]:
    """Yield a module, a name and a value for each of the values that a module has by a name."""
    ids = set(map(id, values))
    for module in modules:
        if not ids.isdisjoint(map(id, vars(module).values())):  # most hold none
            yield from [(module, name, x) for name, x in vars(module).items() if id(x) in ids]


def foreign_modules() -> list[ModuleType]:
    """Return imported modules that may hold a user's code; ours are among them."""
    return _foreign_modules(len(sys.modules), next(reversed(sys.modules)))


@lru_cache(maxsize=1)
def _foreign_modules(_imported: int, _latest: str) -> list[ModuleType]:
    """Return the foreign modules, cached by which are imported (the arguments are the key)."""
    named = [module for name, module in list(sys.modules.items()) if may_be_foreign(name)]
    return [module for module in named if isinstance(module, ModuleType)]


def _conversions(node: Any) -> Conversions:
    """Return the conversions of the run that a size belongs to; new ones if it belongs to none."""
    conversions: Conversions | None = getattr(node.shape_env, "conversions", None)
    return conversions or Conversions()


def _number(node: Any, *_place: Any) -> float:
    return _conversions(node).value(node)


_plain_int: Any = torch.SymInt.__int__


def _int_of(size: Any) -> int:
    _conversions(size.node).whole = True
    return int(_plain_int(size))


_statically_known: Any = sym_node.SymNode.statically_known_true


def _is_known(node: Any, *place: Any) -> bool:
    """Return torch's answer, but True for ``size <= sys.maxsize``, which ``x[:]`` asks."""
    ends = getattr(node.expr, "rel_op", "") == "<=" and node.expr.rhs == sys.maxsize
    return bool(ends or _statically_known(node, *place))


def _rounded(size: Any, digits: int = 0) -> Any:
    unit = 10 ** max(-digits, 0)
    return unit * round(size / unit) if unit > 1 else size


#: Methods that integers have and torch's sizes do not, or without their arguments.
_METHODS_OF_INT: dict[str, Callable[..., Any]] = {
    "__divmod__": lambda size, by: (size // by, size % by),
    "__rdivmod__": lambda size, number: (number // size, number % size),
    "__invert__": lambda size: -size - 1,
    "__round__": _rounded,
}


# -- functions of math ------------------------------------------------------------------
def _math_functions() -> dict[str, Callable[..., Any]]:
    """Return replacements for functions of :mod:`math` that keep symbolic sizes, by name."""
    log = _where_symbolic(math.log, _unary("log"))
    return {
        "sqrt": _where_symbolic(math.sqrt, torch.sym_sqrt),
        "log2": _where_symbolic(math.log2, _sym_log2),
        "pow": _where_symbolic(math.pow, lambda x, y: _sym_float(x) ** _sym_float(y)),
        "isqrt": _where_symbolic(math.isqrt, lambda x: math.floor(torch.sym_sqrt(x))),
        "exp": _where_symbolic(math.exp, _unary("exp")),
        # with a base, a quotient of two logarithms, as Python computes it
        "log": _where_symbolic(math.log, lambda x, *base: log(x) / log(*base) if base else log(x)),
    }


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, torch.SymInt | torch.SymFloat)


def _where_symbolic(plain: Callable[..., Any], kept: Callable[..., Any]) -> Callable[..., Any]:
    def function(*args: Any) -> Any:
        return kept(*args) if any(map(_is_symbolic, args)) else plain(*args)

    return function


def _unary(name: str) -> Callable[[Any], Any]:
    """Return a function of symbolic sizes that torch has an expression for, and leaves as it is."""
    function, hinted = getattr(symbolic, f"OpaqueUnaryFn_{name}"), getattr(math, name)

    def kept(value: Any) -> Any:
        node = _sym_float(value).node
        expression, hint = function(node.expr), hinted(node.hint)
        symbolic_node = sym_node.SymNode(expression, node.shape_env, float, hint)
        return torch.SymFloat(symbolic_node)  # type: ignore[no-untyped-call]

    return kept
