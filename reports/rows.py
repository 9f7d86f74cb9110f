"""What every report has: rows in a CSV file, tables in Markdown, the machine, processes of its own.

A row is a frozen dataclass of numbers, truth values and texts; its fields are the columns.
"""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from attnprof.units import grouped  # noqa: F401 - reports have it from here

T = TypeVar("T")
HERE = Path(__file__).parent

#: How the text of a field is read, by the field's type.
_READ = {"int": int, "float": float, "bool": "True".__eq__, "str": str}


def save(path: Path, kind: type[T], rows: Sequence[T]) -> None:
    """Write all rows of a kind below its fields' names."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [f.name for f in fields(kind)], lineterminator="\n")  # type: ignore[arg-type]
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)  # type: ignore[call-overload]


def earlier(path: Path, kind: type[T]) -> list[T]:
    """Return the rows that a file has from before; none where there is no file."""
    if not path.exists():
        return []
    types = {f.name: _READ[getattr(f.type, "__name__", str(f.type))] for f in fields(kind)}  # type: ignore[arg-type]
    with path.open(newline="", encoding="utf-8") as file:
        return [
            kind(**{name: types[name](text) for name, text in line.items()})
            for line in csv.DictReader(file)
        ]


def table(heads: str, rows: Iterable[Iterable[Any]]) -> Iterator[str]:
    """Yield a table in Markdown: ``heads`` as ``"name | >number"``, where ``>`` aligns right."""
    columns = heads.split(" | ")
    yield f"| {' | '.join(column.lstrip('>') for column in columns)} |"
    yield f"|{'|'.join('--:' if column.startswith('>') else '---' for column in columns)}|"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"


def machine(packages: Iterable[str] = ("torch",)) -> str:
    """Return processor, cores, versions and date, as the head of a page has them."""
    from attnprof.measure.environment import cpu_model

    versions = [_version(name) for name in packages]
    here = [cpu_model(), f"{os.cpu_count()} cores", platform.machine()]
    python = f"Python {platform.python_version()}"
    return ", ".join([*here, python, *versions, time.strftime("%Y-%m-%d", time.gmtime())])


def _version(name: str) -> str:
    """Return the name and version of a package, or that it is not there."""
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"no {name}"


def since(start: float) -> float:
    """Return the processor seconds since ``time.process_time()`` was ``start``."""
    return round(time.process_time() - start, 1)


def apart(make: Callable[[], T], otherwise: T, limit_s: float) -> T:
    """Return what a forked process makes; ``otherwise`` if it ends without, or lasts longer."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=lambda: send.send(make()))
    child.start()
    send.close()
    result = otherwise
    if receive.poll(limit_s):
        with suppress(EOFError):
            result = receive.recv()
    child.kill()
    child.join()
    return result


_FRESH = """
import importlib, json, sys
module, function, arguments = sys.argv[1:]
made = getattr(importlib.import_module(module), function)(*json.loads(arguments))
print("\\n" + json.dumps(made))
"""


def fresh(function: Callable[..., T], *arguments: Any, **environment: str | None) -> T:
    """Return what a function gives in a new interpreter; arguments and result travel as JSON.

    Variables of the environment are set there, or left out where they are None.
    """
    variables: Mapping[str, Any] = {**os.environ, **environment}
    paths = [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    known = {name: text for name, text in variables.items() if text is not None}
    words = [function.__module__, function.__name__, json.dumps(arguments)]
    ended = subprocess.run(  # noqa: S603 - our own interpreter and the lines above
        [sys.executable, "-c", _FRESH, *words], capture_output=True, text=True, check=False,
        env={**known, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )  # fmt: skip
    if ended.returncode:
        raise RuntimeError(f"{function.__name__}{arguments}: {ended.stderr[-2000:]}")
    result: T = json.loads(ended.stdout.splitlines()[-1])
    return result
