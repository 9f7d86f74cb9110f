"""Check arguments of Python callers: sizes, flags, names, numbers; RequestError otherwise."""

import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import Field
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any

from attnprof.algebra.parser import name_of
from attnprof.errors import RequestError, closest

#: The largest size of a module that is built and run, and of a size that is typed.
LARGEST = 2**40


def shown(value: Any) -> str:
    """Return a value as messages show it: short, on one line."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # noqa: BLE001 - anybody's object, or an int too long to print
        text = f"a {type(value).__name__}"
    return text if len(text) < 60 else f"{text[:57]}..."


def is_whole(value: Any) -> bool:
    """Return whether it is an integer of Python's or numpy's; booleans and floats are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def size(name: str, value: Any) -> Any:
    """Return a size: an int of 1 or more (numpy's, too), an array of them, or a sympy expression.

    Arrays of floats are let through: documents plot widths that heads do not divide. So are the
    sizes that our own algebra counts with, like polynomials, and those of a symbolic run.
    """
    if is_whole(value):
        return at_least(name, value, 1)
    if type(value).__module__.startswith("attnprof."):
        return value
    sympy, numpy = (sys.modules.get(room) for room in ("sympy", "numpy"))
    if is_torch_symbol(value):
        return value
    if numpy and isinstance(value, numpy.ndarray) and value.dtype.kind in "iufO" and value.ndim:
        if value.dtype.kind in "iu" and value.size and value.min() < 1:
            raise RequestError(f"{name} must be at least 1, not {value.min()}")
        return value
    if sympy and isinstance(value, sympy.Expr) and not value.is_number:
        if value.is_positive is False or value.is_real is False:
            raise RequestError(f"{name} must be positive, not {shown(value)}")
        return value
    if sympy and isinstance(value, sympy.Integer):
        return at_least(name, int(value), 1)
    raise RequestError(f"{name} must be a whole number of at least 1, not {shown(value)}")


def is_torch_symbol(value: Any) -> bool:
    """Return whether it is a size of a symbolic run: at least 1, and no number yet."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.SymInt)


def at_least(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return a whole number of ``least`` or more (up to ``most``) as an int."""
    if not is_whole(value):
        raise RequestError(f"{name} must be a whole number, not {shown(value)}")
    whole = int(value)
    if whole >= least and (most is None or whole <= most):
        return whole
    bound = f"at least {least}" if whole < least else f"at most {most}"
    bits = whole.bit_length()  # nobody reads hundreds of digits
    raise RequestError(
        f"{name} must be {bound}, not {whole if bits < 200 else f'one of {bits} bits'}"
    )


def tensor_size(name: str, value: Any) -> int:
    """Return a size for code that runs: a number up to :data:`LARGEST`, or a symbol of a run."""
    return value if is_torch_symbol(value) else at_least(name, value, 1, LARGEST)


def number(name: str, value: Any) -> float:
    """Return a finite number; booleans are none."""
    with suppress(OverflowError):  # an int that no float reaches
        if not is_flag(value) and isinstance(value, Real) and math.isfinite(value):
            return int(value) if isinstance(value, Integral) else float(value)
    raise RequestError(f"{name} must be a number, not {shown(value)}")


def seconds(name: str, value: Any) -> float | None:
    """Return a time above 0; None where there is none."""
    if value is not None and number(name, value) <= 0:
        raise RequestError(f"{name} must be above 0, not {shown(value)}")
    return None if value is None else number(name, value)


def is_flag(value: Any) -> bool:
    """Return whether it is True or False, of Python's or numpy's."""
    return type(value).__name__ in ("bool", "bool_")


def flag(name: str, value: Any) -> bool:
    """Return True or False, also from numpy's; RequestError for other values."""
    if is_flag(value):
        return bool(value)
    raise RequestError(f"{name} must be True or False, not {shown(value)}")


def choice(name: str, value: Any, possible: Sequence[str]) -> str:
    """Return one of the possible names; RequestError names the nearest ones."""
    if not isinstance(value, str):
        raise RequestError(
            f"{name} must be text, not {shown(value)}: possible: {', '.join(possible)}"
        )
    if value not in possible:
        raise RequestError(f"unknown {name} '{value}': {closest(value, list(possible))}")
    return value


def text(name: str, value: Any, example: str) -> str:
    """Return text; ``example`` is shown if it is none."""
    if not isinstance(value, str) or not value:
        raise RequestError(f"{name} must be text like '{example}', not {shown(value)}")
    return value


def file_path(name: str, value: Any) -> Path:
    """Return a path, from text or from a path."""
    if isinstance(value, str | PathLike) and str(value) and "\0" not in str(value):
        return Path(value)
    raise RequestError(f"{name} must be the path of a file, not {shown(value)}")


def several(name: str, value: Any) -> list[Any]:
    """Return one value or several as a list of one or more."""
    plain = isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable)
    single = plain or getattr(value, "ndim", 1) == 0  # numpy's and torch's numbers
    values = [value] if single else list(value)
    if not values:
        raise RequestError(f"{name} is empty: give one value or several")
    return values


def name_text(value: Any) -> str:
    """Return a mechanism's name."""
    return text("a mechanism's name", value, "standard")


def seed_of(value: Any) -> int:
    """Return a seed of torch's generators."""
    return at_least("seed", value, 0, 2**63 - 1)


#: More compute threads than any machine has.
MOST_THREADS = 2**16


def threads_of(value: Any) -> int | None:
    """Return a number of threads, None for torch's own."""
    return None if value is None else at_least("threads", value, 1, MOST_THREADS)


def texts(name: str, value: Any) -> Sequence[str] | Mapping[str, Any] | None:
    """Return texts like ``d_model=h*d``, or a mapping of names; one text alone, too."""
    if value is None:
        return None
    items = value if isinstance(value, Mapping) else several(name, value)
    for item in items:
        text(name, item, "d_model=h*d" if name == "args" else "x: B, N, h*d")
    return items


def sizes_by_name(value: Any) -> dict[str, int] | None:
    """Return sizes by symbol, each name in one spelling."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise RequestError(f"at must map symbols to sizes, like {{'N': 4096}}, not {shown(value)}")
    return {
        name_of(name) if isinstance(name, str) else shown(name): at_least(f"at {name}", item, 1)
        for name, item in value.items()
    }


# -- parameters of mechanisms ----------------------------------------------------------
def parameter_value(item: Field[Any], value: Any) -> Any:
    """Return a parameter's value from text, or as Python passes it, by the type of its default."""
    kind = getattr(item.type, "__name__", str(item.type))
    if not isinstance(value, str):
        return _passed(item.name, kind, value)
    text = value.strip()
    if text.lower() in ("none", "null") and "None" in kind:
        return None
    parsed: Any = None
    with suppress(ValueError):
        if "bool" in kind:
            parsed = _FLAGS.get(text.lower())
        elif "int" in kind:
            parsed = int(text) if abs(int(text)) <= LARGEST else None
        elif "float" in kind:
            parsed = float(text) if math.isfinite(float(text)) else None
        else:
            return text
    if parsed is None:
        words = next(words for name, words in _KINDS.items() if name in kind)
        none = " or none" * ("None" in kind)
        raise RequestError(
            f"{item.name}={value}: not usable; {item.name} is {words}{none}, for example "
            f"{item.name}={str(item.default).lower()}"
        )
    return parsed


_KINDS = {"bool": "true or false", "int": "a whole number", "float": "a number"}
_FLAGS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


def _passed(name: str, kind: str, value: Any) -> Any:
    """Return a parameter's value as Python passes it, of the type that its field has."""
    if value is None and "None" in kind:
        return None
    if "bool" in kind:
        return flag(name, value)
    if "int" in kind and is_whole(value):
        return int(value)
    if "float" in kind:
        return number(name, value)
    if any(word in kind for word in ("bool", "int", "float", "str")):
        raise RequestError(f"{name} must be {kind}, not {shown(value)}")
    return value


_MEMORY_UNITS = {
    "": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
    "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40,
}  # fmt: skip


def memory_bytes(value: Any, name: str = "memory") -> int:
    """Return the bytes of ``2GiB``, ``500MB`` or a number; raise :class:`RequestError`.

    No bytes are refused, and so is a number below a million without a unit: gigabytes were meant.
    """
    typed = str(value).strip().lower()
    matched = re.fullmatch(r"([0-9]{1,30}(?:\.[0-9]+)?)\s*([kmgt]i?)?b?", typed)
    if not matched:
        raise RequestError(f"{name} {value}: type a size like 2GiB or 500MB")
    size = int(float(matched[1]) * _MEMORY_UNITS[matched[2] or ""])
    unitless = typed == matched[1] and size < 10**6  # nobody means so few
    if unitless or not size:
        meant = f"{typed}GB" if unitless and float(typed) else "a size like 80GB"
        few = typed if unitless else "0"
        raise RequestError(f"{name} {value}: that is {few} bytes; type {meant}")
    return size
