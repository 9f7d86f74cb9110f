"""Rules of formula text for torch's symbolic sizes; what is plain is computed exactly."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from fractions import Fraction
from functools import reduce
from typing import Any

from attnprof.algebra.evaluation import EXACT, Rules, bits_of, check_power


def _is_symbolic(value: Any) -> bool:
    return hasattr(value, "node")


def _either(exact: Callable[..., Any], symbolic: Callable[..., Any]) -> Callable[..., Any]:
    """The exact rule, or torch's where one of the values is symbolic."""

    def rule(*args: Any) -> Any:
        if not any(map(_is_symbolic, args)):
            return exact(*args)
        return symbolic(*(float(arg) if isinstance(arg, Fraction) else arg for arg in args))

    return rule


def _power(base: Any, exponent: Any) -> Any:
    """A power whose value at the sizes that the run looks at ends."""
    seen = [value.node.hint if _is_symbolic(value) else value for value in (base, exponent)]
    if all(isinstance(value, int) for value in seen):
        check_power(bits_of(seen[0]), seen[1])
    return base**exponent


def _divided(a: Any, b: Any) -> Any:
    """A quotient; of sizes a size where it is whole, which the run then relies on."""
    import torch

    whole = all(isinstance(value, int | torch.SymInt) for value in (a, b))
    return a // b if whole and a % b == 0 else a / b


def _called(name: str) -> Callable[..., Any]:
    """A function of torch's for symbolic sizes."""

    def call(*args: Any) -> Any:
        import torch

        function = getattr(torch, name)
        return reduce(function, args) if len(args) > 1 else function(*args)

    return call


def _log(value: Any, base: Any = None) -> Any:
    of_value = _called("_sym_log2")(value)
    return of_value * math.log(2) if base is None else of_value / SIZES["log2"](base)


_SYMBOLIC: dict[str, Callable[..., Any]] = {
    "+": lambda *parts: reduce(operator.add, parts),
    "*": lambda *parts: reduce(operator.mul, parts),
    "neg": operator.neg, "/": _divided, "//": operator.floordiv, "%": operator.mod,
    "**": _power, "sqrt": _called("sym_sqrt"), "log": _log, "log2": _called("_sym_log2"),
    "exp": lambda x: math.e**x,
    "max": _called("sym_max"), "min": _called("sym_min"), "ceil": math.ceil, "floor": math.floor,
}  # fmt: skip
#: Rules for sizes of which some, or all, are torch's.
SIZES: Rules = {
    **EXACT, **{name: _either(EXACT[name], rule) for name, rule in _SYMBOLIC.items()}
}  # fmt: skip
