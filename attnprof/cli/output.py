"""Where results go: data to stdout or a file, notes to stderr."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attnprof
from attnprof.errors import RequestError
from attnprof.record import Report, write_whole

if TYPE_CHECKING:
    from rich.console import RenderableType

Tables = Callable[[Report], "Sequence[RenderableType]"]


def note(text: str) -> None:
    """A line for the reader, on stderr."""
    sys.stderr.write(text + "\n")


def environment(**more: Any) -> dict[str, Any]:
    """What every report says of where it was made; callers add what they loaded."""
    base = {
        "attnprof": attnprof.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    return {**base, **more}


def ensure_writable(path: Path | None) -> None:
    """Refuse an output path that cannot be written, before the work is done.

    Raises :class:`RequestError` naming what is wrong.
    """
    if path is None:
        return
    why = None
    if path.is_dir():
        why = "it is a folder"
    elif not path.parent.is_dir():
        why = f"there is no folder {path.parent}"
    elif not os.access(path.parent, os.W_OK):
        why = f"the folder {path.parent} cannot be written"
    elif path.exists() and not os.access(path, os.W_OK):
        why = "the file is write-protected"
    if why:
        raise RequestError(
            f"cannot write --output {path}: {why}; give a path in a folder that exists "
            "and can be written"
        )


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


def as_text(report: Report, fmt: str) -> str:
    """A report as JSON, CSV or Markdown text."""
    if fmt == "csv":
        from attnprof.render.csv import render_csv

        return render_csv(report)
    if fmt == "markdown":
        from attnprof.render.markdown import render_markdown

        return render_markdown(report)
    return report.to_json()
