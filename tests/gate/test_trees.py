"""The code to compare with: folders, git revisions, and what is neither."""

import subprocess

import pytest

from attnprof.errors import RequestError
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
