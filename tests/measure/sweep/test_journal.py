"""A results file loses nothing and doubles nothing, whatever cuts it off."""

import errno
import json
import os

import pytest

from attnprof.errors import CannotRunError, RequestError
from attnprof.measure.sweep.journal import Journal, read


def filled(path, count, start=0):
    with Journal(path) as journal:
        for i in range(start, start + count):
            journal.append(f"p{i}", {"record": {"n": i}})
    return path


def test_every_record_is_a_line_that_comes_back(tmp_path):
    path = filled(tmp_path / "r.jsonl", 3)
    assert [entry["key"] for entry in read(path)] == ["p0", "p1", "p2"]
    with Journal(path) as journal:
        assert journal.done == {"p0", "p1", "p2"}


def test_a_key_is_written_once(tmp_path):
    path = filled(tmp_path / "r.jsonl", 2)
    filled(path, 2)
    assert len(read(path)) == 2


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_last_line_is_dropped_and_written_again(tmp_path, cut):
    path = filled(tmp_path / "r.jsonl", 3)
    data = path.read_bytes()
    path.write_bytes(data[:-cut])
    assert len(read(path)) == 2
    filled(path, 3)
    assert [entry["key"] for entry in read(path)] == ["p0", "p1", "p2"]
    assert path.read_bytes() == data


def test_a_file_cut_inside_its_first_line_starts_anew(tmp_path):
    path = filled(tmp_path / "r.jsonl", 1)
    path.write_bytes(path.read_bytes()[:10])
    filled(path, 1)
    assert len(read(path)) == 1


def test_a_full_disk_keeps_what_was_there(tmp_path, monkeypatch):
    path = filled(tmp_path / "r.jsonl", 2)
    real = os.write

    def half(handle, data):
        return real(handle, data[: len(data) // 2])

    with Journal(path) as journal:
        monkeypatch.setattr(os, "write", half)
        with pytest.raises(CannotRunError, match="make room"):
            journal.append("p2", {"record": {}})
        monkeypatch.undo()
        journal.append("p3", {"record": {}})
    assert [entry["key"] for entry in read(path)] == ["p0", "p1", "p3"]


def test_a_failing_disk_says_why(tmp_path, monkeypatch):
    def fails(_handle):
        raise OSError(errno.EIO, "Input/output error")

    with Journal(tmp_path / "r.jsonl") as journal:
        monkeypatch.setattr(os, "fsync", fails)
        with pytest.raises(CannotRunError, match="Input/output"):
            journal.append("p0", {})
    assert read(tmp_path / "r.jsonl") == []


def test_two_writers_exclude_each_other(tmp_path):
    path = tmp_path / "r.jsonl"
    with Journal(path), pytest.raises(RequestError, match="another process"), Journal(path):
        pass
    with Journal(path):
        pass


@pytest.mark.parametrize("text", ["hello\n", '{"a": 1}\n', "[]\n", "hello", "a,b\n1,2\n"])
def test_another_file_is_not_touched(tmp_path, text):
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(RequestError), Journal(path):
        pass
    assert path.read_text() == text


def test_a_folder_that_is_not_there_is_said(tmp_path):
    with pytest.raises(RequestError, match="folder"), Journal(tmp_path / "no" / "r.jsonl"):
        pass


def test_numbers_without_json_form_are_refused(tmp_path):
    with Journal(tmp_path / "r.jsonl") as journal, pytest.raises(ValueError, match="JSON"):
        journal.append("p0", {"x": float("nan")})
    assert json.loads("[]") == read(tmp_path / "r.jsonl")


PREFIX = '{"schema": "attnprof/1", "key": '


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}', '{"schema": "attnprof/1", "command": "cost", "records": []}', "{", '{"schema"',
        '{"a": 1}\n{"schema": "attnprof/1", "key": "x"', PREFIX + "5}\n",
        f'{{"x": 1, {PREFIX[1:]}"k"}}',
        "x\n" + PREFIX + '"k"}\n', PREFIX + '"k"}\n' + '{"a": 1}\nx',
    ],
)  # fmt: skip
def test_nothing_is_cut_from_a_file_whose_first_line_is_no_journal_s(tmp_path, text):
    path = tmp_path / "one.json"
    path.write_text(text)
    with pytest.raises(RequestError), Journal(path):
        pass
    with pytest.raises(RequestError):
        read(path)
    assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_what_is_cut_is_kept_beside(tmp_path, cut):
    path = filled(tmp_path / "r.jsonl", 3)
    data = path.read_bytes()
    for number in (1, 2):
        path.write_bytes(data[:-cut])
        filled(path, 3)
        kept = tmp_path / f"r.jsonl.torn{number}"
        assert data[:-cut].endswith(b"\n" + kept.read_bytes())
        assert path.read_bytes() == data


def test_a_torn_line_that_cannot_be_kept_is_not_cut(tmp_path, monkeypatch):
    path = filled(tmp_path / "r.jsonl", 2)
    path.write_bytes(path.read_bytes()[:-5])
    data, real = path.read_bytes(), os.open

    def full(name, *how):
        if ".torn" in str(name):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(name, *how)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(CannotRunError, match="torn"), Journal(path):
        pass
    assert path.read_bytes() == data


def test_a_byte_order_mark_before_a_journal_stays(tmp_path):
    path = filled(tmp_path / "r.jsonl", 1)
    path.write_bytes("\ufeff".encode() + path.read_bytes())
    filled(path, 2)
    assert [entry["key"] for entry in read(path)] == ["p0", "p1"]
    assert path.read_bytes().startswith("\ufeff".encode())
