"""Where results go: data to stdout or a file, notes to stderr."""

from __future__ import annotations

import errno
import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attnprof
from attnprof.errors import RequestError
from attnprof.record import ColumnarRecords, Report, write_whole
from attnprof.record.destinations import check_unlost, claimed, is_stream
from attnprof.record.escaping import readable, visible
from attnprof.record.reading import kind_of_file, why_of

if TYPE_CHECKING:
    from rich.console import RenderableType

Tables = Callable[[Report], "Sequence[RenderableType]"]


def note(text: str) -> None:
    """A line for the reader, on stderr."""
    sys.stderr.write(visible(text) + "\n")


def environment(**more: Any) -> dict[str, Any]:
    """What every report says of where it was made; callers add what they loaded."""
    base = {
        "attnprof": attnprof.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    return {**base, **more}


def ensure_writable(
    path: Path | None, *, force: bool = False, flag: str = "--output", extended: bool = False
) -> None:
    """Refuse an output that cannot or must not be written, before the work is done.

    What is there is overwritten only where attnprof wrote it, or with ``force``; what this command
    reads never; what is ``extended`` is added to and may be there. Raises :class:`RequestError`
    naming what is wrong.
    """
    if path is None:
        return
    try:
        why = _unwritable(path)
    except (OSError, ValueError) as error:
        why = why_of(error)
    if why:
        raise RequestError(
            f"cannot write {flag} {path}: {why}; give a path in a folder that exists "
            "and can be written"
        )
    claimed(path, flag, force=force, extended=extended)


def _unwritable(path: Path) -> str:
    """Why a path cannot be written; empty where it can."""
    parent = (Path(os.path.realpath(path)) if path.is_symlink() else path).parent
    try:
        kind = kind_of_file(path.stat().st_mode)
    except FileNotFoundError:
        if not parent.is_dir():
            return f"there is no folder {parent}"
    else:
        if is_stream(path):
            return "" if os.access(path, os.W_OK) else f"{kind} that takes nothing"
        if kind:
            return f"it is {kind}"
        if not os.access(path, os.W_OK):
            return "the file is write-protected"
    return "" if os.access(parent, os.W_OK) else f"the folder {parent} cannot be written"


def deliver(
    report: Report,
    fmt: str,
    output: Path | None,
    table: Tables,
    page: Callable[[Report], str] | None = None,
) -> None:
    """Write a report in the format asked for, to stdout or to a file.

    ``table`` makes the renderables of the ``table`` format, ``page`` the Markdown where that is
    more than the records. Raises :class:`RequestError` for an unwritable file.
    """
    if fmt in ("table", "markdown") and not isinstance(report.records, ColumnarRecords):
        report = readable(report)
    if fmt == "table":
        from attnprof.render import terminal

        if output is None:
            terminal.print_tables(table(report))
            return
        text = terminal.render_text(table(report))
    elif fmt == "markdown" and page is not None:
        text = page(report)
    else:
        text = as_text(report, fmt)
    if output is None:
        sys.stdout.write(text)
        return
    write_whole(output, text)
    note(f"wrote {output}")


def append(path: Path, text: str) -> None:
    """Add to a step's summary, which other programs write to as well; a failure is a note."""
    try:
        kind = kind_of_file(path.stat().st_mode) if path.exists() else ""
        if kind:
            raise OSError(errno.EINVAL, f"it is {kind}")  # noqa: TRY301 - told like the others
        check_unlost(path, only_inputs=True)
        with path.open("a", encoding="utf-8", errors="replace") as stream:
            stream.write(text)
    except (OSError, ValueError) as error:
        note(f"cannot write the step summary {path}: {why_of(error)}")
    except RequestError as error:
        note(str(error))


def as_text(report: Report, fmt: str) -> str:
    """A report as JSON, CSV or Markdown text."""
    if fmt == "csv":
        from attnprof.render.csv import render_csv

        return render_csv(report)
    if fmt == "markdown":
        from attnprof.render.markdown import render_markdown

        return render_markdown(report)
    return report.to_json()
