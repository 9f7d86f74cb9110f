"""Kinds of operations, and sizes of a call, that several runs are compared by."""

from attnprof.trace.events import Call

Key = tuple[str, str, str, str, str, str]
#: Sizes of a call: bytes that it moves, and bytes that are held.
MOVED, HELD = ("bytes_moved", "touched"), ("takes", "gives", "workspace")


def unnumbered(module: str) -> str:
    """Return ``layers.*.linear1`` for ``layers.3.linear1``."""
    return ".".join("*" if part.isdigit() else part for part in module.split("."))


def key_of(call: Call, *, by_module: bool = False) -> Key:
    """Return the kind of an operation: its name, phase, line and module, without sizes.

    The module is ``layers.*.linear1``, or, ``by_module``, ``layers.3.linear1``.
    """
    module = call.module if by_module else unnumbered(call.module)
    return call.op, call.part, call.line, call.uncounted, call.scratch, module
