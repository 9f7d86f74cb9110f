"""Suites of cases for ``baseline`` and ``check``: from a TOML file, from flags, or the built-in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnprof.cli.grid import grid_from_flags, grid_of, tables_of
from attnprof.errors import RequestError

if TYPE_CHECKING:
    from attnprof.gate.cases import Case

EXAMPLE = 'case = [{attention = "my.py:MyAttention", seq = 512, phase = ["forward", "train"]}]'
#: Keys of a case besides those of a grid.
OPTIONS = ("rule", "time", "formula", "compile")


def suite_from_file(path: Path, limit_s: float | None = None) -> list[Case]:
    """The cases of the ``[[case]]`` tables: every combination of a table's lists.

    ``rule``, ``time``, ``formula`` and ``compile`` belong to all cases of a table. Raises
    :class:`RequestError`, naming the place.
    """
    found = []
    for table, where in tables_of(path, "case", EXAMPLE):
        found += _cases([grid_of(table, where, OPTIONS)], _options(table, where), limit_s)
    return found


def built_in_suite() -> list[Case]:
    """Every mechanism of this package."""
    import attnprof.gate

    return suite_from_file(Path(attnprof.gate.__file__).with_name("suite.toml"))


def suite_from_flags(
    texts: Mapping[str, str | None], lists: Sequence[Sequence[str]], limit_s: float | None = None
) -> list[Case]:
    """Cases typed on the command line."""
    return _cases([grid_from_flags(texts, "no", *lists)], {}, limit_s)


def _options(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    from attnprof.gate.paired import rule_named

    for key in ("time", "formula", "compile"):
        if not isinstance(table.get(key, True), bool):
            raise RequestError(f"{where}: {key} = {table[key]!r}: write true or false")
    rule = table.get("rule", "default")
    try:
        rule_named(str(rule))
    except RequestError as error:
        raise RequestError(f"{where}: {error}") from error
    return {
        "rule": str(rule), "timed": table.get("time", True),
        "formulas": table.get("formula", True), "compiled": table.get("compile", False),
    }  # fmt: skip


def _cases(grids: Sequence[Any], options: Mapping[str, Any], limit_s: float | None) -> list[Case]:
    from attnprof.gate.cases import Case
    from attnprof.measure.request import Budget
    from attnprof.measure.sweep.plan import points_of

    rest = dict(options)
    compiled = rest.pop("compiled", False)
    points = points_of(grids, Budget(), threads=1, check=False, compiled=compiled,
                       limit_s=limit_s)  # fmt: skip
    return [Case(point, **rest) for point in points]
