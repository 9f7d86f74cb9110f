"""Format counts, bytes, times and rates for people; JSON and CSV have plain numbers instead."""

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

Item = TypeVar("Item")
Key = TypeVar("Key")
MISSING = "–"
_SI = ((1e24, "Y"), (1e21, "Z"), (1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def format_count(value: float, *, short: bool = False) -> str:
    """Return an exact count with thousands separators, or ``21.0 M`` where ``short``."""
    if isinstance(value, float) and not value.is_integer():
        return format_number(value, short=short)
    if not short or abs(value) < 1e6:
        return f"{int(value):,}"
    return _decimal(value)


def _decimal(value: float) -> str:
    """Return a number from 1e6 on with a decimal prefix: ``21.0 M``; a smaller one as it is."""
    for size, prefix in _SI:
        if abs(value) >= 0.9995 * size:  # not 1,000 of the prefix below
            return f"{_rounded(value / size, 3)} {prefix}"
    return f"{value:.3g}"


def format_bytes(value: float) -> str:
    """Return bytes in KiB, MiB, GiB: ``1.50 MiB``; whole bytes below 1024."""
    size, power = float(value), 0
    while abs(size) >= 1024 and power < len(_BINARY) - 1:
        size, power = size / 1024, power + 1
    return f"{value:.0f} B" if power == 0 else f"{size:.2f} {_BINARY[power]}"


def format_time(value: float) -> str:
    """Return seconds in s, ms, µs or ns, three significant digits: ``12.5 ms``."""
    for size, unit in _TIMES:
        if abs(value) >= 0.9995 * size:  # not 1,000 of the prefix below
            return f"{_rounded(value / size, 3)} {unit}"
    return f"{_rounded(value * 1e9, 3)} ns" if value else "0 s"


def format_rate(value: float, unit: str = "FLOP/s") -> str:
    """Return operations or bytes a second in decimal units: ``12.5 GFLOP/s``."""
    head, _, prefix = _decimal(value).partition(" ")
    return f"{head} {prefix}{unit}"


def format_number(value: float, *, short: bool = False) -> str:
    """Return a number: integers exact, others to six significant digits, or three if ``short``."""
    if isinstance(value, int):
        return f"{value:,}"
    if short and 1e-6 < abs(value) < 1e15:
        return f"{value:,.0f}" if value.is_integer() else _rounded(value, 3)
    return f"{value:,.2f}" if abs(value) >= 1000 else f"{value:.6g}"


def _rounded(value: float, digits: int) -> str:
    """Return ``digits`` significant digits, without exponent: ``0.0120``, ``1.30``, ``12,345``."""
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])
    return f"{value:,.{max(0, digits - 1 - exponent)}f}"


def format_ratio(value: float, base: float = 1) -> str:
    """Return a ratio: ``0.0081``, ``0.56``, ``13``, and more digits near 1: ``1.003``."""
    ratio = value / base
    if not 0.1 <= ratio < 10:
        return _rounded(ratio, 2) if ratio else "0"
    apart = math.log10(abs(ratio - 1) or 1) + 1e-9
    return f"{ratio:.{min(9, max(2, -math.floor(apart)))}f}"


_WRITERS: dict[str, Callable[[float], str]] = {
    "count": format_count, "bytes": format_bytes, "time": format_time, "flops_rate": format_rate,
    "bytes_rate": lambda value: format_rate(value, "B/s"),
    "percent": lambda value: f"{100 * value:.2f} %", "ratio": format_ratio,
    "number": format_number,
}  # fmt: skip


def plural(number: int, noun: str) -> str:
    """Return ``1 case``, ``6,000 cases``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def joined(texts: Iterable[str], word: str = "and") -> str:
    """Return the texts as a list in a sentence: ``a, b and c``."""
    *first, last = texts
    return f"{', '.join(first)} {word} {last}" if first else last


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return the items by what ``key`` returns for each, in order of appearance."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


#: Quantities whose names in a sentence are not just the field's with spaces.
_QUANTITIES = {
    "flops": "FLOPs", "matmul_flops": "matmul FLOPs", "matmul": "matmul FLOPs", "macs": "MACs",
    "peak_bytes": "peak memory", "step_bytes": "bytes a step",
    "step_intensity": "FLOPs a byte",
}  # fmt: skip


def quantity_text(name: str) -> str:
    """Return a quantity's name in a sentence: ``peak memory`` for ``peak_bytes``."""
    return _QUANTITIES.get(name, name.replace("_", " "))


#: Names of quantities with "less", not "fewer".
AMOUNTS = {"bytes_moved": "memory traffic", "time": "time",
           **dict.fromkeys(("bytes", "step_bytes"), "memory traffic a step"),
           **dict.fromkeys(("state_bytes", "state"), "decoding state"),
           **dict.fromkeys(("peak_bytes", "peak_entries", "memory"), "memory")}  # fmt: skip


def words_of(quantity: str, phase: str = "forward") -> tuple[str, str, str]:
    """Return how a quantity is compared: ``("fewer", "the fewest", "FLOPs")``."""
    if quantity in AMOUNTS:
        noun = AMOUNTS[quantity]
        if phase == "decode" and noun == "memory":
            noun = "memory beside the state"
        return "less", "the least", noun
    return "fewer", "the fewest", quantity_text(quantity)


def setting_text(value: Any) -> str:
    """Return a parameter's value as ``--set`` takes it."""
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def label(mechanism: str, params: dict[str, object]) -> str:
    """Return a mechanism and its parameters as text: ``standard (bias=true)``."""
    settings = " ".join(f"{name}={setting_text(value)}" for name, value in params.items())
    return f"{mechanism} ({settings})" if settings else mechanism


def is_numeric(fmt: str) -> bool:
    """Return whether a column of this format is right-aligned."""
    return fmt in _WRITERS


def format_value(value: Any, fmt: str = "text", *, short: bool = False) -> str:
    """Return a cell's text by its column's format; a dash for what is missing or not a number."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return " ".join(f"{name}={setting_text(item)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(format_value(item) for item in value)
    if not isinstance(value, (int, float)):
        return str(value)
    write: Any = _WRITERS.get(fmt, format_number)
    how = {"short": short} if write in (format_count, format_number) else {}
    return str(write(value, **how))


# -- sizes that a crossover varies, by the name of their option ------------------------------
#: The noun after a value: ``64 tokens``. For other sizes it stands in front: ``head width 64``.
COUNTED = {"seq": "token", "heads": "head", "kv_heads": "key head"}
_NOUNS = {
    "seq": "length", "d": "head width", "heads": "number of heads", "batch": "batch size",
    "kv_heads": "number of key heads",
}  # fmt: skip
NAMES = {size: f"the {noun}" for size, noun in _NOUNS.items()}


def amount(over: str, value: int) -> str:
    """Return a value with its size's name: ``64 tokens``, ``head width 64``, ``window 64``."""
    if over in COUNTED:
        return plural(value, COUNTED[over])
    return f"{'head width' if over == 'd' else over} {value:,}"


def every(over: str) -> str:
    """Return the noun after "every" in an answer: ``length``, ``value of window``."""
    return _NOUNS.get(over, f"value of {over}")
