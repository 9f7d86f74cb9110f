"""The code to compare with: a folder as it is, or a git revision checked out beside it."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from attnprof.errors import CannotRunError, RequestError


@dataclass(frozen=True)
class Tree:
    """A folder of code, and what to call it."""

    path: Path
    label: str


@contextmanager
def tree_of(text: str, here: Path | None = None) -> Iterator[Tree]:
    """The folder ``text`` names; or what the git revision ``text`` has where ``here`` lies.

    A revision gets a worktree of its own, removed at the end. Raises :class:`RequestError` for
    what is neither, :class:`CannotRunError` where git cannot check it out.
    """
    here = here or Path.cwd()
    if (folder := here / text).is_dir():
        yield Tree(folder.resolve(), str(text))
        return
    commit = _commit(text, here)
    inside = _git(here, "rev-parse", "--show-prefix")
    with tempfile.TemporaryDirectory(prefix="attnprof-") as temporary:
        place = Path(temporary) / "tree"
        try:
            _git(here, "worktree", "add", "--detach", str(place), commit)
        except subprocess.CalledProcessError as error:
            raise CannotRunError(f"git cannot check out {text}: {_last(error.stderr)}") from error
        try:
            if not (place / inside).is_dir():
                raise RequestError(f"{text} has no folder {inside}: run this where it has one")
            yield Tree(place / inside, f"{text} ({commit[:12]})")
        finally:
            _quietly(here, "worktree", "remove", "--force", str(place))


def current_tree(here: Path | None = None) -> Tree:
    """The working folder, with its commit where it has one."""
    here = here or Path.cwd()
    try:
        commit = _git(here, "rev-parse", "--short=12", "HEAD")
        changes = "+changes" if _git(here, "status", "--porcelain", "-uno") else ""
    except (OSError, subprocess.CalledProcessError):
        return Tree(here, "working folder")
    return Tree(here, f"working folder ({commit}{changes})")


def _commit(text: str, here: Path) -> str:
    known = f"--against {text}: no such folder"
    try:
        _git(here, "rev-parse", "--git-dir")
    except (OSError, subprocess.CalledProcessError) as error:
        raise RequestError(f"{known}, and {here} is not in a git repository") from error
    try:
        return _git(here, "rev-parse", "--verify", "--end-of-options", f"{text}^{{commit}}")
    except subprocess.CalledProcessError as error:
        raise RequestError(
            f"{known} and no git revision; a shallow clone lacks older ones "
            "(git fetch --unshallow, fetch-depth: 0 in a workflow)"
        ) from error


def _git(here: Path, *arguments: str) -> str:
    command = ["git", *arguments]  # git is found the way the user's shell finds it
    done = subprocess.run(  # noqa: S603 - fixed commands, a revision that git has verified
        command, cwd=here, capture_output=True, text=True, check=True, timeout=300
    )
    return done.stdout.strip()


def _quietly(here: Path, *arguments: str) -> None:
    """A git command whose failure leaves nothing worse than a stale entry."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        _git(here, *arguments)


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]
