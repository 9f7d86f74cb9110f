"""The table of rules: what every operation counts, and what its kernel takes for itself.

A rule gets the result and the call (the schema's argument names, defaults filled in) and gives
counts, or None where it does not know the case: the operation is then named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch._ops import HigherOrderOperator

from attnprof.trace.events import KINDS, Size
from attnprof.trace.rules.moves import MOVES, OVERWRITES, VIEWS
from attnprof.trace.rules.workspaces import workspace_of
from attnprof.trace.sizes import is_floating, nbytes, numel


class Counts(dict[str, Size]):
    """Operations by kind, added and multiplied like terms: ``(2 * M + A) * numel(x)``."""

    def __add__(self, other: Mapping[str, Size]) -> Counts:
        # a ``Counter`` would compare expressions with zero
        sums = {kind: self[kind] + n if kind in self else n for kind, n in other.items()}
        return Counts({**self, **sums})

    def __mul__(self, times: Size) -> Counts:
        """So often each; of a condition, nothing where it is false."""
        if isinstance(times, bool):
            return self if times else Counts()
        return Counts({kind: count * times for kind, count in self.items()})

    __rmul__ = __mul__


NOTHING = Counts()
#: multiplications, additions, divisions, exponentials, others, FLOPs of matrix products
M, A, D, E, OTHER, MM = (Counts({kind: 1}) for kind in KINDS)
#: A multiply-add of a matrix product.
MAC = M + A + 2 * MM

Rule = Callable[[Any, Any], Counts | None]
Known = TypeVar("Known", bound=Rule)

RULES: dict[str, Rule] = {}


@dataclass(frozen=True)
class Found:
    """What one operation costs.

    ``uncounted`` names it where ``counts`` leave something out, ``scratch`` where its kernel takes
    memory that ``workspace`` does not know.
    """

    counts: Mapping[str, Size] = field(default_factory=dict)
    bytes_moved: Size = 0
    workspace: Size = 0
    uncounted: str = ""
    touched: Size = 0
    scratch: str = ""


def rule(names: str) -> Callable[[Known], Known]:
    """Enter a rule for these operations (without ``aten::``, overload or final ``_``)."""

    def enter(function: Known) -> Known:
        rules({names: function})
        return function

    return enter


def rules(table: Mapping[str, Rule]) -> None:
    """Enter several; names are separated by spaces."""
    for names, function in table.items():
        for name in names.split():
            if name in RULES:
                raise ValueError(f"{name} has two rules")
            RULES[name] = function


def per_entry(names: str, real: Counts, of_complex: Counts | None = None) -> None:
    """So many operations for each entry of the (first) result, where it is floating point."""

    def counts(out: Any, _call: Any) -> Counts | None:
        first = first_of(out)
        each = of_complex if first.is_complex() else real * first.is_floating_point()
        return None if each is None else each * numel(first)

    rules({names: counts})


def first_of(out: Any) -> Any:
    """The result, or the first of several."""
    return out[0] if isinstance(out, tuple | list) else out


def products(of: Any) -> Counts:
    """The product of two numbers of a tensor's kind; integers count nothing."""
    return (4 * M + 2 * A if of.is_complex() else M) * is_floating(of)


def sums(of: Any) -> Counts:
    """The sum of two."""
    return (2 * A if of.is_complex() else A) * is_floating(of)


def macs(of: Any) -> Counts:
    """The multiply-add of a matrix product; a complex one is four real ones."""
    return (4 * MAC if of.is_complex() else MAC) * is_floating(of)


def is_factor(value: Any) -> bool:
    """Whether a scalar costs a multiplication: 1 changes nothing, -1 only a sign.

    One that is computed from symbolic sizes is a factor; comparing it would fix the sizes.
    """
    return hasattr(value, "node") or bool(abs(value) != 1)


def has_reals(call: Any) -> bool:
    """Whether any operand is floating point."""
    return any(map(is_floating, tensors_in(vars(call))))


def cost_of(func: Any, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Found:
    """The cost of one dispatched operation."""
    if isinstance(func, HigherOrderOperator):
        touched = sum(nbytes(x) for x in tensors_in((args, kwargs, out)))
        said = name_of(func)
        return Found(bytes_moved=touched, uncounted=said, touched=touched, scratch=said)
    name, base, outs = _names(func)
    if name in VIEWS:
        return Found()
    given = {key: value for key, value in kwargs.items() if key not in outs}
    moved = _moved(name, base, out, args, given)
    call = bound(func, args, given)
    workspace, known = workspace_of(base, out, call)
    scratch = "" if known else name_of(func)
    found = RULES.get(base, lambda *_: NOTHING if base in MOVES else None)(out, call)
    if found is None:
        return Found({}, moved, workspace, name_of(func), moved, scratch)
    return Found(found, moved, workspace, scratch=scratch)


def name_of(func: Any) -> str:
    """``aten.mm``, ``mylib.op``, ``higher_order.cond``."""
    if isinstance(func, HigherOrderOperator):
        return f"higher_order.{func._name}"
    name: str = func._schema.name
    return name.replace("::", ".")


@cache
def _names(func: Any) -> tuple[str, str, frozenset[str]]:
    """Name; name shared with the in-place spelling; arguments that only receive results.

    An operation of another library than ``aten`` keeps its library's name and finds no rule.
    """
    full: str = func._schema.name
    name = full.removeprefix("aten::")
    base = name.strip("_") if name.startswith("__") else name.removesuffix("_")
    outs = frozenset(argument.name for argument in func._schema.arguments if argument.is_out)
    return name, base, outs


def bound(func: Any, args: tuple[Any, ...], given: dict[str, Any]) -> SimpleNamespace:
    """The call's arguments by the schema's names, defaults filled in."""
    told = dict(_defaults(func))
    told.update(zip(told, args, strict=False))
    told.update({name: value for name, value in given.items() if name in told})
    return SimpleNamespace(**told)


@cache
def _defaults(func: Any) -> dict[str, Any]:
    return {
        argument.name: argument.default_value if argument.has_default_value() else None
        for argument in func._schema.arguments
    }


def _moved(name: str, base: str, out: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Size:
    """Every operand read once, every result written once; rows left alone are not."""
    makes = name.endswith("_like") or name.startswith("new_")
    read = [] if makes else tensors_in((args[1:] if name in OVERWRITES else args, given))
    total = sum(map(nbytes, [*tensors_in(out), *read]), start=0)
    if base in {"index_select", "embedding"}:
        return total - nbytes(args[0]) + nbytes(out)
    if base == "index_copy":  # the source is read, and written
        return total - 2 * nbytes(args[0]) + nbytes(args[3])
    return total


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Tensors in arguments or results, in order (pytrees know more containers, and take longer)."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, tuple | list):
        return []
    return [tensor for item in value for tensor in tensors_in(item)]
