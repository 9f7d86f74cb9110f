"""Rules that users register for their own operations: functions from shapes to costs."""

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from attnprof import registry
from attnprof.errors import RequestError
from attnprof.trace.events import KINDS, Size
from attnprof.trace.sizes import size_of
from attnprof.user_code import error_text

#: Packages register rules by entry points of this group: modules whose import does it.
GROUP = "attnprof.rules"
#: Keys of what a rule returns: counts by kind; bytes other than those of operands and results.
GIVES = (*KINDS, "bytes_moved", "workspace_bytes")

Rule = TypeVar("Rule", bound=Callable[..., Any])

_RULES: dict[str, Callable[..., Any]] = {}


def register(name: str) -> Callable[[Rule], Rule]:
    """Return a decorator that enters a function as the rule of an operation, ``library::name``."""
    parts = name.split("::") if isinstance(name, str) else []
    if len(parts) != 2 or not all(part.isidentifier() for part in parts):
        raise RequestError(
            f"{name!r} is no operation's name: type library::name, as in the call "
            'torch.ops.library.name, like @attnprof.rule("mylib::attention")'
        )

    def enter(function: Rule) -> Rule:
        if not callable(function):
            raise RequestError(f"the rule for {name} is no function but {function!r:.60}")
        earlier = _RULES.get(name, function)
        if _full_name(earlier) != _full_name(function):  # equal if a notebook's cell runs again
            raise RequestError(f"{name} has a rule already: {_place(earlier)}; keep one of the two")
        _RULES[name] = function
        return function

    return enter


def registered(name: str) -> Callable[..., Any] | None:
    """Return the rule of an operation, or None; installed packages are asked for rules once."""
    if name not in _RULES and not name.startswith("aten::"):
        _installed()
    return _RULES.get(name)


def names() -> list[str]:
    """Return the names of operations that have a registered rule."""
    return list(_RULES)


@cache
def _installed() -> None:
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP):
        try:
            point.load()
        except Exception as error:
            message = f"{registry.origin(point)} does not load: {error_text(error)}"
            raise RequestError(message) from error


def counts_of(name: str, arguments: Mapping[str, Any], out: Any) -> dict[str, Size]:
    """Return the counts by kind that an operation's rule gives, matrix products included.

    ``matmul_flops`` are halved into multiplications and additions. Raises :class:`RequestError` for
    a rule that fails or gives anything but whole numbers by kind.
    """
    function = _RULES[name]
    rule = f"the rule for {name} ({_place(function)})"
    values = [_shape(value) for value in arguments.values()]
    signature = inspect.signature(function)
    keywords = {"out": _shape(out)} if "out" in signature.parameters else {}
    try:
        signature.bind(*values, **keywords)
    except TypeError as error:
        passed = ", ".join([*arguments, "out (if it likes)"])
        raise RequestError(f"{rule} does not take what it gets, {passed}: {error}") from error
    try:
        counts = function(*values, **keywords)
    except Exception as error:
        if type(error).__module__.startswith("torch."):
            raise
        raise RequestError(f"{rule} raised {error_text(error)}") from error
    if not isinstance(counts, Mapping) or not set(counts) <= set(GIVES):
        raise RequestError(
            f"{rule} gives {counts!r:.80}; what it may give is a dictionary of numbers by kind: "
            f"{', '.join(GIVES)}"
        )
    numbers = {kind: _whole(rule, kind, value) for kind, value in counts.items()}
    if products := numbers.get("matmul_flops"):
        for kind in KINDS[:2]:
            half = products // 2 if isinstance(products, int) else products / 2
            numbers[kind] = numbers.get(kind, 0) + half
    return numbers


def _full_name(function: Any) -> tuple[Any, Any]:
    return getattr(function, "__module__", None), getattr(function, "__qualname__", function)


def _place(function: Any) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}" if code else repr(function)[:60]


def _shape(value: Any) -> Any:
    """Return a tensor's shape; of several tensors a list of shapes; anything else as it is."""
    if isinstance(value, tuple | list):
        return [_shape(item) for item in value]
    return tuple(value.shape) if hasattr(value, "shape") else value


def _whole(rule: str, kind: str, value: Any) -> Size:
    symbolic = hasattr(value, "node")
    number = symbolic or (isinstance(value, int | float) and not isinstance(value, bool))
    if not number or (not symbolic and (value < 0 or value != value // 1)):
        raise RequestError(f"{rule} gives {value!r:.60} for {kind}: a whole number, 0 or more")
    return size_of(value) if symbolic else int(value)
