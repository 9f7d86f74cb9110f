"""Grids of a sweep: from flags, or from a TOML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnprof.cli.settings import parse_set
from attnprof.cli.sizes import parse_names, parse_sizes
from attnprof.errors import RequestError, closest

if TYPE_CHECKING:
    from attnprof.measure.sweep.plan import Grid

#: Keys of a grid in a file: sizes, names, and yes or no.
SIZES = {"seq": "seq_len", "d_model": "d_model", "heads": "num_heads", "batch": "batch_size"}
NAMES = {"attention": "attention", "dtype": "dtype", "phase": "phase", "device": "device",
         "scope": "scope"}  # fmt: skip
_EXAMPLE = '[[grid]]\nattention = ["standard", "linear"]\nseq = "128:4096:x2"'


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
    return Grid(**values, causal=_flags(causal), params=params, args=args, inputs=inputs)


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
    import tomllib

    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot read {path}: {error}") from error
    tables = data.get(name)
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        tables = []
    if not tables:
        raise RequestError(f"{path} has no {name}; write one like\n{example}")
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
            raise RequestError(f"{where} needs {key}; write a grid like\n{_EXAMPLE}")
    values: dict[str, Any] = {}
    for key, field in SIZES.items():
        if key in table:
            values[field] = parse_sizes(_joined(table[key]), f"{where}: {key}")
    for key, field in NAMES.items():
        if key in table:
            values[field] = parse_names(_joined(table[key]), f"{where}: {key}")
    causal = _listed(table.get("causal", False))
    params = {name: [str(v) for v in _listed(value)] for name, value in _set(table).items()}
    args, inputs = ([str(x) for x in _listed(table.get(key, []))] for key in ("arg", "input"))
    return Grid(**values, causal=causal, params=params, args=args, inputs=inputs)


def _set(table: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = table.get("set", {})
    return found


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]


def _joined(value: Any) -> str:
    return ",".join(str(item) for item in _listed(value))


def combinations(grid: Grid) -> int:
    """How many points a grid has, before doubles are dropped."""
    axes = (grid.attention, grid.seq_len, grid.d_model, grid.num_heads, grid.batch_size,
            grid.dtype, grid.phase, grid.device, grid.causal, grid.scope)  # fmt: skip
    count = len(list(product(*grid.params.values())))
    for axis in axes:
        count *= len(axis)
    return count
