"""The console entry point (:func:`main`): repair the standard streams, run a command, exit.

A failure becomes a message and an exit code (:func:`failure`), never a traceback. Typer and rich
take most of the start-up time, so they are imported only when the program is built.
"""

import atexit
import contextlib
import errno
import gc
import os
import re
import sys
from collections.abc import Callable
from io import TextIOWrapper
from typing import Any

from attnprof.errors import AttnprofError, CannotRunError, RequestError
from attnprof.processes import SELDOM, with_room_for_calls

#: Required packages that only some commands import: without one the installation is broken.
NEEDED = (
    "torch", "sympy", "numpy", "matplotlib", "pandas", "fvcore", "psutil", "jinja2", "junitparser",
    "ruptures", "safetensors",
)  # fmt: skip
BUG = 70
INTERRUPTED = 130
#: Error numbers of a stream or disk that takes no more.
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
#: Messages of torch and other libraries for lack of memory, where Python has MemoryError.
_OUT_OF_MEMORY = re.compile(
    r"can't allocate memory|out of memory|bad_alloc|[Cc]annot allocate memory|"
    r"can't start new thread|failed to map segment"
)
#: Least and most columns of a terminal for which tables and help are laid out.
LEAST_COLUMNS, MOST_COLUMNS = 20, 1000
#: Environment variables with a number of columns or lines, read by the shell, rich or Typer.
_SIZES = ("COLUMNS", "LINES", "TERMINAL_WIDTH")


@with_room_for_calls
def main(args: list[str] | None = None) -> None:
    """Run the command line; always ends with SystemExit.

    Without ``args``, as a program, a command that runs a user's code does so in a process of its
    own: if that crashes, this one still reports it.
    """
    is_main = args is None
    usable_streams(started=is_main)
    usable_widths()
    if is_main:
        gc.set_threshold(SELDOM)
        atexit.register(gc.freeze)  # no last garbage collection: the system frees all memory anyway
    arguments = sys.argv[1:] if args is None else args
    debug = "--debug" in arguments

    def guarded(work: Callable[[], Any]) -> int:
        return exit_code(work, debug)

    def run_command() -> Any:
        from attnprof.cli.program import run

        return run([one for one in arguments if one != "--debug"], guarded, is_main=is_main)

    raise SystemExit(guarded(run_command))  # sys.exit may be replaced


def exit_code(work: Callable[[], Any], debug: bool) -> int:
    """Return the exit code of ``work()``; a failure is a message on stderr, or a traceback."""
    try:
        result = work()
        sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001 - the last resort: one line, never a traceback
        from typer import Exit

        if isinstance(error, Exit):
            return int(error.exit_code)
        # help on a closed pipe raises inside Typer
        cause = error.__context__ if isinstance(error, SystemExit) else error
        if isinstance(cause, BrokenPipeError):
            from attnprof.processes.supervision import give_up_answers

            give_up_answers()  # the reader of the pipe (head, less) has closed it
            return 0
        from attnprof.record.escapes import visible

        message, code = failure(error, debug)
        with contextlib.suppress(OSError):  # stderr itself may be closed
            sys.stderr.write(visible(f"attnprof: {message}") + "\n")
        return code
    return result if isinstance(result, int) else 0


def failure(error: BaseException, debug: bool) -> tuple[str, int]:
    """Return the message and the exit code of an exception: a refusal, an interruption or a bug."""
    from typer import Abort

    if isinstance(error, AttnprofError):
        return str(error), error.exit_code
    ending: BaseException | None = None if isinstance(error, Exception) else error
    if isinstance(error, (KeyboardInterrupt, Abort)):
        ending = error.__cause__ if isinstance(error, Abort) else error
        code = getattr(ending, "exit_code", None)
        supervision = sys.modules.get("attnprof.processes.supervision")
        if code is not None or ending is None or not supervision or not supervision.is_supervised():
            message = "interrupted" if code in (None, INTERRUPTED) else f"ended by {ending}"
            return message, code or INTERRUPTED
    if ending is not None:
        from attnprof.user_code import error_text

        message = f"the code it ran raised {error_text(ending)}, which ends a program"
        return f"{message}: there is no result", CannotRunError.exit_code
    if debug:
        import traceback

        from attnprof.record.escapes import visible

        sys.stderr.write(visible(traceback.format_exc(), lines=True))
    if refused := _refusal(error):
        return refused
    first_line = str(error).split("\n", 1)[0] or "no message"
    hint = "this is a bug in attnprof; run with --debug for the traceback"
    return f"{type(error).__name__}: {first_line} ({hint})", BUG


def _refusal(error: BaseException) -> tuple[str, int] | None:
    """Return message and exit code if Python, the system or a library refused; None for a bug."""
    if isinstance(error, RecursionError) and str(error):  # Python's message says how deep
        message = f"what was asked is nested too deeply ({error}): write it flatter"
        return message, RequestError.exit_code
    if _is_short_of_memory(error):
        return (
            "out of memory here: ask for smaller sizes, or leave more memory to it (ulimit -v, "
            "a container's limit)"
        ), CannotRunError.exit_code
    if isinstance(error, OSError) and error.errno in _UNWRITABLE:
        where = error.filename or "the answer"
        return f"cannot write {where}: {error.strerror}; give --output FILE", RequestError.exit_code
    if isinstance(error, OSError) and error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        name = f"{str(error.filename)[:60]}…"
        return f"cannot use {name}: {error.strerror}", RequestError.exit_code
    missing = (getattr(error, "name", None) or "").split(".")[0]
    if isinstance(error, ModuleNotFoundError) and missing in NEEDED:
        needs = f"this command needs {missing}, which is not installed here: pip install {missing}"
        return f"{needs} (see: attnprof doctor)", CannotRunError.exit_code
    return None


def _is_short_of_memory(error: BaseException) -> bool:
    """Return whether an exception, or a cause of it, means lack of memory."""
    cause: BaseException | None = error
    for _ in range(10):
        if cause is None:
            return False
        if isinstance(cause, MemoryError) or getattr(cause, "errno", None) == errno.ENOMEM:
            return True
        if isinstance(cause, SystemError) and _memory_is_limited():
            return True  # C code ran out of memory and raised SystemError instead
        if isinstance(cause, (RuntimeError, ImportError)) and _OUT_OF_MEMORY.search(str(cause)):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _memory_is_limited() -> bool:
    """Return whether this process may use less memory than the machine has (``ulimit -v``)."""
    try:
        import resource
    except ImportError:  # not on this system
        return False
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def usable_streams(*, started: bool) -> None:
    """Replace closed standard streams by os.devnull; write ? for characters that cannot be encoded.

    With ``started``, closed descriptors 0 to 2 are opened as well: the next file to be opened would
    get such a number, and everything that is printed.
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
        if isinstance(stream, TextIOWrapper):  # an ASCII terminal shows ? for other characters
            stream.reconfigure(errors="replace")


def usable_widths() -> None:
    """Clip the environment's column counts to the widths that can be drawn, or drop them."""
    for name in _SIZES:
        text = os.environ.get(name, "")
        if not (text.isascii() and text.isdigit() and text.strip("0")):
            os.environ.pop(name, None)
        else:
            columns = int(text) if len(text) < 9 else MOST_COLUMNS
            os.environ[name] = str(min(max(columns, LEAST_COLUMNS), MOST_COLUMNS))
