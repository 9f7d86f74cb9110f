"""Where results go: data to stdout or a file, notes to stderr."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import attnprof
from attnprof.cli.options import ForceOption, Format, FormatOption, OutputOption, PlotOption
from attnprof.errors import RequestError
from attnprof.record import Report, write_whole
from attnprof.record.escapes import visible
from attnprof.record.files import kind_of_file, why_of
from attnprof.record.recognition import check_unlost, claimed, is_stream


def note(text: str) -> None:
    """A line for the reader, on stderr."""
    sys.stderr.write(visible(text) + "\n")


def environment(**more: Any) -> dict[str, Any]:
    """What every report says of where it was made; callers add what they loaded."""
    return {
        "attnprof": attnprof.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        **more,
    }


def ensure_writable(
    path: Path | None, *, force: bool = False, flag: str = "--output", extended: bool = False
) -> None:
    """Refuse an output that cannot or must not be written, before the work is done.

    What is there is overwritten only where attnprof wrote it, or with ``force``; what this command
    reads never; what is ``extended`` is added to and may be there.
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


def ensure_figure(path: Path | None, *, force: bool) -> None:
    """Refuse a figure's path before the work is done; :class:`RequestError` says why."""
    if path is not None:
        from attnprof.render.plots.style import check_figure_path

        ensure_writable(path, force=force, flag="--plot")
        check_figure_path(path)


@dataclass(frozen=True, kw_only=True)
class Output:
    """How a result is written, and where; an output that must not be written is refused here."""

    fmt: FormatOption = Format.TABLE
    output: OutputOption = None
    force: ForceOption = False

    def __post_init__(self) -> None:
        ensure_writable(self.output, force=self.force)

    def deliver(self, report: Report, **how: Any) -> None:
        """Write the report; ``how`` is for its tables."""
        deliver(report, self.fmt, self.output, **how)


@dataclass(frozen=True, kw_only=True)
class DrawnOutput(Output):
    """The same with a figure beside it."""

    plot: PlotOption = None

    def __post_init__(self) -> None:
        super().__post_init__()
        ensure_figure(self.plot, force=self.force)

    def deliver(self, report: Report, **how: Any) -> None:
        """Draw the report, where that was asked for, and write it."""
        if self.plot is not None:
            from attnprof.render.plots import plot_report

            plot_report(report, self.plot)
            note(f"wrote {self.plot}")
        super().deliver(report, **how)


def answering() -> contextlib.AbstractContextManager[None]:
    """Inside, what is printed is the answer; elsewhere somebody's code may print, to stderr."""
    supervision = sys.modules.get("attnprof.processes.supervision")
    return supervision.answering() if supervision else contextlib.nullcontext()


def deliver(report: Report, fmt: str, output: Path | None, **how: Any) -> None:
    """Write a report in the format asked for, to stdout or to a file; ``how`` is for its tables."""
    from attnprof.render.formats import print_tables, render

    if fmt == Format.TABLE and output is None:
        with answering():
            print_tables(report, **how)
        return
    write(render(report, fmt, **how), output)


def write(text: str, output: Path | None) -> None:
    """Write to stdout, or to a file and say so."""
    if output is None:
        with answering():
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
