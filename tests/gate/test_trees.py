"""The code to compare with: folders, git revisions, and what is neither."""

import os
import shutil
import subprocess
from dataclasses import replace

import pytest

from attnprof.errors import CannotRunError, RequestError
from attnprof.gate.check import check_against
from attnprof.gate.counts import Case, Counted
from attnprof.gate.rules import CheckOptions, worst
from attnprof.gate.trees import current_tree, tree_of, why_incomparable
from attnprof.measure.request import PointRequest
from attnprof.record import CheckRecord
from tests.gate.samples import PLAIN


def git(folder, *arguments):
    named = ["-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run(["git", *named, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path):
    place = tmp_path / "repository"
    (place / "inner").mkdir(parents=True)
    git(place, "init", "-q")
    for text in ("one", "two"):
        (place / "inner" / "my.py").write_text(text)
        git(place, "add", "-A")
        git(place, "commit", "-qm", text)
    (place / "inner" / "my.py").write_text("three")
    return place


def test_a_revision_is_checked_out_beside_and_removed(repository, tmp_path):
    repository = repository.rename(tmp_path / os.fsdecode(b"caf\xe9"))  # which is not UTF-8
    with tree_of("HEAD~1", repository / "inner") as tree:
        assert (tree.path / "my.py").read_text() == "one"
        assert "HEAD~1" in tree.label
        assert tree.path != repository / "inner"
    assert not tree.path.exists()
    listed = subprocess.check_output(["git", "worktree", "list"], cwd=repository)
    assert len(listed.splitlines()) == 1
    assert (repository / "inner" / "my.py").read_text() == "three"
    with pytest.raises(ZeroDivisionError), tree_of("HEAD", repository) as tree:
        raise ZeroDivisionError
    assert not tree.path.exists()


def test_a_folder_is_taken_as_it_is_and_the_working_folder_says_that_it_differs(
    repository, tmp_path
):
    with tree_of(str(repository), tmp_path) as tree:
        assert tree.path == repository
    assert "+changes" in current_tree(repository).label
    git(repository, "checkout", "-q", ".")
    assert "+changes" not in current_tree(repository).label


def refused(error, match, here, ref="HEAD"):
    with pytest.raises(error, match=match), tree_of(ref, here):
        pass


def test_what_is_neither_is_refused_with_advice(repository, tmp_path):
    refused(RequestError, "no git revision", repository, "no-such-ref")
    refused(RequestError, "not in a git repository", tmp_path)
    git(repository, "rm", "-rqf", "inner")
    git(repository, "commit", "-qm", "gone")
    (repository / "inner").mkdir()
    refused(RequestError, "no folder inner", repository / "inner")


def executable(place, text):
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f"#!/bin/sh\n{text}\n")
    place.chmod(0o755)
    return place


HOOKS = (
    "post-checkout", "post-index-change", "reference-transaction", "fsmonitor-watchman",
    "pre-auto-gc", "post-merge",
)  # fmt: skip


def test_no_hook_and_no_monitor_runs_and_the_repository_stays_as_it_is(
    repository, tmp_path, monkeypatch
):
    ran = tmp_path / "ran"
    for folder in (repository / ".git" / "hooks", tmp_path / "hooks"):
        for name in HOOKS:
            executable(folder / name, f"echo {name} >> {ran}")
    monitor = executable(tmp_path / "monitor", f"echo monitor >> {ran}; printf '/'")
    git(repository, "config", "core.hooksPath", str(tmp_path / "hooks"))
    git(repository, "config", "core.fsmonitor", str(monitor))
    git(repository, "config", "core.splitIndex", "true")
    monkeypatch.setenv("GIT_INDEX_FILE", str(repository / ".git" / "index"))  # as in a hook
    kept = (repository / ".git" / "index").read_bytes()
    names = sorted(path.name for path in (repository / ".git").iterdir())
    ran.unlink(missing_ok=True)
    with tree_of("HEAD~1", repository) as tree:
        assert (tree.path / "inner" / "my.py").read_text() == "one"
        assert "+changes" in current_tree(repository).label
    assert not ran.exists(), ran.read_text()
    assert (repository / ".git" / "index").read_bytes() == kept
    assert sorted(path.name for path in (repository / ".git").iterdir()) == names


def test_a_filter_runs_where_the_revisions_attributes_name_it_and_nowhere_else(
    repository, tmp_path, monkeypatch
):
    upper = executable(tmp_path / "upper", "tr a-z A-Z")
    git(repository, "config", "filter.loud.smudge", str(upper))
    git(repository, "config", "filter.loud.clean", "cat")
    (repository / "inner" / "loud.py").write_text("loud")
    (repository / ".gitattributes").write_text("loud.py filter=loud\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "attributes")
    (repository / ".gitattributes").write_text("* filter=loud\n")  # only in the working folder
    attributes = tmp_path / "attributes"
    attributes.write_text("* filter=loud\n")
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.attributesFile")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(attributes))
    with tree_of("HEAD", repository) as tree:
        assert (tree.path / "inner" / "loud.py").read_text() == "LOUD"
        assert (tree.path / "inner" / "my.py").read_text() == "three"


def test_a_filter_that_fails_is_told(repository):
    git(repository, "config", "filter.bad.smudge", "echo no such key >&2; false")
    git(repository, "config", "filter.bad.required", "true")
    (repository / ".gitattributes").write_text("*.py filter=bad\n")
    git(repository, "add", ".gitattributes")
    git(repository, "commit", "-qm", "attributes")
    refused(CannotRunError, r"git cannot check out HEAD: .*bad", repository)


def allow_files(monkeypatch):
    """Let git take submodules from folders."""
    for name, value in {"COUNT": "1", "KEY_0": "protocol.file.allow", "VALUE_0": "always"}.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)


@pytest.fixture(scope="module")
def repositories(tmp_path_factory):
    """A folder of repositories; ``top`` has a submodule that has one, and a link out of it."""
    folder = tmp_path_factory.mktemp("repositories")
    with pytest.MonkeyPatch.context() as patch:
        allow_files(patch)
        for name in ("deep", "sub", "beside", "top"):
            (folder / name).mkdir()
            git(folder / name, "init", "-q")
            (folder / name / "my.py").write_text(PLAIN)
            (folder / name / ".gitignore").write_text("ignored.py\nnested\n")
            git(folder / name, "add", "-A")
            git(folder / name, "commit", "-qm", "one")
        (folder / "top" / "link").symlink_to("../beside")
        for owner, part in (("sub", "deep"), ("top", "sub")):
            git(folder / owner, "submodule", "-q", "add", f"../{part}", part)
            git(folder / owner, "submodule", "-q", "update", "--init", "--recursive")
            git(folder / owner, "add", "-A")
            git(folder / owner, "commit", "-qm", "two")
    return folder


@pytest.fixture
def with_submodule(repositories, tmp_path, monkeypatch):
    """A copy of ``top`` with changes in all of its parts."""
    allow_files(monkeypatch)
    top = shutil.copytree(repositories, tmp_path / "copy", symlinks=True) / "top"
    (top / "nested").mkdir()
    git(top / "nested", "init", "-q")
    slow = PLAIN.replace("s.softmax(-1)", "s.softmax(-1).softmax(-1).softmax(-1)")
    for name in ("sub/my.py", "sub/deep/my.py", "link/my.py", "ignored.py", "new.py", "sub/new.py"):
        (top / name).write_text(slow)
    (top / "nested" / "my.py").write_text(slow)
    return top


VERDICTS_OF_PLACES = {
    "sub/deep/my.py": "regressed", "link/my.py": "error", "ignored.py": "error",
    "nested/my.py": "error", "new.py": "new", "sub/new.py": "new",
}  # fmt: skip


def test_code_that_no_revision_has_is_no_pass_and_that_of_submodules_is_compared(
    with_submodule, monkeypatch
):
    monkeypatch.chdir(with_submodule)
    expected = {**VERDICTS_OF_PLACES, f"{with_submodule}/my.py": "error"}
    requests = [PointRequest(f"{name}:Attention", 8, 2, 4) for name in expected]
    cases = [Case(request, formulas=False) for request in requests]
    with current_tree() as head, tree_of("HEAD") as tree, tree as base:
        terms = CheckOptions(timed=False, formulas=False)
        report = check_against(cases, base, head, terms)
    records = report.of(CheckRecord)
    verdicts = [worst(r.verdict for r in records if r.case == case.name) for case in cases]
    assert dict(zip(expected, verdicts, strict=True)) == expected
    assert all(record.why for record in records if record.verdict == "error")


def test_a_submodule_is_checked_out_where_its_folder_was_removed(with_submodule):
    git(with_submodule, "submodule", "deinit", "-f", "sub")
    with tree_of("HEAD", with_submodule) as tree:
        assert (tree.path / "sub" / "my.py").read_text() == PLAIN
        assert (tree.path / "sub" / "deep" / "my.py").read_text() == PLAIN
        assert tree.checkout.submodules == {"sub": "", "sub/deep": ""}


def test_a_submodule_whose_commit_is_not_here_is_named_and_its_code_not_compared(with_submodule):
    git(with_submodule, "update-index", "--cacheinfo", f"160000,{'1' * 40},sub")
    git(with_submodule, "commit", "-qm", "a commit that was not fetched")
    with tree_of("HEAD", with_submodule) as tree:
        file = str(with_submodule / "sub" / "my.py")
        now = Counted(file=file, files=[file])
        sides = with_submodule, tree.path, tree.checkout
        why = why_incomparable(now, Counted(missing=True), *sides)
        assert "submodule sub at 111111111111 is not here" in why
        # it may be loaded by the case's code, which the baseline may have without it
        other = str(with_submodule / "my.py")
        both = replace(now, file=other, files=[other, file])
        assert why_incomparable(both, Counted(), *sides) == why
        assert not why_incomparable(replace(both, files=[other]), Counted(), *sides)


def test_a_folder_whose_submodules_are_empty_has_no_older_code(with_submodule):
    base = with_submodule.parent / "base"
    git(with_submodule, "worktree", "add", "-q", str(base), "HEAD")
    file = str(with_submodule / "sub" / "my.py")
    now, sides = Counted(file=file, files=[file]), (with_submodule, base, None)
    assert "is empty: type git submodule" in why_incomparable(now, Counted(missing=True), *sides)
    new = str(with_submodule / "new.py")
    assert not why_incomparable(Counted(file=new), Counted(missing=True), *sides)
    assert "both sides run" in why_incomparable(Counted(file=new), Counted(file=new), *sides)
    assert not why_incomparable(Counted(file=new), Counted(file=str(base / "my.py")), *sides)


def test_a_machine_without_git_and_a_broken_repository_are_told(repository, monkeypatch):
    (repository / ".git" / "config").write_text("[core")
    refused(CannotRunError, "bad config", repository)  # in git's words
    monkeypatch.setenv("PATH", str(repository))
    refused(CannotRunError, "git cannot be run here", repository)
    assert current_tree(repository).label == "working folder"
