"""The rows of reports as CSV: dataclasses of numbers, truth values and texts."""

from __future__ import annotations

import csv
import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

#: How the text of a field is read, by the field's type.
_READ = {"int": int, "float": float, "bool": "True".__eq__, "str": str}


def write(file: Any, kind: type[T], rows: Sequence[T]) -> None:
    """All rows of a kind, below its fields' names."""
    writer = csv.DictWriter(file, [f.name for f in fields(kind)], lineterminator="\n")  # type: ignore[arg-type]
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)  # type: ignore[call-overload]


def save(where: Path, kind: type[T], rows: Sequence[T]) -> None:
    """All rows as a file."""
    with where.open("w", newline="", encoding="utf-8") as file:
        write(file, kind, rows)


def read(lines: Iterable[str], kind: type[T]) -> list[T]:
    """Rows of a kind that were written so."""
    kinds = {f.name: _READ[getattr(f.type, "__name__", str(f.type))] for f in fields(kind)}  # type: ignore[arg-type]
    return [kind(**{k: kinds[k](v) for k, v in line.items()}) for line in csv.DictReader(lines)]


def earlier(where: Path, kind: type[T]) -> list[T]:
    """What a file has from before; nothing where there is none."""
    if not where.exists():
        return []
    with where.open(newline="", encoding="utf-8") as file:
        return read(file, kind)


def apart(make: Callable[[], T], otherwise: T, limit_s: float) -> T:
    """Return a row made in a process of its own; ``otherwise`` where that ends or lasts longer."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=lambda: send.send(make()))
    child.start()
    send.close()
    row = otherwise
    if receive.poll(limit_s):
        with suppress(EOFError):
            row = receive.recv()
    child.kill()
    child.join()
    return row
