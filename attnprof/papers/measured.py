"""Measurements that checks and figures rest on: shipped as files, made again with ``--measure``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from attnprof.errors import CannotRunError
from attnprof.papers.documents import document
from attnprof.record import write_whole

#: What was measured in this run, by (document, name): stands before the shipped files.
_FRESH: dict[tuple[str, str], Any] = {}


def measured(number: str, name: str) -> Any:
    """A measurement's value: of this run if it was made, else as shipped.

    The file ``measured/<name>.json`` holds ``environment`` and ``value``. Raises
    :class:`CannotRunError` where there is neither.
    """
    if (number, name) in _FRESH:
        return _FRESH[number, name]
    path = document(number).path / "measured" / f"{name}.json"
    if not path.is_file():
        raise CannotRunError(
            f"{number}: '{name}' was never measured; type: attnprof reproduce {number} --measure"
        )
    return json.loads(path.read_text(encoding="utf-8"))["value"]


@contextmanager
def fresh(number: str, tell: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Make every measurement of a document now; inside, :func:`measured` gives these.

    ``tell`` hears the name of each before it starts. Gives the values by name.
    """
    made: dict[str, Any] = {}
    for name, measure in (document(number).part("measurements", "MEASUREMENTS") or {}).items():
        tell(f"measuring {number}: {name}")
        made[name] = _FRESH[number, name] = json.loads(json.dumps(measure()))
    try:
        yield made
    finally:
        for name in made:
            del _FRESH[number, name]


def ship(number: str, values: Mapping[str, Any], environment: Mapping[str, Any]) -> list[str]:
    """Write measurements over the shipped ones, each with where it was made; gives the paths."""
    folder = document(number).path / "measured"
    folder.mkdir(exist_ok=True)
    written = []
    for name, value in values.items():
        whole = {"environment": environment, "value": value}
        path = folder / f"{name}.json"
        write_whole(path, json.dumps(whole, indent=1, allow_nan=False) + "\n")
        written.append(str(path))
    return written
