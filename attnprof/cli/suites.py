"""The cases of ``baseline`` and ``check``: from a TOML file, from flags, or the built-in suite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Option

from attnprof.cli.measurement import Points, grid_of, tables_of
from attnprof.errors import RequestError

if TYPE_CHECKING:
    from attnprof.gate.cases import Case

EXAMPLE = 'case = [{attention = "my.py:MyAttention", seq = 512, phase = ["forward", "train"]}]'
#: Keys of a case besides those of a grid.
OPTIONS = ("rule", "time", "formula", "compile")


@dataclass(frozen=True, kw_only=True)
class Suite(Points):
    """Which cases, and what is asked of each."""

    suite: Path | None = Option(
        None, metavar="FILE", show_default=False,
        help=r"TOML with \[\[case]] tables; without it the built-in suite.",
    )  # fmt: skip
    time: bool = Option(
        True, "--time/--no-time", help="Measure times, too, or count only what is exact."
    )
    formula: bool = Option(
        True, "--formula/--no-formula", help="Derive closed forms, too, where a case wants it."
    )
    limit: float | None = Option(
        None, metavar="SECONDS", show_default=False,
        help="After these a process that counts or times one case is ended (default 300).",
    )  # fmt: skip

    def is_asked(self) -> bool:
        """Whether cases are named at all."""
        return self.suite is not None or bool(self.flags())

    def cases(self) -> list[Case]:
        """The cases of the file, of the flags, or of the built-in suite."""
        flags = self.flags()
        if self.suite is not None:
            if flags:
                raise RequestError(
                    f"--suite {self.suite} says which cases; leave out {', '.join(flags)}"
                )
            return suite_from_file(self.suite, self.limit)
        if not flags:
            import attnprof.gate

            return suite_from_file(Path(attnprof.gate.__file__).with_name("suite.toml"))
        self.need("without --suite, this command", "too")
        return _cases(self.grid(), self.limit)


def suite_from_file(path: Path, limit_s: float | None = None) -> list[Case]:
    """The cases of the ``[[case]]`` tables: every combination of a table's lists.

    ``rule``, ``time``, ``formula`` and ``compile`` belong to all cases of a table. Raises
    :class:`RequestError`, naming the place.
    """
    found: list[Case] = []
    for table, where in tables_of(path, "case", EXAMPLE):
        found += _cases(grid_of(table, where, OPTIONS), limit_s, **_options(table, where))
    return found


def _options(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    from attnprof.gate.rules import rule_named

    for key in ("time", "formula", "compile"):
        if not isinstance(table.get(key, True), bool):
            raise RequestError(f"{where}: {key} = {table[key]!r}: write true or false")
    rule = str(table.get("rule", "default"))
    try:
        rule_named(rule)
    except RequestError as error:
        raise RequestError(f"{where}: {error}") from error
    return {
        "rule": rule, "timed": table.get("time", True), "formulas": table.get("formula", True),
        "compiled": table.get("compile", False),
    }  # fmt: skip


def _cases(
    grid: Any, limit_s: float | None, *, compiled: bool = False, **options: Any
) -> list[Case]:
    from attnprof.gate.cases import Case
    from attnprof.measure.request import Budget
    from attnprof.measure.sweep.plan import points_of

    points = points_of([grid], Budget(), threads=1, check=False, compiled=compiled,
                       limit_s=limit_s)  # fmt: skip
    return [Case(point, **options) for point in points]
