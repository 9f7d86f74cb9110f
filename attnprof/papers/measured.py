"""Measurements that checks and figures rest on: shipped as files, made again with ``--measure``."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from attnprof.errors import CannotRunError
from attnprof.papers.documents import document
from attnprof.record import write_whole

if TYPE_CHECKING:
    from attnprof.measure.request import Budget
    from attnprof.measure.statistics import MedianEstimate

Name = TypeVar("Name")

#: Documents that are measured in this run: who hears of it, and what was measured so far.
_ANEW: dict[str, tuple[Callable[[str], None], dict[str, Any]]] = {}


def measured(number: str, name: str) -> Any:
    """A measurement's value: as shipped, or of this run inside :func:`fresh`.

    The file ``measured/<name>.json`` holds ``environment`` and ``value``. Raises
    :class:`CannotRunError` where it is not there.
    """
    if number in _ANEW:
        measure = (document(number).part("measurements", "MEASUREMENTS") or {}).get(name)
        tell, made = _ANEW[number]
        if measure and name not in made:
            tell(f"measuring {number}: {name}")
            made[name] = json.loads(json.dumps(measure()))
        if measure:
            return made[name]
    path = document(number).path / "measured" / f"{name}.json"
    if not path.is_file():
        raise CannotRunError(
            f"{number}: '{name}' was never measured; type: attnprof reproduce {number} --measure"
        )
    return json.loads(path.read_text(encoding="utf-8"))["value"]


@contextmanager
def fresh(number: str, tell: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Inside, each measurement of a document is made once, when :func:`measured` is asked for it.

    ``tell`` hears its name before it starts. Gives the values by name, as they are made.
    """
    _ANEW[number] = tell, {}
    try:
        yield _ANEW[number][1]
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


def time_calls(
    calls: Mapping[Name, Callable[[], object]], budget: "Budget"
) -> "dict[Name, MedianEstimate]":
    """Time calls without gradients in turns, on one thread; estimates by their names."""
    import torch

    from attnprof.measure.clocks import time_in_turns
    from attnprof.measure.statistics import estimate_median
    from attnprof.measure.subject import Subject

    def nothing() -> None:
        """Calls leave nothing behind, and need nothing before them."""

    without = map(torch.no_grad(), calls.values())
    times = time_in_turns([Subject(None, nothing, nothing, call) for call in without], budget)
    return dict(zip(calls, map(estimate_median, times), strict=True))
