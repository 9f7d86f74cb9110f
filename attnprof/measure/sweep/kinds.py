"""What a name stands for, asked in a process of its own: importing somebody's code runs it."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from attnprof.errors import NotFoundError, RequestError
from attnprof.measure.modules import is_module
from attnprof.processes import keeping
from attnprof.processes.apart import run_apart

#: Seconds an import may take, unless said otherwise.
LIMIT_S = 120.0


@cache
def is_module_apart(name: str, limit_s: float | None = None) -> bool:
    """:func:`attnprof.measure.modules.is_module`, of code that may do anything when imported.

    Code that does not import counts as a module: its points, each tried apart, say why. Raises
    :class:`RequestError` where the name is none, or nothing has it.
    """
    if ":" not in name:
        return False
    import_module("torch")  # once, here: most modules import it
    answer = run_apart(lambda: _kind(name), LIMIT_S if limit_s is None else limit_s)
    if not answer.given:
        return True
    kind, said = answer.value
    if kind == "missing":
        raise NotFoundError(said)
    if kind == "wrong":
        raise RequestError(said)
    return bool(kind == "module")


def _kind(name: str) -> tuple[str, str]:
    keeping.limit_memory()
    try:
        return ("module" if is_module(name) else "mechanism"), ""
    except NotFoundError as error:
        return "missing", str(error)
    except RequestError as error:
        return ("module", "") if error.__cause__ else ("wrong", str(error))
