"""Read only files of the right kind, size and text; write a file whole or not at all."""

import csv
import errno
import json
import math
import os
import stat
import tempfile
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from attnprof.errors import RequestError, closest
from attnprof.record.recognition import check_unlost, is_stream, note_input

MIB = 1 << 20
#: Largest files that are read, in bytes: suites, grids, tables; saved reports; sweeps' results.
TEXT_LIMIT, REPORT_LIMIT, JOURNAL_LIMIT = MIB, 32 * MIB, 256 * MIB
#: Limits on files: nesting of JSON, digits of a number, rows of a table, parts of a TOML key.
DEPTH, DIGITS, ROWS, PARTS = 32, 100, 2000, 100
_KINDS = (
    (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"),
)  # fmt: skip


def kind_of_file(mode: int) -> str:
    """Return the words for a mode of ``stat`` that is no plain file's: ``a folder``; else ""."""
    return next((words for test, words in _KINDS if test(mode)), "")


def why_of(error: OSError | ValueError) -> str:
    """Return why a file could not be reached; ValueError is Python's for a NUL in a name."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "a name cannot hold a NUL character"


def make_folder(folder: Path, flag: str = "") -> None:
    """Make a folder to write in; :class:`RequestError` if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot make the folder {flag}{folder}: {why_of(error)}") from error


def read_bytes(path: str | Path, limit: int = REPORT_LIMIT, hint: str = "") -> bytes:
    """Return a plain file's bytes, ``limit`` at most, and note it as an input of the command.

    Any other file raises :class:`RequestError`, ending with ``hint``, before a byte is read of it.
    """
    try:
        _check_file(path, Path(path).stat(), limit, hint)
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(handle, "rb") as stream:
            _check_file(path, os.fstat(handle), limit, hint)
            data = stream.read(limit + 1)
    except (OSError, ValueError) as error:
        near = near_file(path) if isinstance(error, FileNotFoundError) else ""
        raise refusal(path, why_of(error), "; ".join(filter(None, (near, hint)))) from error
    if len(data) > limit:  # /proc has files that say they are empty
        raise refusal(path, _too_large(len(data), limit), hint)
    note_input(path)
    return data


def near_file(path: str | Path) -> str:
    """Return ``did you mean results.json?`` for a misspelt file; "" if no name is near it."""
    names = []
    with suppress(OSError):
        names = [item.name for item in Path(path).parent.iterdir()]
    near = closest(Path(path).name, names)
    return near if near.startswith("did you mean") else ""


def refusal(path: str | Path, why: str, hint: str = "") -> RequestError:
    """Return the error for a file that cannot be read."""
    return RequestError(f"cannot read {path}: {why}{f'; {hint}' if hint else ''}")


def _check_file(path: str | Path, status: os.stat_result, limit: int, hint: str) -> None:
    if kind := kind_of_file(status.st_mode):
        raise refusal(path, f"it is {kind}, not a file", hint)
    if status.st_size > limit:
        raise refusal(path, _too_large(status.st_size, limit), hint)


def _too_large(size: int, limit: int) -> str:
    return f"it has {size:,} bytes or more, {limit:,} are read at most"


def text_of(data: bytes) -> str:
    """Decode UTF-8, with or without byte order mark; ValueError for other text, and for NUL."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text (byte {error.start})") from error
    if "\0" in text:
        raise ValueError("it holds a NUL character")
    return text


def read_text(path: str | Path) -> str:
    """Return the text of a file, as :func:`read_bytes` and :func:`text_of` read it."""
    data = read_bytes(path)
    try:
        return text_of(data)
    except ValueError as error:
        raise refusal(path, str(error)) from error


def json_of(text: str, *, ours: bool = True) -> Any:
    """Return a JSON text's value; ValueError for invalid or too deeply nested text.

    A text of ``ours`` may not have NaN, Infinity, huge numbers or a name twice either, which
    attnprof never writes.
    """
    strict: dict[str, Any] = {
        "parse_constant": _parse_float, "parse_int": _parse_int, "parse_float": _parse_float,
        "object_pairs_hook": _parse_object,
    }  # fmt: skip
    try:
        value = json.loads(text, **(strict if ours else {}))
    except RecursionError as error:
        raise ValueError(_DEEP) from error
    level = [value]
    for _ in range(DEPTH):
        inner = (node.values() if type(node) is dict else node for node in level if node)
        level = [item for items in inner for item in items if type(item) in (dict, list)]
        if type(value) not in (dict, list) or not level:
            return value
    raise ValueError(_DEEP)


_DEEP = f"it is nested deeper than {DEPTH} levels"


def _parse_int(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"a number of {len(digits):,} digits")
    return int(digits)


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is not finite")
    if abs(value) > 10.0**DIGITS:
        raise ValueError(f"{text[:20]} is beyond 10**{DIGITS}")
    return value


def _parse_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    parsed = dict(pairs)
    if len(parsed) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"'{twice[:40]}' is there twice")
    return parsed


def read_json(
    path: str | Path, limit: int = REPORT_LIMIT, hint: str = "", *, ours: bool = True
) -> Any:
    """Return the value of a JSON file, read as :func:`json_of` does; else RequestError."""
    data = read_bytes(path, limit, hint)
    try:
        return json_of(text_of(data), ours=ours)
    except ValueError as error:
        raise RequestError(
            f"{path} is no whole JSON file ({error}){f'; {hint}' if hint else ''}"
        ) from error


def read_toml(path: str | Path) -> dict[str, Any]:
    """Return the tables of a TOML file; :class:`RequestError` for an invalid one."""
    import tomllib

    text = read_text(path)
    try:
        if any(key.count(".") > PARTS for line in text.splitlines() for key in line.split("=")):
            raise ValueError(f"a key of more than {PARTS} parts")  # noqa: TRY301 - said below
        return tomllib.loads(text)
    except RecursionError as error:
        raise refusal(path, _DEEP) from error
    except ValueError as error:
        raise refusal(path, str(error)) from error


def read_table(path: str | Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file, ``ROWS`` at most, by the names in its header."""
    text = read_text(path)
    try:
        reader = csv.DictReader(text.splitlines(keepends=True), restval="", strict=True)
        names = [name for name in reader.fieldnames or () if name]
        rows = list(islice(reader, ROWS + 1))
    except csv.Error as error:
        raise refusal(path, f"not readable as CSV: {error}") from error
    if len(set(names)) < len(names):
        raise refusal(path, "not readable as CSV: a name is twice in its first line")
    if len(rows) > ROWS:
        raise refusal(path, f"not readable as CSV: more than {ROWS} rows")
    return [{name: (row[name] or "").strip() for name in names} for row in rows]


#: Seconds to wait for a reader of a pipe.
PATIENCE_S = 5.0


def write_whole(path: str | Path, content: str | bytes, *, owned: bool = False) -> None:
    """Write a file so that it is whole or not there; :class:`RequestError` if it cannot be.

    Links are followed, modes kept; a device or pipe is written to, never replaced. Within a command
    only a file of attnprof is overwritten, unless ``owned`` says that the caller owns it.
    """
    data = content if isinstance(content, bytes) else content.encode(errors="replace")
    try:
        if is_stream(Path(path)):
            _write_stream(Path(path), data)
            return
        target = Path(os.path.realpath(path))
        if not owned:
            check_unlost(target)
        if target.exists() and (kind := kind_of_file(target.stat().st_mode)):
            raise OSError(errno.EINVAL, f"it is {kind}")  # noqa: TRY301 - told below
        _replace_file(target, data)
    except (OSError, ValueError) as error:
        raise RequestError(
            f"cannot write {path}: {why_of(error)}; give --output a path in a folder "
            "that exists and can be written"
        ) from error


def _write_stream(target: Path, data: bytes) -> None:
    """Write to a device or a pipe; a pipe without a reader is an error after ``PATIENCE_S``."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            handle = os.open(target, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
            break
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > until:
                raise
            time.sleep(0.05)
    os.set_blocking(handle, True)
    with os.fdopen(handle, "wb") as stream:
        stream.write(data)


def _replace_file(target: Path, data: bytes) -> None:
    """Write a new file, then rename it to the target: readers see the old one or the new one."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".attnprof-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.umask(umask := os.umask(0))
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666 & ~umask
        Path(name).chmod(mode)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink()
        raise
