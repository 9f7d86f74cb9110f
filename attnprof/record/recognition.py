"""Recognise files that attnprof wrote, so that no command overwrites another file or its input.

Each output carries a mark of its command (:func:`writers_of`). While a command runs
(:func:`one_command`), its inputs and outputs are noted by device and number on disk, whatever names
lead to them (:class:`Destinations`).
"""

import csv
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
#: Name of the program in a figure's metadata.
MAKER = "attnprof"
_ENDS = 4096
_SCHEMA = r'\A\s*\{\s*"schema"\s*:\s*"attnprof/1"\s*,\s*'
_JOURNAL = re.compile(_SCHEMA + r'"key"\s*:')
#: Patterns in the first or last bytes of a file of ours, with its writer; "" if a group has that.
_SIGNS = [(re.compile(pattern), writer) for pattern, writer in (
    (_SCHEMA + r'"ceilings"', "calibrate --calibration"),
    (_SCHEMA + r'"command"\s*:\s*(?:"([a-z -]+)")?', ""),
    (r'\A\{\s*"schemaVersion"\s*:\s*1\s*,\s*"label"\s*:\s*"attnprof"', "check --badge"),
    (r'<testsuites [^>]*name="attnprof ', "check --junit"),
    (r"<dc:title>attnprof</dc:title>|Software\0attnprof|/Creator \(attnprof\)", "figure"),
    (r'<meta name="generator" content="attnprof">', "reproduce"),
    (r'<meta name="generator" content="attnprof ([a-z -]+)">', ""),
)]  # fmt: skip
#: The first or last line of a text of ours.
_MARK = re.compile(r"<!-- attnprof[ -]([a-z -]+?) *-->|(?:[%#] )?Written by attnprof ([a-z -]+)\.")
#: Commands whose ``--output`` may be a figure.
_DRAWING = ("plot", "heatmap", "reproduce")
#: Files of a folder of reports whose columns are their document's.
_REGENERATED = re.compile(r"(table|figure)[0-9_]\w*\.(csv|png)")


def mark(command: str) -> str:
    """Return a comment line that Markdown hides, by which a page of ``command`` is recognised."""
    return f"<!-- attnprof {command} -->"


def written_by(command: str) -> str:
    """Return the last line of a text file, by which a file of ``command`` is recognised."""
    return f"Written by attnprof {command}."


def is_ours(path: Path) -> bool:
    """Return whether a file may be overwritten: it is missing, empty, or attnprof's."""
    ends = _ends_of(path)
    return not _mode(path) if ends is None else not ends[0] or bool(writers_of(path))


def writers_of(path: Path) -> set[str]:
    """Return the commands that may have written a file, by how it begins and ends.

    Empty if attnprof did not. An output of a form of its own has its flag (``check --junit``,
    ``calibrate --calibration``), and any figure is ``figure``.
    """
    head, tail = _ends_of(path) or ("", "")
    names = {
        writer or (sign[1] or "").partition(" --")[0]
        for pattern, writer in _SIGNS if (sign := pattern.search(f"{head}\n{tail}"))
    }  # fmt: skip
    for line in (*head.splitlines()[:1], *tail.splitlines()[-1:]):
        if sign := _MARK.fullmatch(line.strip()):
            names.add((sign[1] or sign[2]).partition(" --")[0])
    names |= set(_commands_with_header(head.partition("\n")[0].rstrip("\r")))
    page = path.with_name("README.md")  # our page of the folder names its tables and figures
    if _REGENERATED.fullmatch(path.name) and page.is_file():
        rows = page.read_text(encoding="utf-8", errors="replace").splitlines()
        if any(map(_MARK.fullmatch, rows[-1:])) and any(f"]({path.name})" in row for row in rows):
            names.add("reproduce")
    return {name or "of another version" for name in names}


def is_journal(path: Path) -> bool:
    """Return whether a file begins as a sweep's results do."""
    return bool(_JOURNAL.match((_ends_of(path) or ("",))[0]))


def _ends_of(path: Path) -> tuple[str, str] | None:
    """Return a plain file's first and last bytes as text; None for anything else."""
    if not stat.S_ISREG(_mode(path)):
        return None
    try:
        with path.open("rb") as stream:
            head = stream.read(_ENDS)
            size = stream.seek(0, 2)
            stream.seek(max(0, size - _ENDS))
            return head.decode("utf-8-sig", "replace"), stream.read(_ENDS).decode(errors="replace")
    except OSError:
        return None


def _commands_with_header(line: str) -> list[str]:
    """Return the commands whose records have this line as header in CSV or Markdown."""
    if line.startswith("| "):
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if len(cells) < 3:  # at least three cells are headings of one kind, in its order
            return []
        titles = {
            name: [heading(*one) for one in kind.columns()] for name, kind in record_kinds().items()
        }
        return [name.split()[0] for name, header in titles.items() if _in_order(cells, header)]
    try:
        cells = next(csv.reader([line]), [])
    except csv.Error:
        return []
    # an older file lacks columns that a later version added
    fields = {name: [field for field, _ in kind.columns()] for name, kind in record_kinds().items()}
    return [
        name.split()[0] for name, header in fields.items()
        if cells[:1] == header[:1] and set(cells) <= set(header) and 2 * len(cells) >= len(header)
    ]  # fmt: skip


def _in_order(cells: Iterable[str], headings: Iterable[str]) -> bool:
    left = iter(headings)
    return all(cell in left for cell in cells)


#: Identity of a file: its real path, or its (device, number) on the disk.
Identity = tuple[int, int] | str


@dataclass
class Destinations:
    """Inputs and outputs of a command, by their identity on the disk.

    The code that adds to an ``extended`` output reads it first.
    """

    command: str = ""
    force: bool = False
    inputs: dict[Identity, str] = field(default_factory=dict)
    outputs: dict[Identity, str] = field(default_factory=dict)
    extended: set[Identity] = field(default_factory=set)

    def check(self, path: Path, output: str, *, only_inputs: bool = False) -> None:
        """Raise :class:`RequestError` if a path must not be written.

        An input never is. Without force, neither is a file that attnprof did not write, or wrote by
        another command. ``output`` is the flag and path for the message.
        """
        ids = identities(path)
        if not self.inputs.keys().isdisjoint(ids):
            raise _is_input(output)
        if only_inputs or self.force:
            return
        why = "nothing in it says that attnprof wrote it"
        if is_ours(path):
            writers = writers_of(path)
            allowed = (
                self._marks_of_output(output) & writers or not self.command or ids & self.extended
            )
            if not writers or allowed:
                return
            why = f"it is what attnprof {' or '.join(sorted(writers))} wrote"
            why = "it is a figure" if writers == {"figure"} else why
        why = "it holds a sweep's results" if is_journal(path) else why
        raise RequestError(f"cannot overwrite {output}: {why}; type --force, or give another name")

    def _marks_of_output(self, output: str) -> set[str]:
        """Return the names by which an output of this command and flag is recognised."""
        flag = output.split(" ", 1)[0]
        draws = flag == "--plot" or self.command in _DRAWING
        marks = {f"{self.command} {flag}"}
        marks |= {self.command} if flag not in ("--junit", "--badge", "--plot") else set()
        return marks | ({"figure"} if draws else set())


def _is_input(output: str) -> RequestError:
    return RequestError(f"cannot overwrite {output}: this command reads it; give another name")


_COMMAND: ContextVar[Destinations | None] = ContextVar("attnprof_command", default=None)


@contextmanager
def one_command(
    modules: Iterable[str] = (), *, command: str = "", tracked: bool = True
) -> Iterator[None]:
    """Note files read and written in the body as inputs and outputs of one command.

    ``modules`` are texts that may name code files, which are inputs.
    """
    before = _COMMAND.set(Destinations(command) if tracked else None)
    try:
        take_modules(modules)
        yield
    finally:
        _COMMAND.reset(before)


def reading_back() -> AbstractContextManager[None]:
    """Run the body without noting inputs: it reads a file that the command itself extends."""
    return one_command(tracked=False)


def note_input(path: str | Path) -> None:
    """Note that the command reads a file; :class:`RequestError` if it also writes it."""
    if command := _COMMAND.get():
        ids = identities(path)
        command.inputs |= dict.fromkeys(ids, str(path))
        for one in ids & command.outputs.keys():
            raise _is_input(command.outputs[one])


def take_modules(texts: Iterable[str]) -> None:
    """Note as inputs the files that ``my.py:MyAttention`` and ``package.module:Name`` name."""
    for text in texts:
        place = text if text.endswith(".py") else text.rpartition(":")[0]
        inside = place.replace(".", "/")
        for name in (place, f"{inside}.py", f"{inside}/__init__.py"):
            if name.endswith(".py") and stat.S_ISREG(_mode(Path(name))):
                note_input(name)


def note_output(path: Path, flag: str, *, force: bool, extended: bool = False) -> None:
    """Note a file as an output; RequestError if it must not be written.

    An ``extended`` one is kept and added to.
    """
    command = _COMMAND.get() or Destinations()
    command.force = force
    if is_stream(path):
        return
    ids, label = identities(path), f"{flag} {path}"
    for one in ids & command.outputs.keys():
        if command.outputs[one] != label:
            raise RequestError(f"{label} is the file of {command.outputs[one]}, too: name two")
    command.outputs |= dict.fromkeys(ids, label)
    command.extended |= ids if extended else set()
    command.check(path, label, only_inputs=extended)


def check_unlost(path: Path, *, only_inputs: bool = False) -> None:
    """Check an output again just before it is written: a file may have appeared since."""
    if (command := _COMMAND.get()) and not is_stream(path):
        # by path first: the number of a replaced file may now be another file's
        ids = (os.path.realpath(path), *identities(path))
        names = [command.outputs[one] for one in ids if one in command.outputs]
        command.check(path, names[0] if names else str(path), only_inputs=only_inputs)


def identities(path: str | Path) -> set[Identity]:
    """Return a file's real path and, if it exists, its (device, number)."""
    try:
        status = Path(path).stat()
    except (OSError, ValueError):
        return {os.path.realpath(path)} if "\0" not in str(path) else {str(path)}
    return {os.path.realpath(path), (status.st_dev, status.st_ino)}


def is_stream(path: Path) -> bool:
    """Return whether a path is a pipe, terminal or other device, which is written to directly."""
    mode = _mode(path)
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)


def _mode(path: Path) -> int:
    """Return a path's mode from ``stat``; 0 if there is nothing, or no file can have that name."""
    try:
        return path.stat().st_mode
    except (OSError, ValueError):
        return 0
