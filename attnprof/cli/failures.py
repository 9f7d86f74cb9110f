"""Turn an exception that ends a command into its message and exit code."""

import errno
import re
import sys

import typer

from attnprof.errors import AttnprofError, CannotRunError, RequestError
from attnprof.record.escapes import visible

#: Requirements that only some commands import.
NEEDED = (
    "torch", "sympy", "numpy", "matplotlib", "pandas", "fvcore", "psutil", "jinja2", "junitparser",
    "ruptures", "safetensors",
)  # fmt: skip
BUG = 70
INTERRUPTED = 130
#: Error numbers of a stream or disk that takes no more.
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
#: Messages of torch and libraries for lack of memory, where Python has MemoryError.
_SHORT = re.compile(
    r"can't allocate memory|out of memory|bad_alloc|[Cc]annot allocate memory|"
    r"can't start new thread|failed to map segment"
)


def failure(error: BaseException, debug: bool) -> tuple[str, int]:
    """Return the message and the exit code of an exception: a refusal, an end, or a bug."""
    if isinstance(error, AttnprofError):
        return str(error), error.exit_code
    ends: BaseException | None = None if isinstance(error, Exception) else error
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        ends = error.__cause__ if isinstance(error, typer.Abort) else error
        code = getattr(ends, "exit_code", None)
        supervision = sys.modules.get("attnprof.processes.supervision")
        if code is not None or ends is None or not supervision or not supervision.is_supervised():
            said = "interrupted" if code in (None, INTERRUPTED) else f"ended by {ends}"
            return said, code or INTERRUPTED
    if ends is not None:
        from attnprof.user_code import error_text

        told = f"the code it ran raised {error_text(ends)}, which ends a program"
        return f"{told}: there is no result", CannotRunError.exit_code
    if debug:
        import traceback

        sys.stderr.write(visible(traceback.format_exc(), lines=True))
    if refused := _refusal(error):
        return refused
    first_line = str(error).split("\n", 1)[0] or "no message"
    hint = "this is a bug in attnprof; run with --debug for the traceback"
    return f"{type(error).__name__}: {first_line} ({hint})", BUG


def _refusal(error: BaseException) -> tuple[str, int] | None:
    """Return message and code if Python, the system or a library refused; else None."""
    if isinstance(error, RecursionError) and str(error):  # Python's own says how deep
        told = f"what was asked is nested too deeply ({error}): write it flatter"
        return told, RequestError.exit_code
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
    """Return whether an exception, or one that caused it, means lack of memory."""
    seen: BaseException | None = error
    for _ in range(10):
        if seen is None:
            return False
        if isinstance(seen, MemoryError) or getattr(seen, "errno", None) == errno.ENOMEM:
            return True
        if isinstance(seen, SystemError) and _memory_is_limited():
            return True  # C code that met it and did not say so
        if isinstance(seen, (RuntimeError, ImportError)) and _SHORT.search(str(seen)):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _memory_is_limited() -> bool:
    """Return whether this process may have less memory than there is (``ulimit -v``)."""
    try:
        import resource
    except ImportError:  # not on this system
        return False
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
