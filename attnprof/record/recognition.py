"""Which files attnprof wrote, and what a command reads and writes: nobody's file is overwritten."""

import csv
import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from attnprof.errors import RequestError
from attnprof.record.base import KINDS, heading

SCHEMA = "attnprof/1"
#: What a figure says of the program that made it.
MAKER = "attnprof"
_ENDS = 4096
_REPORT = re.compile(r'\{\s*"schema"\s*:\s*"attnprof/1"\s*,\s*"(command|ceilings)"\s*:')
_JOURNAL = re.compile(r'\{\s*"schema"\s*:\s*"attnprof/1"\s*,\s*"key"\s*:')
_BADGE = re.compile(r'\{\s*"schemaVersion"\s*:\s*1\s*,\s*"label"\s*:\s*"attnprof"')
_MARK = re.compile(r"<!-- attnprof[ -][a-z -]+-->|(% )?Written by attnprof [a-z -]+\.")
_XML = re.compile(
    r'<testsuites [^>]*name="attnprof |<meta name="generator" content="attnprof">'
    r"|<dc:title>attnprof</dc:title>"
)
#: Files of a folder of reports whose columns are their document's.
_REGENERATED = re.compile(r"(table|figure)[0-9_]\w*\.(csv|png)")
#: PNG and PDF.
_BINARY = (b"Software\0attnprof", b"/Creator (attnprof)")


def mark(command: str) -> str:
    """A line that Markdown does not show, by which a page is known again."""
    return f"<!-- attnprof {command} -->"


def written_by(command: str) -> str:
    """The last line of a text file, a comment where that is LaTeX, by which it is known again."""
    return f"Written by attnprof {command}."


def is_ours(path: Path) -> bool:
    """Whether nothing is lost where a file is overwritten: it begins or ends as ours do."""
    try:
        head, tail = ends_of(path)
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False
    if not head:
        return True
    text = head.decode("utf-8-sig", "replace")
    lines = [*text.splitlines()[:1], *tail.decode("utf-8", "replace").splitlines()[-1:]]
    page = path.with_name("README.md")  # of ours, beside a regenerated table or figure it names
    rows: list[str] = []
    if _REGENERATED.fullmatch(path.name) and page.is_file():
        rows = page.read_text(encoding="utf-8", errors="replace").splitlines()
    return (
        any(mark in part for mark in _BINARY for part in (head, tail))
        or bool(_REPORT.match(text.lstrip()) or _BADGE.match(text) or _XML.search(text))
        or any(_MARK.fullmatch(line.strip()) for line in lines)
        or _has_columns(lines[0] if lines else "")
        or (any(map(_MARK.fullmatch, rows[-1:])) and any(f"]({path.name})" in x for x in rows))
    )


def is_journal(path: Path) -> bool:
    """Whether a file begins as a sweep's results do."""
    try:
        head, _ = ends_of(path)
    except (OSError, ValueError):
        return False
    return bool(_JOURNAL.match(head.decode("utf-8-sig", "replace").lstrip()))


def ends_of(path: Path) -> tuple[bytes, bytes]:
    """A plain file's first and last bytes; OSError for anything else."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a file")
    with path.open("rb") as stream:
        head = stream.read(_ENDS)
        size = stream.seek(0, 2)
        stream.seek(max(0, size - _ENDS))
        return head, stream.read(_ENDS)


def _has_columns(line: str) -> bool:
    """Whether a line is the header of a CSV or a Markdown table of records of ours."""
    if line.startswith("| "):
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        heads = (iter([heading(*one) for one in kind.columns()]) for kind in KINDS.values())
        # at least three cells are headings of one kind, in its order
        return len(cells) >= 3 and any(all(cell in own for cell in cells) for own in heads)
    try:
        cells = next(csv.reader([line]), [])
    except csv.Error:
        return False
    # columns that a later version added are missing in an older file
    known = ([name for name, _ in kind.columns()] for kind in KINDS.values())
    return any(
        cells[:1] == names[:1] and set(cells) <= set(names) and 2 * len(cells) >= len(names)
        for names in known
    )


#: What tells a file from others: its place with all links followed, and its number on the disk.
Identity = tuple[int, int] | str


@dataclass
class Destinations:
    """Inputs and outputs of a command by what they are on the disk, whatever they are called."""

    force: bool = False
    inputs: dict[Identity, str] = field(default_factory=dict)
    outputs: dict[Identity, str] = field(default_factory=dict)

    def check(self, path: Path, told: str, *, only_inputs: bool = False) -> None:
        """:class:`RequestError` for an input, and for a file that is not ours without force."""
        if not self.inputs.keys().isdisjoint(identities(path)):
            raise _is_input(told)
        if only_inputs or self.force or is_ours(path):
            return
        why = "nothing in it says that attnprof wrote it"
        why = "it holds a sweep's results" if is_journal(path) else why
        raise RequestError(f"cannot overwrite {told}: {why}; type --force, or give another name")


def _is_input(told: str) -> RequestError:
    return RequestError(f"cannot overwrite {told}: this command reads it; give another name")


_COMMAND: ContextVar[Destinations | None] = ContextVar("attnprof_command", default=None)


@contextmanager
def one_command(modules: Iterable[str] = (), *, tracked: bool = True) -> Iterator[None]:
    """Inside, files are inputs and outputs of one command; ``modules`` are texts that name code."""
    before = _COMMAND.set(Destinations() if tracked else None)
    try:
        take_modules(modules)
        yield
    finally:
        _COMMAND.reset(before)


def reading_back() -> AbstractContextManager[None]:
    """Inside, what is read is what the running command itself extends: no input."""
    return one_command(tracked=False)


def taken_as_input(path: str | Path) -> None:
    """Say that the running command reads a file; :class:`RequestError` where it writes it, too."""
    if command := _COMMAND.get():
        own = identities(path)
        command.inputs |= dict.fromkeys(own, str(path))
        for one in own & command.outputs.keys():
            raise _is_input(command.outputs[one])


def take_modules(texts: Iterable[str]) -> None:
    """Say so of the files that ``my.py:MyAttention`` and ``package.module:Name`` name."""
    for text in texts:
        place = text if text.endswith(".py") else text.rpartition(":")[0]
        inside = place.replace(".", "/")
        for name in (place, f"{inside}.py", f"{inside}/__init__.py"):
            if name.endswith(".py") and stat.S_ISREG(_mode(Path(name))):
                taken_as_input(name)


def claimed(path: Path, flag: str, *, force: bool, extended: bool = False) -> None:
    """Take a file as an output; what is ``extended`` is kept, and added to by one who knows it."""
    command = _COMMAND.get() or Destinations()
    command.force = force
    if is_stream(path):
        return
    own, told = identities(path), f"{flag} {path}"
    for one in own & command.outputs.keys():
        if command.outputs[one] != told:
            raise RequestError(f"{told} is the file of {command.outputs[one]}, too: name two")
    command.outputs |= dict.fromkeys(own, told)
    command.check(path, told, only_inputs=extended)


def check_unlost(path: Path, *, only_inputs: bool = False) -> None:
    """Look again just before a file is written: it may have come since."""
    if (command := _COMMAND.get()) and not is_stream(path):
        told = next((command.outputs[one] for one in identities(path) & command.outputs.keys()), "")
        command.check(path, told or str(path), only_inputs=only_inputs)


def identities(path: str | Path) -> set[Identity]:
    """What a name leads to, links followed: its place, and its number where it is there."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        return {os.path.realpath(path)} if "\0" not in str(path) else {str(path)}
    return {os.path.realpath(path), (found.st_dev, found.st_ino)}


def is_stream(path: Path) -> bool:
    """Whether a pipe, a terminal or another device is there, which is written to as it is."""
    mode = _mode(path)
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)


def _mode(path: Path) -> int:
    """What is there, as ``stat`` has it; 0 for nothing, and for a name that no file can have."""
    try:
        return path.stat().st_mode
    except (OSError, ValueError):
        return 0
