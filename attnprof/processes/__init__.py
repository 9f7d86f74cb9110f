"""Run code that may die, hang or fork in processes of its own, and leave nothing running.

This file has settings that keep a deep program from spending its time on Python's memory.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
#: New objects between two garbage collections: modules and formulas are many objects that stay.
SELDOM = 100_000
#: Words of a frame: a piece is as long as the next power of two and has as many left for calls.
_WORDS = 2**17


def with_room_for_calls(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function itself, whose frame now has 1 MiB of room for the frames of its calls.

    CPython keeps frames in pieces of 16 KiB and gives the last one back as soon as it is empty. A
    loop whose calls cross the end of a piece maps and returns memory in every turn, which took a
    fifth of the time of long derivations.
    """
    code = function.__code__
    function.__code__ = code.replace(co_stacksize=_WORDS)
    return function
