"""Which files attnprof wrote: by their schema, their header, or the mark that pages have."""

from __future__ import annotations

import csv
import errno
import re
import stat
from pathlib import Path

from attnprof.record.base import KINDS, heading

SCHEMA = "attnprof/1"
#: What a figure says of the program that made it.
MAKER = "attnprof"
_ENDS = 4096
_REPORT = re.compile(r'\{\s*"schema"\s*:\s*"attnprof/1"\s*,\s*"(command|ceilings)"\s*:')
_JOURNAL = re.compile(r'\{\s*"schema"\s*:\s*"attnprof/1"\s*,\s*"key"\s*:')
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
    """Whether nothing of anybody's is lost where a file is overwritten.

    It is not there, is empty, or begins or ends as what attnprof writes does. A sweep's results
    are not overwritten: they are added to.
    """
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
    return (
        any(mark in part for mark in _BINARY for part in (head, tail))
        or bool(_REPORT.match(text.lstrip()) or _XML.search(text))
        or any(_MARK.fullmatch(line.strip()) for line in lines)
        or _has_columns(lines[0] if lines else "")
        or _in_folder_of_ours(path)
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
        kinds = (kind.columns() for kind in KINDS.values())
        return any(_ordered(cells, [heading(*column) for column in columns]) for columns in kinds)
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


def _ordered(cells: list[str], heads: list[str]) -> bool:
    """Whether at least three cells are headings of one kind, in its order."""
    rest = iter(heads)
    return len(cells) >= 3 and all(cell in rest for cell in cells)


def _in_folder_of_ours(path: Path) -> bool:
    """Whether a README of ours beside a regenerated table or figure names it."""
    page = path.with_name("README.md")
    if not _REGENERATED.fullmatch(path.name) or not page.is_file():
        return False
    lines = page.read_text(encoding="utf-8", errors="replace").splitlines()
    return any(map(_MARK.fullmatch, lines[-1:])) and any(f"]({path.name})" in x for x in lines)
