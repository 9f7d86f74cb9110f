"""From an operation that ran to its cost: find the rule, and what was read and written."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch._ops import HigherOrderOperator

from attnprof.trace.events import Size
from attnprof.trace.rules.moves import MOVES, OVERWRITES, VIEWS
from attnprof.trace.rules.table import BY_NAME, RULES, Found
from attnprof.trace.rules.workspaces import workspace_of
from attnprof.trace.sizes import nbytes

#: Arguments that say how, not on what.
_SETTINGS = frozenset(
    {"dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking", "generator"}
)


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
    workspace, known = workspace_of(base, out, tuple(vars(bound(func, args, given)).values()))
    scratch = "" if known else name_of(func)
    counts = {} if base in MOVES else _counted(func, base, out, args, given)
    if counts is None:
        return Found({}, moved, workspace, name_of(func), moved, scratch)
    return Found(counts, moved, workspace, scratch=scratch)


def name_of(func: Any) -> str:
    """``aten.mm``, ``mylib.op``, ``higher_order.cond``."""
    if isinstance(func, HigherOrderOperator):
        return f"higher_order.{func._name}"
    name: str = func._schema.name
    return name.replace("::", ".")


def _counted(
    func: Any, base: str, out: Any, args: tuple[Any, ...], given: dict[str, Any]
) -> Mapping[str, Size] | None:
    """Counts by the operation's rule; None without one, or where it does not know the case."""
    rule = RULES.get(base)
    if rule is None:
        return None
    if base in BY_NAME:
        return rule(out, bound(func, args, given))
    scalars = {key: value for key, value in given.items() if key not in _SETTINGS}
    return rule(out, *args, **scalars)


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
    read = _operands(name, args, given)
    total = sum((nbytes(t) for t in read), start=sum(nbytes(t) for t in tensors_in(out)))
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


def _operands(name: str, args: tuple[Any, ...], given: dict[str, Any]) -> list[torch.Tensor]:
    if name.endswith("_like") or name.startswith("new_"):
        return []
    return tensors_in((args[1:] if name in OVERWRITES else args, given))
