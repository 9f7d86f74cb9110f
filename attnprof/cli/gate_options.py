"""Options that ``baseline`` and ``check`` share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from attnprof.errors import RequestError
from attnprof.record.escaping import visible

if TYPE_CHECKING:
    from attnprof.gate.cases import Case

#: Hears what is in work.
Tell = Callable[[str], None]

SuiteOption = Annotated[
    Path | None,
    Option(
        "--suite", metavar="FILE",
        help="TOML with [[case]] tables; without it the built-in suite.", show_default=False,
    ),
]  # fmt: skip
TimeOption = Annotated[
    bool, Option("--time/--no-time", help="Measure times, too, or count only what is exact.")
]
FormulaOption = Annotated[
    bool, Option("--formula/--no-formula", help="Derive closed forms, too, where a case wants it.")
]
LimitOption = Annotated[
    float | None,
    Option(
        "--limit", metavar="SECONDS", show_default=False,
        help="After these a process that counts or times one case is ended (default 300).",
    ),
]  # fmt: skip


def cases_of(
    suite: Path | None, texts: dict[str, str | None], lists: Sequence[Sequence[str]],
    limit_s: float | None = None,
) -> list[Case]:  # fmt: skip
    """The cases of a suite file, of flags, or of the built-in suite."""
    from attnprof.cli.suites import built_in_suite, suite_from_file, suite_from_flags

    given = [f"--{key.replace('_', '-')}" for key, text in texts.items() if text is not None]
    if suite is not None:
        if given:
            raise RequestError(f"--suite {suite} says which cases; leave out {', '.join(given)}")
        return suite_from_file(suite, limit_s)
    if not given:
        return built_in_suite()
    for key in ("attention", "seq"):
        if texts.get(key) is None:
            raise RequestError(f"without --suite, give --{key}, too")
    return suite_from_flags(texts, lists, limit_s)


@contextmanager
def told(text: str) -> Iterator[Tell]:
    """A line on stderr that says what is in work, if that is a terminal."""
    import sys

    if not sys.stderr.isatty():
        yield lambda _text: None
        return
    from attnprof.render.terminal import new_console

    with new_console(stderr=True).status(visible(text)) as status:
        yield lambda said: status.update(visible(said))
