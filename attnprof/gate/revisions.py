"""Check out a git revision as files, and tell whether a case can be compared at all.

A check is worth nothing where both sides run the same file, or where the old side lacks a file that
git never recorded. So a revision is checked out with its submodules, each at the commit that the
revision records, and :func:`why_incomparable` tells why a case cannot be compared.
"""

import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from attnprof.errors import CannotRunError
from attnprof.gate.counts import Counted
from attnprof.measure.environment import git
from attnprof.processes.forks import Ended


@dataclass(frozen=True)
class Checkout:
    """A revision's files in a folder, from the repository at ``top``.

    ``submodules`` maps the path of each submodule to the reason why it could not be checked out;
    the reason is empty where it was.
    """

    label: str
    top: Path
    submodules: Mapping[str, str] = field(default_factory=dict)


def checked_out(here: Path, commit: str, place: Path, label: str) -> Checkout:
    """Write a commit's files and those of its submodules into a new folder.

    The index is a temporary one, and no hook runs. A filter (``git lfs``) runs where attributes of
    the repository name it.
    """
    try:
        top = Path(git(here, "rev-parse", "--show-toplevel"))
        directory = Path(git(here, "rev-parse", "--absolute-git-dir"))
        _write_files(directory, commit, place, place.with_name("index"))
        submodules = dict(_submodules(top, directory, commit, place, place.with_name("index")))
    except subprocess.SubprocessError as error:
        raise CannotRunError(f"git cannot check out {label}: {reason_of(error)}") from error
    return Checkout(label, top, submodules)


def reason_of(error: subprocess.SubprocessError) -> str:
    """Return the last line that git wrote before it failed."""
    return Ended(1, getattr(error, "stderr", None) or str(error)).last_line


def _write_files(directory: Path, commit: str, place: Path, index: Path) -> None:
    """Write the files of a commit of the repository in ``directory``, a ``.git`` folder."""
    place.mkdir(parents=True, exist_ok=True)
    index.unlink(missing_ok=True)
    settings = {**_git_environment(directory, place), "GIT_INDEX_FILE": str(index)}
    git(place, "read-tree", commit, settings=settings)
    git(place, "checkout-index", "--all", f"--prefix={place}/", settings=settings)


def _git_environment(directory: Path, working: Path) -> dict[str, str]:
    """Return environment settings that bind git to one repository, wherever it was started."""
    return {"GIT_DIR": str(directory), "GIT_WORK_TREE": str(working)}


def _submodules(
    top: Path, directory: Path, commit: str, place: Path, index: Path
) -> Iterator[tuple[str, str]]:
    """Write a commit's submodules recursively; yield each path and why it failed ("" if not)."""
    listed = git(place, "ls-tree", "-rz", commit, settings=_git_environment(directory, place))
    for line in listed.split("\0"):
        kind, _, path = line.partition("\t")
        if not kind.startswith("160000 "):
            continue
        recorded = kind.split()[2]
        inside = _directory_of(top / path, directory, place, path, recorded)
        if inside is None:
            yield (
                path,
                (
                    f"its submodule {path} at {recorded[:12]} is not here: type "
                    "git submodule update --init --recursive, and git fetch in it"
                ),
            )
            continue
        _write_files(inside, recorded, place / path, index)
        yield path, ""
        for below, why in _submodules(top / path, inside, recorded, place / path, index):
            yield f"{path}/{below}", why


def _directory_of(
    working: Path, directory: Path, place: Path, path: str, commit: str
) -> Path | None:
    """Return the ``.git`` folder of a submodule that holds a commit; None where none does."""
    found = [_git_folder(working)]
    if (place / ".gitmodules").is_file():
        listed = git(
            place, "config", "-z", "-f", str(place / ".gitmodules"), "--get-regexp",
            r"^submodule\..*\.path$",
        )  # fmt: skip
        pairs = (entry.partition("\n") for entry in listed.split("\0"))
        names = [key[len("submodule.") : -len(".path")] for key, _, at in pairs if at == path]
        common = git(
            place, "rev-parse", "--git-common-dir", settings=_git_environment(directory, place)
        )
        for home in (directory, place / common):
            found += [home / "modules" / name for name in names if ".." not in name]
    for folder in found:
        if folder is not None and folder.is_dir():
            try:
                whole = f"{commit}^{{commit}}"
                git(place, "cat-file", "-e", whole, settings=_git_environment(folder, place))
            except subprocess.SubprocessError:
                continue
            return folder
    return None


def _git_folder(working: Path) -> Path | None:
    """Return the ``.git`` folder of a working folder, which may be a file that names it."""
    entry = working / ".git"
    if not entry.is_file():
        return entry if entry.is_dir() else None
    return working / entry.read_text(errors="surrogateescape").removeprefix("gitdir:").strip()


def why_incomparable(
    current: Counted, baseline: Counted, head: Path, base: Path, checkout: Checkout | None
) -> str:
    """Return why a case's code on two sides cannot be compared; empty where it can.

    ``head`` and ``base`` are the folders of the sides; ``checkout`` describes base unless the user
    named a folder. A file that base lacks counts as new only if git would have recorded it.
    """
    if not (current.runs and current.file and (baseline.runs or baseline.missing)):
        return ""
    file, head = Path(current.file), head.resolve()
    top = checkout.top.resolve() if checkout else _repository(head) or head
    shared = f"both sides run {{}}: name it by its path from {head}, and no link to it"
    if checkout is None and baseline.runs:
        apart = baseline.file != current.file or file.is_relative_to(base.resolve())
        return "" if apart else shared.format(file)
    if not file.is_relative_to(top):
        return f"{file} lies outside {top}: there is no older {file.name}"
    for path, why in checkout.submodules.items() if checkout else ():
        if why and any(Path(one).is_relative_to(top / path) for one in current.files):
            return why
    same = [
        one for one in current.files if one in {*baseline.files} and Path(one).is_relative_to(top)
    ]
    if same:
        return shared.format(same[0])
    return _why_unrecorded(file, top, head, base, checkout) if baseline.missing else ""


def _why_unrecorded(
    file: Path, top: Path, head: Path, base: Path, checkout: Checkout | None
) -> str:
    """Return why a file may have existed at the revision though its tree lacks it."""
    owner = _repository(file.parent)
    if owner is None:
        return ""
    known = checkout.submodules if checkout else {}
    if owner != top and not any(file.is_relative_to(top / path) for path in known):
        if not _is_submodule(owner):
            return f"{file} is of another repository, {owner}, whose commit git does not record"
        there = base / owner.relative_to(head) if owner.is_relative_to(head) else file
        if checkout is None and there.is_dir() and not any(there.iterdir()):
            return f"the submodule {there} is empty: type git submodule update --init in {base}"
    return f"git ignores {file}: no revision has it" if _is_ignored(file, owner) else ""


def _repository(folder: Path) -> Path | None:
    """Return the nearest parent folder that is a git repository's."""
    return next((one for one in (folder, *folder.parents) if (one / ".git").exists()), None)


def _is_submodule(owner: Path) -> bool:
    """Return whether the surrounding repository records a commit of this one."""
    around = _repository(owner.parent)
    if around is None:
        return False
    listed = _git_output(around, "ls-files", "-s", "--", str(owner.relative_to(around)))
    return bool(listed) and str(listed).startswith("160000 ")


def _is_ignored(file: Path, owner: Path) -> bool:
    return _git_output(owner, "check-ignore", "-q", str(file)) is not None


def _git_output(owner: Path, *arguments: str) -> str | None:
    """Return a git command's output, ignoring git's environment; None where it fails."""
    try:
        return git(owner, *arguments, settings=_git_environment(_git_folder(owner) or owner, owner))
    except (OSError, subprocess.SubprocessError):
        return None
