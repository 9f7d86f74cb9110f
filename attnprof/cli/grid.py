"""Grids of a sweep: from flags, or from a TOML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnprof.cli.settings import parse_set
from attnprof.cli.sizes import MOST, parse_names, parse_sizes
from attnprof.errors import RequestError, closest
from attnprof.record.destinations import take_modules
from attnprof.record.reading import read_toml
from attnprof.record.schema import shown

if TYPE_CHECKING:
    from attnprof.measure.sweep.plan import Grid

#: Keys of a grid in a file: sizes, names, and yes or no.
SIZES = {"seq": "seq_len", "d_model": "d_model", "heads": "num_heads", "batch": "batch_size"}
NAMES = {"attention": "attention", "dtype": "dtype", "phase": "phase", "device": "device",
         "scope": "scope"}  # fmt: skip
_EXAMPLE = 'grid = [{attention = ["standard", "linear"], seq = "128:4096:x2"}]'


def grid_from_flags(
    texts: Mapping[str, str | None],
    causal: str,
    settings: Sequence[str],
    args: Sequence[str] = (),
    inputs: Sequence[str] = (),
) -> Grid:
    """A grid from texts like ``128:4096:x2`` and ``standard,linear``; absent ones stay default.

    A ``--set`` value may be a list: ``window=64,128``.
    """
    from attnprof.measure.sweep.plan import Grid

    values: dict[str, Any] = {}
    for key, field in SIZES.items():
        if (text := texts.get(key)) is not None:
            values[field] = parse_sizes(text, f"--{key.replace('_', '-')}")
    for key, field in NAMES.items():
        if (text := texts.get(key)) is not None:
            values[field] = parse_names(text, f"--{key}")
    params = {name: value.split(",") for name, value in parse_set(settings).items()}
    grid = Grid(**values, causal=_flags(causal), params=params, args=args, inputs=inputs)
    return _bounded(grid, "the grid")


def _flags(text: str) -> list[bool]:
    known = {"no": [False], "yes": [True], "both": [False, True]}
    if text not in known:
        raise RequestError(f"--causal {text}: possible are no, yes and both")
    return known[text]


def grids_from_file(path: Path) -> list[Grid]:
    """The ``[[grid]]`` tables of a TOML file.

    Raises :class:`RequestError` for a missing file, wrong TOML, or an unknown key.
    """
    return [grid_of(table, where) for table, where in tables_of(path, "grid", _EXAMPLE)]


def tables_of(path: Path, name: str, example: str) -> list[tuple[Mapping[str, Any], str]]:
    """The ``[[name]]`` tables of a TOML file, each with the place to tell in a message.

    Raises :class:`RequestError` for a missing file, wrong TOML, or none of them.
    """
    tables = read_toml(path).get(name)
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        tables = []
    if not tables:
        raise RequestError(f"{path} has no {name}; write one like {example}")
    return [(table, f"{path}, {name} {number}") for number, table in enumerate(tables, 1)]


def grid_of(table: Mapping[str, Any], where: str, more: Sequence[str] = ()) -> Grid:
    """One table as a grid; keys in ``more`` are for the caller.

    Raises :class:`RequestError` for an unknown or a missing key.
    """
    from attnprof.measure.sweep.plan import Grid

    known = [*SIZES, *NAMES, "causal", "set", "arg", "input", *more]
    for key in table:
        if key not in known:
            raise RequestError(f"{where}: unknown key '{key}': {closest(key, known)}")
    for key in ("attention", "seq"):
        if key not in table:
            raise RequestError(f"{where} needs {key}; write a grid like {_EXAMPLE}")
    values: dict[str, Any] = {}
    for key, field in SIZES.items():
        if key in table:
            values[field] = parse_sizes(_joined(table[key], f"{where}: {key}"), f"{where}: {key}")
    for key, field in NAMES.items():
        if key in table:
            values[field] = parse_names(_joined(table[key], f"{where}: {key}"), f"{where}: {key}")
    causal = _listed(table.get("causal", False), f"{where}: causal", (bool,), "true or false")
    params = {
        name: [str(v) for v in _listed(value, f"{where}: set {name}")]
        for name, value in _object(table.get("set", {}), f"{where}: set").items()
    }
    args, inputs = (
        _listed(table.get(key, []), f"{where}: {key}", (str,), "texts") for key in ("arg", "input")
    )
    take_modules(values["attention"])
    return _bounded(Grid(**values, causal=causal, params=params, args=args, inputs=inputs), where)


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise RequestError(f"{where} = {shown(value)}: write names and values, like {{window=64}}")
    return value


_SCALARS = (str, int, float, bool)


def _listed(
    value: Any, where: str, kinds: tuple[type, ...] = _SCALARS, what: str = "texts or numbers"
) -> list[Any]:
    found = list(value) if isinstance(value, list) else [value]
    if not all(isinstance(item, kinds) for item in found):
        raise RequestError(f"{where} = {shown(value)}: write {what}, one or a list of them")
    return found


def _joined(value: Any, where: str) -> str:
    return ",".join(str(item) for item in _listed(value, where))


def _bounded(grid: Grid, where: str) -> Grid:
    """The grid; :class:`RequestError` for more points than anybody measures."""
    axes = (grid.attention, grid.seq_len, grid.d_model, grid.num_heads, grid.batch_size,
            grid.dtype, grid.phase, grid.device, grid.causal, grid.scope)  # fmt: skip
    count = prod(len(axis) for axis in (*axes, *grid.params.values()))
    if count > MOST:
        raise RequestError(f"{where}: {count:,} points, {MOST:,} are taken at most")
    return grid
