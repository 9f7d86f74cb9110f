"""The conditions a symbolic run relied on, and whether one of them pins a size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnprof.trace.evaluating import evaluate
from attnprof.trace.sizes import translated


class Domain:
    """Guards of a symbolic run, over the user's symbols.

    Made inside :func:`attnprof.trace.sizes.spoken`.
    """

    def __init__(self, environment: Any) -> None:
        guards = [guard.expr for guard in environment.guards]
        # a float that a size went into is a factor, not a shape; if it becomes one after all,
        # the runs at other shapes say so
        self._guards = [guard for guard in guards if not _is_float(guard)]
        self._pins = [
            f"{translated(old)} = {translated(new)}"
            for old, new in environment.replacements.items()
            if old.free_symbols - new.free_symbols
        ]
        self._conditions = [self._plain(guard) for guard in self._guards]

    @property
    def pinned(self) -> tuple[str, ...]:
        """Conditions that leave a size one value only: the formula would be a mixed, wrong one."""
        equal = [
            text(guard) for guard in self._guards if _is_equality(guard) and not _divides(guard)
        ]
        return tuple(dict.fromkeys([*self._pins, *equal]))

    @property
    def conditions(self) -> tuple[str, ...]:
        """The guards in words of the symbols."""
        return tuple(dict.fromkeys(text(guard) for guard in self._guards))

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether a shape lies inside."""
        return all(bool(evaluate(condition, sizes)) for condition in self._conditions)

    @staticmethod
    def _plain(guard: Any) -> Any:
        return translated(guard)


def _is_equality(guard: Any) -> bool:
    return type(guard).__name__ == "Equality"


def _is_float(guard: Any) -> bool:
    """Whether it fixes a real number computed from sizes, like 1/sqrt(d)."""
    return _is_equality(guard) and any(side.is_Float for side in guard.args)


def _divides(guard: Any) -> bool:
    """Whether the guard says that one size divides another."""
    return guard.rhs == 0 and type(guard.lhs).__name__ in ("Mod", "PythonMod")


def text(guard: Any) -> str:
    """``N > 307``, ``64 divides N``."""
    if _is_equality(guard) and _divides(guard):
        number, divisor = (translated(arg) for arg in guard.lhs.args)
        return f"{divisor} divides {number}"
    symbols = {"StrictGreaterThan": ">", "GreaterThan": ">=", "StrictLessThan": "<",
               "LessThan": "<=", "Equality": "=", "Unequality": "!="}  # fmt: skip
    sign = symbols.get(type(guard).__name__)
    if sign is None:
        return str(translated(guard))
    return f"{translated(guard.lhs)} {sign} {translated(guard.rhs)}"
