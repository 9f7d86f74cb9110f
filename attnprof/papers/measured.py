"""Measurements that checks and figures rest on: shipped as files, made again with ``--measure``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from attnprof.errors import CannotRunError
from attnprof.papers.documents import document
from attnprof.record import write_whole


@dataclass
class _Anew:
    """A document that is measured in this run: what was measured so far, and who hears of it."""

    tell: Callable[[str], None]
    made: dict[str, Any] = field(default_factory=dict)


_ANEW: dict[str, _Anew] = {}


def measured(number: str, name: str) -> Any:
    """A measurement's value: as shipped, or of this run inside :func:`fresh`.

    The file ``measured/<name>.json`` holds ``environment`` and ``value``. Raises
    :class:`CannotRunError` where it is not there.
    """
    measure = _measurements(number).get(name) if number in _ANEW else None
    if measure is not None:
        return _measured_now(_ANEW[number], f"{number}: {name}", name, measure)
    path = document(number).path / "measured" / f"{name}.json"
    if not path.is_file():
        raise CannotRunError(
            f"{number}: '{name}' was never measured; type: attnprof reproduce {number} --measure"
        )
    return json.loads(path.read_text(encoding="utf-8"))["value"]


def _measured_now(anew: _Anew, title: str, name: str, measure: Callable[[], Any]) -> Any:
    if name not in anew.made:
        anew.tell(f"measuring {title}")
        anew.made[name] = json.loads(json.dumps(measure()))
    return anew.made[name]


def _measurements(number: str) -> Mapping[str, Callable[[], Any]]:
    found: Mapping[str, Callable[[], Any]] = document(number).part("measurements", "MEASUREMENTS")
    return found or {}


@contextmanager
def fresh(number: str, tell: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Inside, each measurement of a document is made once, when :func:`measured` is asked for it.

    ``tell`` hears its name before it starts. Gives the values by name, as they are made.
    """
    _ANEW[number] = _Anew(tell)
    try:
        yield _ANEW[number].made
    finally:
        del _ANEW[number]


def ship(number: str, values: Mapping[str, Any], environment: Mapping[str, Any]) -> list[str]:
    """Write measurements over the shipped ones, each with where it was made; gives the paths."""
    folder = document(number).path / "measured"
    folder.mkdir(exist_ok=True)
    written = []
    for name, value in values.items():
        whole = {"environment": environment, "value": value}
        path = folder / f"{name}.json"
        write_whole(path, json.dumps(whole, indent=1, allow_nan=False) + "\n", known=True)
        written.append(str(path))
    return written
