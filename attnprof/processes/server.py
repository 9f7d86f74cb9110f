"""The server of a pool: it imports slow modules, runs no work itself, and forks for each order.

Run as a script, ``python server.py SETUP``, which uses the standard library alone: a pool of this
version serves a folder that holds another version of the package, or none. A line of JSON on stdin
orders a fresh process, which runs the function named by ``do`` and may read more lines. Lines
on stdout are answers with the ``id`` of their order; the last says how the process ended. By then
every process below it is gone.
"""

import gc
import json
import os
import sys
from functools import partial
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from os import write as _write  # user code may replace the module's
from pathlib import Path
from typing import Any

_Line = dict[str, Any]


def main() -> None:
    """Serve orders until stdin ends."""
    setup, folder = json.loads(sys.argv[1]), Path(__file__).resolve().parent
    forks = _from_file("attnprof_forks", folder / "forks.py")
    forks.die_with_parent(setup["parent"])
    forks.ignore_signals()
    forks.adopt_orphans()
    paths = [*setup["first"], *(path for path in sys.path if path != str(folder))]
    home = str(folder.parents[1])
    sys.path[:] = paths if home in paths else [*paths, home]
    orders, answers = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # prints of user code are no answer
    name = setup["worker"]
    worker = _from_file("attnprof_worker", Path(name)) if "/" in name else import_module(name)
    gc.disable()  # imported modules stay
    worker.preload({})
    gc.freeze()  # objects that forks share are never collected, and so never copied
    gc.enable()
    _say(answers, 0, {"ready": True})
    while (order := _next(orders)) is not None:
        if "do" not in order:  # for a process that is gone
            continue
        worker.preload(order)
        work = partial(_work, worker, order, orders, answers, forks)
        ended = forks.run_forked(work, order.get("limit_s"))
        _say(answers, order["id"], {"ended": vars(ended)})


def _work(worker: Any, order: _Line, orders: int, answers: int, forks: Any) -> int:
    """Run an order's function in the fork made for it; return its exit code."""
    if order["memory"]:
        forks.limit_memory()
    say, more = partial(_say, answers, order["id"]), partial(_next, orders)
    code: int = getattr(worker, order["do"])(order, say, more)
    return code


def _from_file(name: str, file: Path) -> Any:
    """Load a module of this version, whatever version can be imported here."""
    spec = spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def _next(orders: int) -> _Line | None:
    """Return the next order; None at the end. The pool sends one only after the last answer."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(orders, 1 << 16)
        if not piece:
            return None
        line += piece
    message: _Line = json.loads(line)
    return message


def _say(answers: int, number: int, answer: _Line) -> None:
    """Write an answer to the order with this number."""
    data = f"\n{json.dumps({'id': number, **answer})}\n".encode()  # a line, whatever was before
    while data:
        data = data[_write(answers, data) :]


if __name__ == "__main__":
    main()
