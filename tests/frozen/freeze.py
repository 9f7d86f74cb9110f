"""What README's commands say and what derivations find, kept to be compared after a change.

A redesign may change no answer. ``dump`` writes one file for each command and one row for each
derived phase; ``compare`` makes them again with the present code and prints what differs::

    python tests/frozen/freeze.py dump FOLDER [--derive]      # before the change
    python tests/frozen/freeze.py compare FOLDER [--derive]   # after it; exit code 1: differences

``--derive`` adds the derivations (about four minutes of processor time), ``--measure`` the commands
that measure, of which keys and types are kept; ``--only TEXT`` takes those commands and derivations
whose names have this text. FOLDER lies outside the repository.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.frozen import commands, derivations  # noqa: E402 - once the path is known

#: Differing lines that are shown of one file.
SHOWN = 40


def files(asked: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of every file, made with the present code."""
    yield from commands.files(asked.only, measure=asked.measure)
    if asked.derive:
        yield from derivations.files(asked.only)


def dump(asked: argparse.Namespace) -> int:
    """Write every file into the folder."""
    asked.folder.mkdir(parents=True, exist_ok=True)
    for name, text in files(asked):
        (asked.folder / name).write_text(text, encoding="utf-8")
    return 0


def compare(asked: argparse.Namespace) -> int:
    """Print how the present files differ from those of the folder; return 1 if any does."""
    differing = total = 0
    for name, text in files(asked):
        path = asked.folder / name
        if not path.exists():
            sys.stdout.write(f"{name} is not in the folder\n")
            continue
        total += 1
        before = path.read_text(encoding="utf-8")
        if text == before:
            continue
        differing += 1
        lines = [*difflib.unified_diff(
            before.splitlines(), text.splitlines(), f"before/{name}", f"now/{name}", "", "", 1, ""
        )]  # fmt: skip
        shown = lines[:SHOWN] + [f"… and {len(lines) - SHOWN} lines more"] * (len(lines) > SHOWN)
        sys.stdout.write("\n".join([*shown, ""]))
    sys.stdout.write(f"{total - differing} of {total} files as before\n")
    return int(differing > 0)


def main() -> int:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("dump", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--derive", action="store_true", help="derivations, too")
    parser.add_argument("--measure", action="store_true", help="commands that measure, too")
    parser.add_argument("--only", default="", help="those whose name has this text")
    arguments = parser.parse_args()
    return dump(arguments) if arguments.action == "dump" else compare(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
