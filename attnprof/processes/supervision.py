"""Run a whole command in a process that may die, and still end with an answer (:func:`supervised`).

User code can end, crash or stop the process it is run in, and its parent. So there are three
processes: the one that was started, whose exit code counts; a keeper, which runs none of the code;
and the command, which marks in shared memory that it finished. Without the mark the exit code is 3,
and a line says how it ended. Signals are passed on; in the end no process is left.
"""

import contextlib
import mmap
import os
import select
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NoReturn

from attnprof.errors import CannotRunError
from attnprof.processes import folders, forks
from attnprof.processes.forks import Ended

#: Signals that ask a command to end.
ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Seconds a command gets to end when asked to, or after it has given its answer.
GRACE_S = 5.0
#: Seconds between two checks for orphans of processes that died.
_LOOK_S = 0.5
_DONE = struct.Struct("=8si")
_MARK, _LOST = b"attnprof", b"outputs?"


class StoppedError(KeyboardInterrupt):
    """A signal asked this command to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


#: State of a supervised command: memory for its end mark, stream of answers, its output files.
_INSIDE: Any = SimpleNamespace(ending=None, answers=None, outputs=[])


def is_supervised() -> bool:
    """Return whether this process runs a command that another one supervises."""
    return _INSIDE.ending is not None


def supervised(work: Callable[[], int], subject: str) -> int:
    """Run the work in a process of its own and return its exit code; ``subject`` names it.

    Returns 3 if that process ended before it had an answer. The function returns in that fork, too,
    so call it before any thread is started. If a signal ends this process, it ends by the same
    signal, after the work.
    """
    folders.run_folder()
    ending = mmap.mmap(-1, _DONE.size)
    requests_in, asking = os.pipe()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    received: list[int] = []
    forks.adopt_orphans()
    with _listening(ASKING) as events:
        keeper = os.fork()
        if keeper:
            os.close(requests_in)
            status = _watch(keeper, asking, events, received)
            forks.end_descendants()
            folders.close_run()
    if keeper:
        return _outcome(status, received, subject)
    os.close(asking)
    keeper = _become_keeper(subject, ending, requests_in)
    os.close(requests_in)
    return _run_command(work, ending, keeper)


def _watch(keeper: int, asking: int, events: int, received: list[int]) -> int:
    """Pass on signals until the keeper is gone; return its status."""
    while True:
        select.select([events], [], [])
        for number in os.read(events, 64):
            if number != signal.SIGCHLD:
                received.append(number)
                with contextlib.suppress(OSError):
                    os.write(asking, bytes([number]))
        if (status := _status(keeper)) is not None:
            return status


def _status(child: int) -> int | None:
    """Return how a child ended; None while it lives. A child that was stopped is continued."""
    done, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
    if done and os.WIFSTOPPED(status):
        os.kill(child, signal.SIGCONT)
        return None
    return status if done else None


def _outcome(status: int, received: list[int], subject: str) -> int:
    """Return the exit code by the keeper's status; end by the signal that ended the command."""
    code = os.waitstatus_to_exitcode(status)
    if received and received[0] != signal.SIGINT:
        signal.signal(received[0], signal.SIG_DFL)
        os.kill(os.getpid(), received[0])
    if code >= 0:
        return code
    if received:
        return 128 + received[0]
    return _report_vanished(subject, f"had its keeper ended by {forks.signal_text(-code)}")


@contextlib.contextmanager
def _listening(numbers: tuple[int, ...]) -> Iterator[int]:
    """Yield a file that receives the numbers of these signals, and of a child's end."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    before = {}
    for number in (*numbers, signal.SIGCHLD):
        if number == signal.SIGCHLD or signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, lambda *_: None)
    wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    try:
        yield read
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(read)
        os.close(write)


def _become_keeper(subject: str, ending: mmap.mmap, requests_in: int) -> int:
    """Become the keeper until the command ends; the command returns, with the keeper's id."""
    os.setsid()
    forks.adopt_orphans()
    keeper = os.getpid()
    with _listening(()) as events:
        if child := os.fork():
            code = CannotRunError.exit_code
            try:
                forks.ignore_signals()
                requests: list[int] = []
                status = _wait_for_command(child, ending, requests_in, events, requests)
                forks.end_descendants()
                folders.remove(folders.run_folder())
                code = _exit_code(ending, status, subject, requests)
            except Exception as error:  # noqa: BLE001 - it may not end without a word
                _report_vanished(subject, f"lost its keeper to {type(error).__name__}: {error},")
            finally:
                forks.leave(code)
    return keeper


def _wait_for_command(
    child: int, ending: mmap.mmap, requests_in: int, events: int, requests: list[int]
) -> int | None:
    """Wait for the command and return its status; None if it did not end when it had to.

    A command has to end when a signal asked it to, or when it marked that it finished.
    """
    end = None
    files = [requests_in, events]
    while True:
        ready = select.select(files, [], [], _LOOK_S)[0]
        with contextlib.suppress(OSError):
            os.read(events, 64)
        if requests_in in ready:
            number = (os.read(requests_in, 1) or b"\0")[0]
            if not number:  # the process that was started is gone
                files.remove(requests_in)
            with contextlib.suppress(OSError):  # the command need not be asked twice
                os.kill(child, signal.SIGKILL if requests else number or signal.SIGTERM)
            requests.append(number or signal.SIGTERM)
        if (status := _status(child)) is not None:
            return status
        forks.end_descendants(keep=(child,))  # orphans, for which nobody waits
        if end is None and (requests or ending[:8] != bytes(8)):
            end = time.monotonic() + GRACE_S
        if end is not None and time.monotonic() > end:
            return None


def _exit_code(ending: mmap.mmap, status: int | None, subject: str, requests: list[int]) -> int:
    """Return the command's exit code; if it gave none, 3, after a line on how it ended."""
    mark, code = _DONE.unpack(ending[:])
    if mark == _MARK and (code < 128 or requests):
        return int(code)
    if requests:
        return 128 + requests[0]
    if mark == _MARK:
        return _report_vanished(subject, f"ended itself by {forks.signal_text(code - 128)}")
    if mark == _LOST:
        return _report_vanished(subject, "lost its output, which the code it ran has closed,")
    return _report_vanished(subject, Ended(os.waitstatus_to_exitcode(status or 0)).how)


def _report_vanished(subject: str, how: str) -> int:
    """Write how the command's process ended; return the exit code for no answer."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"attnprof: the process that ran {subject} {how} before it answered\n")
        sys.stderr.flush()
    return CannotRunError.exit_code


def _run_command(work: Callable[[], int], ending: mmap.mmap, keeper: int) -> int:
    """Do the work in the process made for it, mark that it finished, return its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    forks.die_with_parent(keeper)
    forks.die_first(500)
    _INSIDE.ending = ending
    if sys.stdout is not None:  # prints go to stderr, but for answers
        sys.stdout.flush()
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        _INSIDE.answers = open(os.dup(1), "w", encoding=encoding, errors="replace")  # noqa: PTH123, SIM115 - it stays open
        os.dup2(2, 1)
    keep_outputs()
    sys.unraisablehook = _resend_signal
    try:
        for number in ASKING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _stop)
        code = work()
        signal.pthread_sigmask(signal.SIG_BLOCK, ASKING)  # it is over; the keeper sees to the rest
    except StoppedError as stopped:  # before or after the work's own handling
        code = stopped.exit_code
    ending[:] = _DONE.pack(_MARK if _INSIDE.outputs == _outputs() else _LOST, code)
    return code


def _stop(number: int, _frame: object) -> NoReturn:
    for other in ASKING:  # once is enough
        signal.signal(other, signal.SIG_IGN)
    raise StoppedError(number)


def _resend_signal(lost: Any) -> None:
    """Send a signal again whose exception a destructor has swallowed."""
    if isinstance(lost.exc_value, StoppedError):
        number = lost.exc_value.exit_code - 128
        signal.signal(number, _stop)
        threading.Timer(0.01, os.kill, (os.getpid(), number)).start()
    else:
        sys.__unraisablehook__(lost)


@contextlib.contextmanager
def answering() -> Iterator[None]:
    """Print the body's output to the command's real stdout: it is the answer."""
    with contextlib.redirect_stdout(_INSIDE.answers or sys.stdout):
        yield
        sys.stdout.flush()


def give_up_answers() -> None:
    """Drop buffered output, once nobody reads it any more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), (_INSIDE.answers or sys.stdout).fileno())
    keep_outputs()


def keep_outputs() -> None:
    """Remember the open files of answers and stderr, to notice if code replaces them."""
    _INSIDE.outputs = _outputs()


def _outputs() -> list[tuple[int, int]]:
    """Return device and inode of the files for answers and stderr; -1 if one was closed."""
    identities = []
    for stream in (1 if _INSIDE.answers is None else _INSIDE.answers.fileno(), 2):
        try:
            state = os.fstat(stream)
            identities.append((state.st_dev, state.st_ino))
        except OSError:
            identities.append((-1, -1))
    return identities
