"""Repair the streams and the terminal width that the program was started with."""

import os
import sys
from io import TextIOWrapper

#: Columns that a table or a page of help needs, and the most that a line can be filled up to.
LEAST_COLUMNS, MOST_COLUMNS = 20, 1000
#: Settings that are numbers of columns or lines, of the shell, of rich and of Typer.
_SIZES = ("COLUMNS", "LINES", "TERMINAL_WIDTH")


def usable_streams(*, started: bool) -> None:
    """Open closed streams to nowhere, and let each write ? for letters it cannot encode.

    If the program was just ``started``, descriptors 0 to 2 are taken, too: otherwise the next file
    that is opened gets one of them, and everything that is printed.
    """
    for number in range(3) if started else ():
        try:
            os.fstat(number)
        except OSError:
            handle = os.open(os.devnull, os.O_RDWR)
            if handle != number:
                os.dup2(handle, number)
                os.close(handle)
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            stream = open(number if started else os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - it stays open
            setattr(sys, name, stream)
        if isinstance(stream, TextIOWrapper):  # an ASCII terminal shows ? for what it lacks
            stream.reconfigure(errors="replace")


def usable_widths() -> None:
    """Clip the environment's column counts to what can be drawn, or drop them."""
    for name in _SIZES:
        text = os.environ.get(name, "")
        if not (text.isascii() and text.isdigit() and text.strip("0")):
            os.environ.pop(name, None)
        else:
            columns = int(text) if len(text) < 9 else MOST_COLUMNS
            os.environ[name] = str(min(max(columns, LEAST_COLUMNS), MOST_COLUMNS))
