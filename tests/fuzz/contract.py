"""What holds for every command line, however strange: run one in this process and look."""

import io
import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from attnprof.cli.app import main

#: Seconds after which a command hangs.
HANGS = 90
CODES = {0, 1, 2, 3}
_NOT_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x9b]")
_COUNTS = re.compile(r"(flops|bytes|entries|parameters|seq_len|multiplications|median_s|calls)")


class Hang(BaseException):
    """A command that took too long."""


@dataclass
class Ended:
    code: Any
    out: str
    err: str


@contextmanager
def hanging_after(seconds: float) -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run(words: list[str]) -> Ended:
    """The command line in this process, with streams that are no terminal."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors="replace") for _ in range(2))
    code: Any = None
    with redirect_stdout(out), redirect_stderr(err), hanging_after(HANGS):
        try:
            main(words)
        except SystemExit as ended:
            code = ended.code or 0
    return Ended(code, _text(out), _text(err))


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode("utf-8", errors="replace")


def hold(ended: Ended, words: list[str]) -> None:
    """Assert what every command promises."""
    context = f"{words}\n{ended.err[-2000:]}"
    assert ended.code in CODES, (ended.code, context)
    assert "Traceback (most recent" not in ended.out + ended.err, context
    assert "bug in attnprof" not in ended.err, context
    assert not _NOT_TEXT.search(ended.out + ended.err), context
    if ended.code >= 2:
        last = ended.err.rstrip("\n").splitlines()[-1] if ended.err.strip() else ""
        assert "attnprof: " in ended.err or "Usage:" in ended.out + ended.err, context
        assert last.strip(), context
        given = last.split()[-1] in words  # a file of that name
        assert given or not last.rstrip().endswith((":", ";", ",")), context
    if ended.code in (0, 1) and _asks_json(words) and ended.out.strip():
        _hold_json(json.loads(ended.out, parse_constant=_refused), context)


def _asks_json(words: list[str]) -> bool:
    asked = [b for a, b in pairwise(words) if a in ("--format", "-f")]
    return bool(asked) and asked[-1] == "json"


def _refused(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def _hold_json(value: Any, context: str, key: str = "") -> None:
    """No count in it is negative."""
    if isinstance(value, dict):
        for name, item in value.items():
            _hold_json(item, context, name)
    elif isinstance(value, list):
        for item in value:
            _hold_json(item, context, key)
    elif isinstance(value, int | float) and _COUNTS.search(key):
        assert value >= 0, (key, value, context)
