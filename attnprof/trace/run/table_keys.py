"""Allow symbolic sizes as keys of a user's tables: a mask kept by its length is made once.

Torch gives symbolic sizes no hash. Code that keeps what it made in a dictionary, or in a functools
cache, gets one: the entry is found again by the same size. A table of numbers, as
``{64: 16, 128: 32}``, is refused: no condition on sizes says whether it has the size.
"""

import sys
from collections.abc import Iterable
from typing import Any

import torch

from attnprof.trace.run.symbols import may_be_foreign
from attnprof.user_code import calling_line

_plain_hash: Any = torch.SymInt.__hash__


def hash_of(size: Any) -> int:
    """Return a hash where user code looks a size up, and note the line; else torch's answer.

    Einops takes another way where a size has no hash, and would keep sizes of a run.
    """
    node = size.node
    looked_up = getattr(node.shape_env, "looked_up", {})
    asking = sys._getframe(1).f_globals.get("__name__", "").partition(".")[0]
    is_known = asking == "attnprof" and node.expr in looked_up
    if not is_known and (asking in {"attnprof", "einops"} or not may_be_foreign(asking)):
        return int(_plain_hash(size))
    looked_up.setdefault(node.expr, calling_line())
    return hash((id(node.shape_env), node.expr))


def check_tables(looked_up: dict[Any, str], tables: Iterable[Iterable[Any]]) -> None:
    """Raise :class:`TypeError`, as torch does, for a size that no table has, or one of numbers.

    ``tables`` are the keys of each; parts of keys that are tuples are compared by their place.
    """
    missing = dict(looked_up)
    for keys in tables if missing else ():
        columns: dict[int, list[Any]] = {}
        for key in keys:
            for place, part in enumerate(key if isinstance(key, tuple) else (key,)):
                columns.setdefault(place, []).append(part)
        for parts in columns.values():
            numbers = any(type(part) is int for part in parts)
            for part in parts:
                if isinstance(part, torch.SymInt) and not numbers:
                    missing.pop(part.node.expr, None)
    for line in missing.values():
        raise TypeError(f"a size is looked up in a table of numbers ({line})")
