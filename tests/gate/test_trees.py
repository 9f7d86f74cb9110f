"""The code to compare with: folders, git revisions, and what is neither."""

import subprocess

import pytest

from attnprof.errors import CannotRunError, RequestError
from attnprof.gate.trees import current_tree, tree_of


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


@pytest.mark.parametrize(("ref", "text"), [("HEAD", "two"), ("HEAD~1", "one")])
def test_a_revision_is_checked_out_beside_and_removed(repository, ref, text):
    with tree_of(ref, repository / "inner") as tree:
        assert (tree.path / "my.py").read_text() == text
        assert ref in tree.label
        assert tree.path != repository / "inner"
    assert not tree.path.exists()
    listed = subprocess.run(
        ["git", "worktree", "list"], cwd=repository, capture_output=True, text=True, check=True
    )
    assert len(listed.stdout.splitlines()) == 1
    assert (repository / "inner" / "my.py").read_text() == "three"


def test_a_worktree_goes_even_where_the_work_fails(repository):
    with pytest.raises(ZeroDivisionError), tree_of("HEAD", repository) as tree:
        raise ZeroDivisionError
    assert not tree.path.exists()


def test_a_folder_is_taken_as_it_is(repository, tmp_path):
    with tree_of(str(repository), tmp_path) as tree:
        assert tree.path == repository


def test_the_working_folder_says_that_it_differs(repository):
    assert "+changes" in current_tree(repository).label
    git(repository, "checkout", "-q", ".")
    assert "+changes" not in current_tree(repository).label


def test_what_is_neither_is_refused_with_advice(repository, tmp_path):
    with pytest.raises(RequestError, match="no git revision"), tree_of("no-such-ref", repository):
        pass
    with pytest.raises(RequestError, match="not in a git repository"), tree_of("HEAD", tmp_path):
        pass
    git(repository, "rm", "-rqf", "inner")
    git(repository, "commit", "-qm", "gone")
    (repository / "inner").mkdir()
    with (
        pytest.raises(RequestError, match="no folder inner"),
        tree_of("HEAD", repository / "inner"),
    ):
        pass


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
    own = tmp_path / "attributes"
    own.write_text("* filter=loud\n")
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.attributesFile")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(own))
    with tree_of("HEAD", repository) as tree:
        assert (tree.path / "inner" / "loud.py").read_text() == "LOUD"
        assert (tree.path / "inner" / "my.py").read_text() == "three"


def test_a_filter_that_fails_is_told(repository):
    git(repository, "config", "filter.bad.smudge", "echo no such key >&2; false")
    git(repository, "config", "filter.bad.required", "true")
    (repository / ".gitattributes").write_text("*.py filter=bad\n")
    git(repository, "add", ".gitattributes")
    git(repository, "commit", "-qm", "attributes")
    with (
        pytest.raises(CannotRunError, match=r"git cannot check out HEAD: .*bad"),
        tree_of("HEAD", repository),
    ):
        pass
