"""`attnprof history` from a folder to tables and figures."""

import pytest

from tests.gate.test_history import save, times


@pytest.fixture
def folder(tmp_path):
    found = tmp_path / "results"
    found.mkdir()
    for run, value in enumerate(times(5, 20, 10)):
        save(found, f"run{run:02}.json", value, 100 if run < 15 else 130, git=f"c{run:06}")
    return found


def test_the_table_has_the_change_points(attnprof, folder):
    ended = attnprof("history", (str(folder),))
    assert ended.code == 0
    assert "c000010" in ended.out
    assert "c000015" in ended.out
    assert "2 change points in 2 series of 20 runs" in ended.out


def test_json_has_every_run_and_markdown_the_changes(attnprof, folder):
    found = attnprof("history --format json", (str(folder),)).json
    assert found["command"] == "history"
    assert len(found["records"]) == 40
    page = attnprof("history --format markdown", (str(folder),)).out
    assert len(page.splitlines()) == 2 + 2
    assert len(attnprof("history --format csv --metric time", (str(folder),)).csv) == 20


def test_a_flat_history_says_so(attnprof, folder):
    ended = attnprof("history --case forward --metric time", (str(folder),))
    assert "1 change point in 1 series" in ended.out
    for path in sorted(folder.glob("*.json"))[8:]:
        path.unlink()
    flat = attnprof("history", (str(folder),)).out
    assert flat.startswith(
        "Nothing changed: 0 change points in 2 series of 8 runs.\nA series is one"
    )


def test_what_is_not_there_is_a_wrong_request(attnprof, folder, tmp_path):
    for words in (("--metric", "tim"), ("--case", "zzz"), ("--plot", "x.bmp")):
        ended = attnprof("history", (str(folder), *words))
        assert (ended.code, ended.out) == (2, "")
    assert attnprof("history", (str(tmp_path),)).code == 2


def test_a_note_names_what_was_left_out(attnprof, folder):
    (folder / "notes.json").write_text("{}")
    assert "left out notes.json" in attnprof("history", (str(folder),)).err


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_figure_is_drawn(attnprof, folder, tmp_path, suffix):
    figure = tmp_path / f"history.{suffix}"
    assert attnprof("history --plot", (str(figure), str(folder))).code == 0
    assert figure.stat().st_size > 5000
