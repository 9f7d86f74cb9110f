"""Whatever a file is, a command that reads it ends with 2 and one line, and leaves it as it is.

The functions that read get every content; every command gets one of them in turn.
"""

import json
import os
import signal
from itertools import product
from pathlib import Path

import pytest

from attnprof.cli.measurement import grids_from_file, suite_from_file
from attnprof.device.calibration import entries
from attnprof.errors import RequestError
from attnprof.gate.baselines import load_baseline
from attnprof.measure.request import Budget
from attnprof.measure.sweep import load_results, points_of
from attnprof.record import Report, files
from attnprof.verify.own_formulas import Source
from attnprof.verify.printed import Printed, rows_of
from tests.render.test_results import record

#: A command for each file that is read, with the suffix such a file has.
READERS = {
    "plot": ("plot {} -o figure.png", ".json"),
    "plot a sweep": ("plot {} -o figure.png", ".jsonl"),
    "plot ceilings": ("plot results.json --kind roofline --ceilings {} -o figure.png", ".json"),
    "baseline": ("check --baseline {} --no-time", ".json"),
    "accepted baseline": ("check --baseline {} --update --no-time", ".json"),
    "checked suite": ("check --suite {} --against HEAD", ".toml"),
    "recorded suite": ("baseline --suite {} -o new.json", ".toml"),
    "grid": ("sweep --grid {} -o new.jsonl", ".toml"),
    "journal": ("sweep --attention standard --seq 8 -o {}", ".jsonl"),
    "table": ("verify-formula --table {} standard", ".csv"),
    "calibration": ("calibrate --contended --seconds 0.01 --calibration {}", ".json"),
    "calibration of another device": (
        "predict --attention standard --seq 8 --on H9 --calibration {}", ".json",
    ),
    "configuration": ("derive torch.nn:Linear --config {} --phase forward", ".json"),
    "configuration, as TOML": ("derive torch.nn:Linear --config {} --phase forward", ".toml"),
    "model": ("model {} --seq 8 --phase forward", ".json"),
    "model, as TOML": ("model {} --seq 8 --phase forward", ".toml"),
}  # fmt: skip


def deep(opening, closing, count):
    return f"{opening * count}1{closing * count}"


SCHEMA = '"schema": "attnprof/1"'
REPORT = f'{{{SCHEMA}, "command": "sweep", "summary": {{}}, "environment": {{}}, "records": '
CONTENTS = {
    "binary": b"\x00\xff\xfe\x80" * 500,
    "utf-16": f"{REPORT}[]}}".encode("utf-16"),
    "latin-1": "name = 'é'".encode("latin-1"),
    "a NUL": b'a = "\x00"\n',
    "a list": b"[1, 2]",
    "a word": b"hello",
    "a line of JSON": b'{"a": 1}\n',
    "lists within lists": deep("[", "]", 100_000).encode(),
    "objects within objects": deep('{"a":', "}", 100_000).encode(),
    "tables within tables": ("[" + ".".join("a" * 50_000) + "]\n").encode(),
    "a long key": ("a." * 100_000 + "b = 1").encode(),
    "a deep value": f"case = {deep('[', ']', 5000)}\ngrid = {deep('[', ']', 5000)}".encode(),
    "a long number": b"9" * 5000,
    "a long number of TOML": b"case = " + b"9" * 5000,
    "deep records": (REPORT + deep("[", "]", 60) + "}").encode(),
    "no records": (REPORT + "7}").encode(),
    "records that are none": (REPORT + "[7]}").encode(),
    "NaN": (REPORT + "[NaN]}").encode(),
    "1e999": (REPORT + "[1e999]}").encode(),
    "a name twice": (REPORT + "[], " + SCHEMA + "}").encode(),
    "an unknown command": f'{{{SCHEMA}, "command": ["x"], "records": []}}'.encode(),
    "half a report": (REPORT + "[{").encode(),
    "unclosed quotes": b'formula,place\n"4*N,a\n',
    "half a journal": f'{{{SCHEMA}, "key": 5}}\n'.encode(),
}  # fmt: skip
#: What a reader of JSON itself has to refuse: whole JSON that is something else.
OF_ANOTHER_KIND = (
    "a list", "a line of JSON", "deep records", "no records", "records that are none",
    "an unknown command", "half a journal",
)  # fmt: skip
#: Functions that read a file, and its suffix.
READING = {
    Report.load: ".json", load_results: ".jsonl", grids_from_file: ".toml", entries: ".json",
    load_baseline: ".json", (lambda path: rows_of(path, Printed("", Source("standard")))): ".csv",
}  # fmt: skip
MEGABYTES = 50


def met(rows, columns):
    """Pairs: every row with one of the columns in turn."""
    return [(row, columns[place % len(columns)]) for place, row in enumerate(rows)]


@pytest.fixture(autouse=True)
def guarded(tmp_path):
    """There are results; what waits for ever is interrupted and so fails."""
    (tmp_path / "results.json").write_text(json.dumps(profile_report()))
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def profile_report(**fields):
    """A report of one measured point, as JSON, with other fields."""
    data = Report("profile", [record("standard", 8, width=8)]).to_dict()
    data["records"][0] |= fields
    return data


def refused(ended):
    assert ended.code == 2, ended.err
    assert ended.out == ""
    assert ended.err.startswith("attnprof: ")
    assert ended.err.count("\n") == 1
    assert "Traceback" not in ended.err


def run(attnprof, reader, name):
    command, _ = READERS[reader]
    return attnprof(tuple(name if word == "{}" else word for word in command.split()))


def refused_reading(read, path):
    """What is said of a file, in one line."""
    with pytest.raises(RequestError) as refusal:
        read(path)
    assert "\n" not in str(refusal.value), path
    return str(refusal.value)


@pytest.mark.parametrize("read", READING)
def test_nothing_is_read_from_a_file_of_something_else(tmp_path, read):
    path = tmp_path / f"given{READING[read]}"
    for content in CONTENTS.values():
        path.write_bytes(content)
        refused_reading(read, path)


def make_pipe(path):
    os.mkfifo(path)


def make_large(path):
    with path.open("wb") as stream:
        stream.truncate(300 * files.MIB if path.suffix == ".jsonl" else MEGABYTES * files.MIB)


KINDS = {
    "a pipe": make_pipe, "a folder": Path.mkdir, "50 MB": make_large,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a circle of links": lambda path: path.symlink_to(path.name),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_read_from_what_is_no_file_or_too_large(tmp_path, kind):
    for read, suffix in {Report.load: ".json", load_results: ".jsonl"}.items():
        KINDS[kind](tmp_path / f"given{suffix}")
        refused_reading(read, tmp_path / f"given{suffix}")


@pytest.mark.parametrize(
    ("reader", "given"),
    [*met(READERS, [*CONTENTS]), *met(READERS, [*KINDS]),
     *product(("configuration", "model"), OF_ANOTHER_KIND)],
)  # fmt: skip
def test_a_file_that_is_none_of_a_reader_s_is_refused_and_kept(attnprof, tmp_path, reader, given):
    path = tmp_path / f"given{READERS[reader][1]}"
    if given in KINDS:
        KINDS[given](path)
    else:
        path.write_bytes(CONTENTS[given])
    there = sorted(tmp_path.iterdir())
    refused(run(attnprof, reader, path.name))
    assert given in KINDS or path.read_bytes() == CONTENTS[given]
    assert sorted(tmp_path.iterdir()) == there


NAMES = {
    "300 characters": "n" * 300, "NUL": "a\0b", "no folder": "no/such/file", "control": "\x1b]0;x",
}  # fmt: skip


@pytest.mark.parametrize(
    ("reader", "name"),
    [("journal", "no folder"),  # with other names it is a new file
     *met([name for name in READERS if name not in {"calibration", "journal"}], [*NAMES])],
)  # fmt: skip
def test_a_name_that_no_file_has_is_refused(attnprof, tmp_path, reader, name):
    ended = run(attnprof, reader, NAMES[name] + READERS[reader][1])
    refused(ended)
    assert "\x1b" not in ended.err
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


@pytest.mark.parametrize(
    "command", ["plot reslts.json -o figure.png", "check --baseline reslts.json --no-time"]
)
def test_a_missing_file_names_one_of_nearly_its_name(attnprof, command):
    ended = attnprof(command)
    refused(ended)
    assert "did you mean results.json?" in ended.err


@pytest.mark.parametrize("command", [
    "history {}", "derive {}:Mine", "profile --seq 8 --attention {}:Mine", "cost -o {}",
    "crossover --plot {}.png", "check --baseline results.json --junit {}",
    "check --against {} --seq 8 --attention standard", "crossover {}:A {}:B",
    "reproduce 002 --reports {}", "calibrate --calibration {}",
])  # fmt: skip
def test_long_names_of_outputs_and_modules_are_refused_as_well(attnprof, command):
    words = tuple(word.replace("{}", f"{NAMES['300 characters']}.py") for word in command.split())
    refused(attnprof(words))


def test_a_folder_of_hostile_results_has_no_history(attnprof, tmp_path):
    for place, content in enumerate(CONTENTS.values()):
        (tmp_path / f"r{place}.json").write_bytes(content)
    make_pipe(tmp_path / "pipe.json")
    make_large(tmp_path / "large.json")
    (tmp_path / "link.json").symlink_to("/dev/zero")
    (tmp_path / "1²3.json").write_text("{}")
    refused(attnprof("history ."))


MARKED = "\ufeff"


@pytest.mark.parametrize("reader", ["plot", "checked suite", "grid", "table", "journal"])
def test_a_byte_order_mark_is_taken_everywhere(attnprof, tmp_path, reader):
    given = {
        "plot": json.dumps(profile_report()),
        "checked suite": 'case = [{attention = "nobody", seq = 8}]',
        "grid": 'grid = [{attention = "nobody", seq = 8}]',
        "table": "formula,quantity\n4*N*d,nothing\n",
        "journal": f'{{{SCHEMA}, "key": "k/0", "record": 7}}\n',
    }[reader]
    said = []
    path = tmp_path / f"given{READERS[reader][1]}"
    for text in (given, MARKED + given):
        path.write_text(text, encoding="utf-8")
        ended = run(attnprof, "plot a sweep" if reader == "journal" else reader, path.name)
        said.append((ended.code, ended.err.replace("wrote figure.png\n", "")))
    assert said[0] == said[1]
    assert said[0][0] == (0 if reader == "plot" else 2)


WRONG = {
    "seq_len": [0, -1, 1.5, "8", None, True, [], {}],
    "params": [7, "x", [1], None],
    "times_s": ["x", [None], [-1.0], {"a": 1}, 3],
    "median_s": ["0.1", -1, [], {}],
    "mechanism": [None, 5, ["standard"]],
    "quantiles_s": [[1], {"p5": "x"}],
    "uncounted": [{"a": "b"}, [1]],
    "causal": [0, "no", None],
    "flops_formula": [1.5, -3, "9"],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_type_in_results_is_told_with_its_place(tmp_path, name):
    for value in WRONG[name]:
        data = profile_report(**{name: value})
        (tmp_path / "results.json").write_text(json.dumps(data))
        said = refused_reading(Report.load, tmp_path / "results.json")
        assert f"records[0]: {name} is" in said
        entry = {"schema": "attnprof/1", "key": "k/0", "record": data["records"][0]}
        (tmp_path / "r.jsonl").write_text(json.dumps(entry) + "\n")
        refused_reading(load_results, tmp_path / "r.jsonl")


def test_a_size_that_no_figure_has_room_for_is_refused(attnprof, tmp_path):
    data = profile_report(seq_len=10**120)
    entry = {"schema": "attnprof/1", "key": "k/0", "record": data["records"][0]}
    (tmp_path / "results.json").write_text(json.dumps(data))
    (tmp_path / "r.jsonl").write_text(json.dumps(entry) + "\n")
    for name in ("results.json", "r.jsonl"):
        refused(attnprof(f"plot {name} -o figure.png"))
    assert not (tmp_path / "figure.png").exists()


@pytest.mark.parametrize("name", ["records", "summary", "environment"])
def test_a_wrong_member_of_a_report_is_refused(tmp_path, name):
    for value in (None, 7, "x", [7], [[]]):
        (tmp_path / "results.json").write_text(json.dumps({**profile_report(), name: value}))
        refused_reading(Report.load, tmp_path / "results.json")


@pytest.mark.parametrize("line", [
    "set = 5", "set = {window = {a = 1}}", "arg = 5", "input = [1]", "causal = 'yes'",
    "seq = {a = 1}", "attention = [[1]]", "seq = [1979-05-27]", "batch = true",
    'seq = "1:99999:+1"\nbatch = "1:99999:+1"',
])  # fmt: skip
def test_a_wrong_type_in_a_grid_is_refused(tmp_path, line):
    rest = {"attention": 'attention = "standard"', "seq": "seq = 8"}
    field = line.split(" ")[0]
    text = "\n".join(["[[grid]]", *(text for key, text in rest.items() if key != field), line])
    path = tmp_path / "given.toml"
    path.write_text(text)
    refused_reading(lambda path: points_of(grids_from_file(path), Budget()), path)
    path.write_text(text.replace("grid", "case"))
    refused_reading(suite_from_file, path)


def test_ceilings_that_are_none_are_refused(tmp_path):
    named = {"name": "x", "threads": 1, "device": "cpu", "source": "s"}
    for content in (
        {}, [], {"ceilings": 7}, {"ceilings": [7]}, {"ceilings": [{"name": "x"}]},
        {"ceilings": [{**named, "flops_per_s": {"float32": "fast"}, "bytes_per_s": 1}]},
        {"ceilings": [{**named, "flops_per_s": {}, "bytes_per_s": 0}]},
    ):  # fmt: skip
        data = {"schema": "attnprof/1", **content} if isinstance(content, dict) else content
        (tmp_path / "c.json").write_text(json.dumps(data))
        refused_reading(entries, tmp_path / "c.json")
