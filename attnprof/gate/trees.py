"""Trees of code to compare: a folder or a git revision checked out, and processes that run it.

:func:`tree_of` and :func:`current_tree` give a :class:`RunningTree`. Some cases cannot be compared
with a revision at all, as both sides would run the same file (:func:`why_incomparable`).
"""

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Self

from attnprof.errors import CannotRunError, RequestError
from attnprof.gate import worker
from attnprof.gate.counts import Counted
from attnprof.measure.environment import git, git_state
from attnprof.measure.request import PointRequest
from attnprof.processes.folders import temporary_folder
from attnprof.processes.forks import Ended
from attnprof.processes.pool import Pool, PoolError
from attnprof.record.files import why_of


@dataclass(frozen=True)
class Checkout:
    """A revision's files in a folder, from the repository at ``top``.

    ``submodules`` maps the path of each submodule to the reason why it could not be checked out;
    the reason is empty where it was.
    """

    label: str
    top: Path
    submodules: Mapping[str, str] = field(default_factory=dict)


def checked_out(folder: Path, commit: str, place: Path, label: str) -> Checkout:
    """Write a commit's files, submodules included, into a new folder.

    The index is a temporary one, and no hook runs. A filter (``git lfs``) runs where attributes of
    the repository name it.
    """
    try:
        top = Path(git(folder, "rev-parse", "--show-toplevel"))
        directory = Path(git(folder, "rev-parse", "--absolute-git-dir"))
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
        inside = _directory_of(top / path, directory, place, recorded)
        if inside is None:
            why = (
                f"its submodule {path} at {recorded[:12]} is not here: type "
                "git submodule update --init --recursive, and git fetch in it"
            )
            yield path, why
            continue
        _write_files(inside, recorded, place / path, index)
        yield path, ""
        for below, why in _submodules(top / path, inside, recorded, place / path, index):
            yield f"{path}/{below}", why


def _directory_of(working: Path, directory: Path, place: Path, commit: str) -> Path | None:
    """Return the ``.git`` folder of a submodule that holds a commit; None where none does.

    Its working folder may be gone; then it is one of those below ``modules``.
    """
    settings = _git_environment(directory, place)
    common = place / git(place, "rev-parse", "--git-common-dir", settings=settings)
    heads = chain.from_iterable((home / "modules").rglob("HEAD") for home in {directory, common})
    for folder in chain([_git_folder(working)], (head.parent for head in heads)):
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
    submodules = checkout.submodules if checkout else {}
    if owner != top and not any(file.is_relative_to(top / path) for path in submodules):
        around = _repository(owner.parent)  # it may record a commit of this one
        inside = str(owner.relative_to(around)) if around else ""
        listed = _git_output(around, "ls-files", "-s", "--", inside) if around else None
        if not (listed or "").startswith("160000 "):
            return f"{file} is of another repository, {owner}, whose commit git does not record"
        place = base / owner.relative_to(head) if owner.is_relative_to(head) else file
        if checkout is None and place.is_dir() and not any(place.iterdir()):
            return f"the submodule {place} is empty: type git submodule update --init in {base}"
    ignored = _git_output(owner, "check-ignore", "-q", str(file)) is not None
    return f"git ignores {file}: no revision has it" if ignored else ""


def _repository(folder: Path) -> Path | None:
    """Return the nearest parent folder that is a git repository's."""
    return next((one for one in (folder, *folder.parents) if (one / ".git").exists()), None)


def _git_output(owner: Path, *arguments: str) -> str | None:
    """Return a git command's output, ignoring git's environment; None where it fails."""
    try:
        return git(owner, *arguments, settings=_git_environment(_git_folder(owner) or owner, owner))
    except (OSError, subprocess.SubprocessError):
        return None


@contextmanager
def tree_of(
    text: str, base: Path | None = None, limit_s: float | None = None
) -> "Iterator[RunningTree]":
    """Yield the folder that ``text`` names or, for a revision at ``base``, its files."""
    base = base or Path.cwd()
    if (folder := base / text).is_dir():
        yield RunningTree(folder.resolve(), text, limit_s)
        return
    problem = f"--against {text}: no such folder"
    commit = _commit_of(text, base, problem)
    inside = git(base, "rev-parse", "--show-prefix")
    with temporary_folder() as temporary:
        place = temporary / "tree"
        checkout = checked_out(base, commit, place, text)
        if not (place / inside).is_dir():
            raise RequestError(f"{text} has no folder {inside}: run this where it has one")
        yield RunningTree(place / inside, f"{text} ({commit[:12]})", limit_s, checkout)


def _commit_of(text: str, folder: Path, problem: str) -> str:
    """Return the commit that a revision names; ``problem`` begins the error message."""
    try:
        git(folder, "rev-parse", "--git-dir")
    except OSError as error:
        raise CannotRunError(
            f"{problem}, and git cannot be run here to look for a revision: {why_of(error)}; "
            "install git, or give a folder"
        ) from error
    except subprocess.SubprocessError as error:
        if "not a git repository" in (why := reason_of(error)):
            raise RequestError(f"{problem}, and {folder} is not in a git repository") from error
        raise CannotRunError(f"{problem}, and git fails in {folder}: {why}") from error
    try:
        return git(folder, "rev-parse", "--verify", "--end-of-options", f"{text}^{{commit}}")
    except subprocess.SubprocessError as error:
        raise RequestError(
            f"{problem} and no git revision; a shallow clone lacks older ones "
            "(git fetch --unshallow, fetch-depth: 0 in a workflow)"
        ) from error


def current_tree(folder: Path | None = None, limit_s: float | None = None) -> "RunningTree":
    """Return the working folder, labelled with its commit if it has one."""
    folder = folder or Path.cwd()
    state = git_state.__wrapped__(folder)  # as it is now
    return RunningTree(folder, f"working folder ({state})" if state else "working folder", limit_s)


#: Seconds after which one order is given up: building, counting or a block of calls.
LIMIT_S = 300.0
_WORKER = Path(worker.__file__).resolve()
#: Memory that glibc maps and gives back at every call costs page faults that depend on where the
#: process was put: two processes of the same code were seen 17 % apart for all of their life, and
#: less than 2 % with memory kept. The rest keeps a tree as it was found.
_STEADY = {
    "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(64 << 20), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
}  # fmt: skip


class TreeError(Exception):
    """A request that a tree's process failed; ``missing``: the code does not exist there."""

    def __init__(
        self, message: str, *, missing: bool = False, side: "RunningTree | None" = None
    ) -> None:
        super().__init__(message)
        self.missing, self.side = missing, side


class RunningTree:
    """A folder of code with a label; inside its context, a pool of processes that run it.

    Each order gets ``limit_s`` seconds. Questions are asked (``ask_…``) before answers are taken,
    so that two sides work at the same time. A failure raises :class:`TreeError`; the pool survives
    it. ``checkout`` describes the folder if it is a revision's.
    """

    def __init__(
        self, path: Path, label: str, limit_s: float | None = None,
        checkout: Checkout | None = None,
    ) -> None:  # fmt: skip
        self.path, self.label, self.checkout = path, label, checkout
        self._limit_s = limit_s
        self._open = False
        self._alias = contextlib.ExitStack()

    def __enter__(self) -> Self:
        # both sides have paths of the same length, on which the address of the stack depends
        place = self._alias.enter_context(temporary_folder()) / "tree"
        place.symlink_to(self.path.resolve(), target_is_directory=True)
        first = [str(part) for part in (place, place / "src") if part.is_dir()]
        waiting = {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}
        self._pool = Pool(str(_WORKER), place, first, {**waiting, **_STEADY})
        self._pool.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.stop()
        self._alias.close()

    def restart(self) -> None:
        """Start another server, from which later processes come."""
        self._pool.stop()
        self._pool.start()

    def ready(self) -> None:
        """Wait until the server has imported what it needs."""
        with self._failing():
            self._pool.ready()

    def ask_count(
        self, request: PointRequest, *, formulas: bool, alone: bool
    ) -> Callable[[], Counted]:
        """Order a count with the first guess of inputs ``alone``, or with any guess that runs.

        Return a function that waits for the counts; an error is part of these.
        """
        try:
            self._ask("count", request, formulas=formulas, alone=alone)
        except TreeError as error:
            return partial(Counted, error=str(error))
        return self._counted

    def _counted(self) -> Counted:
        try:
            counted = self._answer()
            self._ended()
        except TreeError as error:
            return Counted(error=str(error), missing=error.missing)
        return Counted.from_dict({**counted["counted"], **counted["code"]})

    def ask_open(self, request: PointRequest) -> None:
        """Order a module to be built and warmed up, until :meth:`close`."""
        self._open = True
        self._ask("measure", request)

    def opened(self) -> float:
        """Wait for :meth:`ask_open`; return the seconds of one call."""
        return float(self._answer()["call_s"])

    def block(self, calls: int) -> tuple[float, float]:
        """Return the processor and wall seconds of ``calls`` calls of the open module."""
        with self._failing():
            self._pool.send({"calls": calls})
        answer = self._answer()
        return float(answer["cpu_s"]), float(answer["wall_s"])

    def close(self) -> None:
        """End the open module's process; nothing if there is none."""
        if self._open:
            self._open = False
            with self._failing():
                self._pool.send({})
            self._ended()

    def _ask(self, do: str, request: PointRequest, **more: Any) -> None:
        """Send an order to a fresh process, which runs the worker's function ``do``."""
        order = {"do": do, "request": request.to_dict(), **more}
        try:
            with self._failing():
                self._pool.ask(order, memory=request.device == "cpu")
        except TreeError as error:
            if self._pool.runs:
                raise
            raise CannotRunError(
                f"{self.label}: torch and attnprof cannot be imported there: {error}"
            ) from error

    def _answer(self) -> dict[str, Any]:
        """Return the answer to the last order."""
        with self._failing():
            answer = self._pool.answer(self._limit_s or LIMIT_S)
        if "error" in answer:
            self._open = False
            self._ended()
            raise TreeError(answer["error"], missing=answer["missing"], side=self)
        if "ended" in answer:
            self._open = False
            raise TreeError(_death(Ended(**answer["ended"])))
        return answer

    def _ended(self) -> None:
        with self._failing():
            ended = self._pool.ended(self._limit_s or LIMIT_S)
        if ended.code < 0:
            raise TreeError(_death(ended))

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except PoolError as error:
            raise TreeError(f"the process of {self.label} {error}") from error
        except TimeoutError as error:
            raise TreeError(str(error)) from error


def _death(ended: Ended) -> str:
    how = "closed what it answers by" if ended.code == worker.MUTE else ended.how
    silent = " and gave no answer" if ended.code == 0 else ""
    return f"its process {how}{silent}{': ' + ended.last_line if ended.last_line else ''}"
