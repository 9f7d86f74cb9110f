"""The code to compare with: a folder as it is, or a git revision checked out beside it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from attnprof.errors import CannotRunError, RequestError
from attnprof.processes.folders import temporary_folder
from attnprof.processes.git import git


@dataclass(frozen=True)
class Tree:
    """A folder of code, and what to call it."""

    path: Path
    label: str


@contextmanager
def tree_of(text: str, here: Path | None = None) -> Iterator[Tree]:
    """The folder ``text`` names; or what the git revision ``text`` has where ``here`` lies.

    A revision gets a folder of its own, removed at the end. Raises :class:`RequestError` for
    what is neither, :class:`CannotRunError` where git cannot check it out.
    """
    here = here or Path.cwd()
    if (folder := here / text).is_dir():
        yield Tree(folder.resolve(), str(text))
        return
    commit = _commit(text, here)
    inside = git(here, "rev-parse", "--show-prefix")
    with temporary_folder() as temporary:
        place = temporary / "tree"
        _check_out(here, commit, place, text)
        if not (place / inside).is_dir():
            raise RequestError(f"{text} has no folder {inside}: run this where it has one")
        yield Tree(place / inside, f"{text} ({commit[:12]})")


def _check_out(here: Path, commit: str, place: Path, text: str) -> None:
    """The commit's files into a new folder, by an index of their own; the repository stays.

    No hook and no file-system monitor runs; a filter (``git lfs``) does where attributes of the
    repository name it, for without it the files would be others.
    """
    place.mkdir()
    apart = {"GIT_INDEX_FILE": str(place.with_name("index"))}
    there = {**apart, "GIT_WORK_TREE": str(place)}
    try:
        top = Path(git(here, "rev-parse", "--show-toplevel"))
        git(top, "read-tree", commit, settings=apart)
        git(top, "checkout-index", "--all", f"--prefix={place}/", settings=there)
    except subprocess.SubprocessError as error:
        said = getattr(error, "stderr", None) or str(error)
        raise CannotRunError(f"git cannot check out {text}: {_last(said)}") from error


def current_tree(here: Path | None = None) -> Tree:
    """The working folder, with its commit where it has one."""
    here = here or Path.cwd()
    try:
        commit = git(here, "rev-parse", "--short=12", "HEAD")
        changes = "+changes" if git(here, "status", "--porcelain", "-uno") else ""
    except (OSError, subprocess.SubprocessError):
        return Tree(here, "working folder")
    return Tree(here, f"working folder ({commit}{changes})")


def _commit(text: str, here: Path) -> str:
    known = f"--against {text}: no such folder"
    try:
        git(here, "rev-parse", "--git-dir")
    except (OSError, subprocess.SubprocessError) as error:
        raise RequestError(f"{known}, and {here} is not in a git repository") from error
    try:
        return git(here, "rev-parse", "--verify", "--end-of-options", f"{text}^{{commit}}")
    except subprocess.SubprocessError as error:
        raise RequestError(
            f"{known} and no git revision; a shallow clone lacks older ones "
            "(git fetch --unshallow, fetch-depth: 0 in a workflow)"
        ) from error


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]
