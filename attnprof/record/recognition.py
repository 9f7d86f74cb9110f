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
from attnprof.record.base import heading, record_kinds

SCHEMA = "attnprof/1"
#: What a figure says of the program that made it.
MAKER = "attnprof"
_ENDS = 4096
_REPORT = re.compile(
    r'\{\s*"schema"\s*:\s*"attnprof/1"\s*,\s*"(?:(ceilings)"|command"\s*:\s*(?:"([a-z -]+)")?)'
)
_JOURNAL = re.compile(r'\{\s*"schema"\s*:\s*"attnprof/1"\s*,\s*"key"\s*:')
_BADGE = re.compile(r'\{\s*"schemaVersion"\s*:\s*1\s*,\s*"label"\s*:\s*"attnprof"')
_MARK = re.compile(r"<!-- attnprof[ -]([a-z -]+?) *-->|(?:% )?Written by attnprof ([a-z -]+)\.")
_XML = {
    "check --junit": re.compile(r'<testsuites [^>]*name="attnprof '),
    "reproduce": re.compile(r'<meta name="generator" content="attnprof">'),
    "figure": re.compile("<dc:title>attnprof</dc:title>"),
}
#: Commands whose output may be a figure though no ``--plot`` names it.
_DRAWING = ("plot", "heatmap", "reproduce")
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
    """Return whether nothing of somebody's is lost where a file is overwritten."""
    try:
        head, _ = ends_of(path)
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False
    return not head or bool(writers_of(path))


def writers_of(path: Path) -> set[str]:
    """Return what of attnprof may have written a file, by how it begins and ends; empty for none.

    These are names of commands, as ``cost``, with the flag of what has its own form
    (``check --junit``, ``calibrate --file``), and ``figure`` for any figure.
    """
    try:
        head, tail = ends_of(path)
    except (OSError, ValueError):
        return set()
    text = head.decode("utf-8-sig", "replace")
    lines = [*text.splitlines()[:1], *tail.decode("utf-8", "replace").splitlines()[-1:]]
    page = path.with_name("README.md")  # of ours, beside a regenerated table or figure it names
    rows: list[str] = []
    if _REGENERATED.fullmatch(path.name) and page.is_file():
        rows = page.read_text(encoding="utf-8", errors="replace").splitlines()
    found = {name for name, pattern in _XML.items() if pattern.search(text)}
    found |= {"figure"} if any(one in part for one in _BINARY for part in (head, tail)) else set()
    found |= {"check --badge"} if _BADGE.match(text) else set()
    if report := _REPORT.match(text.lstrip()):
        found.add("calibrate --file" if report[1] else (report[2] or "").partition(" --")[0])
    marks = filter(None, (_MARK.fullmatch(line.strip()) for line in lines))
    found |= {(one[1] or one[2]).partition(" --")[0] for one in marks}
    found |= set(_with_columns(lines[0] if lines else ""))
    if any(map(_MARK.fullmatch, rows[-1:])) and any(f"]({path.name})" in row for row in rows):
        found.add("reproduce")
    return {name or "of another version" for name in found}


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


def _with_columns(line: str) -> list[str]:
    """Return the commands for whose records a line is the header of a CSV or a Markdown table."""
    if line.startswith("| "):
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if len(cells) < 3:  # at least three cells are headings of one kind, in its order
            return []
        heads = {
            name: [heading(*one) for one in kind.columns()] for name, kind in record_kinds().items()
        }
        return [name.split()[0] for name, own in heads.items() if _in_order(cells, own)]
    try:
        cells = next(csv.reader([line]), [])
    except csv.Error:
        return []
    # columns that a later version added are missing in an older file
    known = {name: [field for field, _ in kind.columns()] for name, kind in record_kinds().items()}
    return [
        name.split()[0] for name, own in known.items()
        if cells[:1] == own[:1] and set(cells) <= set(own) and 2 * len(cells) >= len(own)
    ]  # fmt: skip


def _in_order(cells: Iterable[str], headings: Iterable[str]) -> bool:
    left = iter(headings)
    return all(cell in left for cell in cells)


#: What tells a file from others: its place with all links followed, and its number on the disk.
Identity = tuple[int, int] | str


@dataclass
class Destinations:
    """Inputs and outputs of a command by what they are on the disk, whatever they are called.

    What is ``extended`` is added to by code that reads it first.
    """

    command: str = ""
    force: bool = False
    inputs: dict[Identity, str] = field(default_factory=dict)
    outputs: dict[Identity, str] = field(default_factory=dict)
    extended: set[Identity] = field(default_factory=set)

    def check(self, path: Path, told: str, *, only_inputs: bool = False) -> None:
        """Raise :class:`RequestError` for an input and, without force, for what would be lost.

        That is a file of somebody's, and one that attnprof wrote for another purpose.
        """
        own = identities(path)
        if not self.inputs.keys().isdisjoint(own):
            raise _is_input(told)
        if only_inputs or self.force:
            return
        why = "nothing in it says that attnprof wrote it"
        if is_ours(path):
            writers = writers_of(path)
            allowed = self._writes(told) & writers or not self.command or own & self.extended
            if not writers or allowed:
                return
            why = f"it is what attnprof {' or '.join(sorted(writers))} wrote"
            why = "it is a figure" if writers == {"figure"} else why
        why = "it holds a sweep's results" if is_journal(path) else why
        raise RequestError(f"cannot overwrite {told}: {why}; type --force, or give another name")

    def _writes(self, told: str) -> set[str]:
        """Return the names by which what a command writes is known again."""
        flag = told.split(" ", 1)[0]
        draws = flag == "--plot" or self.command in _DRAWING
        own = {f"{self.command} {flag}"}
        own |= {self.command} if flag not in ("--junit", "--badge", "--plot") else set()
        return own | ({"figure"} if draws else set())


def _is_input(told: str) -> RequestError:
    return RequestError(f"cannot overwrite {told}: this command reads it; give another name")


_COMMAND: ContextVar[Destinations | None] = ContextVar("attnprof_command", default=None)


@contextmanager
def one_command(
    modules: Iterable[str] = (), *, command: str = "", tracked: bool = True
) -> Iterator[None]:
    """Inside, files are inputs and outputs of one command; ``modules`` are texts that name code."""
    before = _COMMAND.set(Destinations(command) if tracked else None)
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
    command.extended |= own if extended else set()
    command.check(path, told, only_inputs=extended)


def check_unlost(path: Path, *, only_inputs: bool = False) -> None:
    """Look again just before a file is written: it may have come since."""
    if (command := _COMMAND.get()) and not is_stream(path):
        # by its place first: a replaced file may have left its number to another
        own = (os.path.realpath(path), *identities(path))
        names = [command.outputs[one] for one in own if one in command.outputs]
        command.check(path, names[0] if names else str(path), only_inputs=only_inputs)


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
