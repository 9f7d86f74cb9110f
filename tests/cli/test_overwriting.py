"""Nobody's file is lost: what attnprof did not write needs --force, and an input never goes."""

import contextlib
import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from attnprof.cli.app import main
from attnprof.cli.program import COMMANDS
from attnprof.errors import RequestError
from attnprof.record import Report, record_kinds, write_whole
from attnprof.record.recognition import is_ours, note_output, one_command, writers_of
from attnprof.render.formats import render_csv, render_markdown
from tests.cli.test_hostile_files import met, profile_report
from tests.structure.command_flags import flags_of

MODULE = """
from torch import nn

class Mine(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.linear = nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.linear(x)
"""
#: Every flag that writes, of every command; what is checked is checked before anything is made.
WRITERS = {
    "list": "list -o {}",
    "cost": "cost --seq 8 -o {}",
    "cost, as JSON": "cost --seq 8 -f json -o {}",
    "cost --plot": "cost -a gqa --seq 64,128 --ranks 2 --plot {}.png",
    "compare": "compare --seq 8 --attention standard,linear -o {}",
    "crossover": "crossover -o {}",
    "crossover --plot": "crossover --plot {}.png",
    "heads": "heads -o {}",
    "heads --plot": "heads --plot {}.svg",
    "heatmap": "heatmap -o {}",
    "heatmap --plot": "heatmap --plot {}.pdf",
    "heatmap beside": "heatmap --plot {}.png beside",
    "explore": "explore linear -o {}",
    "derive": "derive my.py:Mine -o {}",
    "derive, as HTML": "derive my.py:Mine --format html -o {}",
    "model": "model 001-lm-dot -o {}",
    "fit": "fit llama-3.2-1b --memory 8GB -o {}",
    "fit, as HTML": "fit llama-3.2-1b --memory 8GB --format html -o {}",
    "verify-formula": "verify-formula 4*N standard -o {}",
    "profile": "profile --attention standard --seq 8 -o {}",
    "tradeoff": "tradeoff --attention linear --seq 8 --no-time -o {}",
    "tradeoff --plot": "tradeoff --attention linear --seq 8 --no-time --plot {}.png",
    "sweep": "sweep --attention standard --seq 8 -o {}",
    "sweep, as CSV": "sweep --attention standard --seq 8 -o {}.csv",
    "sweep, the journal": "sweep --attention standard --seq 8 -o {}.csv journal",
    "plot": "plot results.json -o {}.png",
    "calibrate": "calibrate --contended --dtype float32 --seconds 0.01 -o {}",
    "calibrate --calibration": "calibrate --contended --seconds 0.01 --calibration {}",
    "predict": "predict --attention standard --seq 8 --on H100 -o {}",
    "recommend": "recommend --seq 8 --on H100 -o {}",
    "reproduce": "reproduce 002 -o {}",
    "reproduce, as HTML": "reproduce 002 --format html -o {}",
    "reproduce --plot": "reproduce 004 --figure 1 --plot {}.png",
    "baseline": "baseline --attention standard --seq 8 --no-time -o {}",
    "check": "check --baseline results.json -o {}",
    "check --junit": "check --baseline results.json --junit {}",
    "check --badge": "check --baseline results.json --badge {}",
    "check --summary": "check --baseline results.json --summary {}",
    "check --update": "check --baseline {} --update",
    "history": "history . -o {}",
    "history --plot": "history . --plot {}.png",
    "doctor": "doctor -o {}",
}  # fmt: skip
PRECIOUS = {
    "words": b"my notes\n",
    "a line of JSON": b'{"a": 1}\n',
    "JSON without an end of line": b'{"schema": "somebody/1", "key": "x"}',
    "a table": b"name,value\nx,1\n",
    "code": MODULE.encode(),
    "a page": b"# attnprof\n\n| case | why |\n| --- | --- |\n",
    "bytes": bytes(range(256)),
    "a picture": b"\x89PNG\r\n\x1a\n" + b"Software\0Matplotlib" * 9,
}  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text(MODULE)
    (tmp_path / "results.json").write_text(json.dumps(profile_report()))


def words_and_file(writer, name="mine"):
    """A command, and the file it is about to write."""
    *words, last = WRITERS[writer].split()
    suffix = None
    if last in ("beside", "journal"):
        suffix, last = {"beside": ".csv", "journal": ".jsonl"}[last], words.pop()
    words = [word.replace("{}", name) for word in (*words, last)]
    written = next(word for word in words if word.startswith(name))
    return tuple(words), Path(written).with_suffix(suffix) if suffix else Path(written)


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(("writer", "content"), met(WRITERS, [*PRECIOUS]))
def test_a_file_of_somebody_s_is_kept(attnprof, tmp_path, writer, content):
    words, path = words_and_file(writer)
    path.write_bytes(PRECIOUS[content])
    before = files_of(tmp_path)
    ended = attnprof(words)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.count("\n") == 1
    assert str(path) in ended.err
    assert files_of(tmp_path) == before


#: What attnprof wrote, the flag by which it may be written again without --force, and by which
#: commands.
WRITTEN = {
    "a calibration": (
        '{"schema": "attnprof/1", "ceilings": []}\n', "--calibration", {"calibrate"}
    ),
    "a report of this reader's": (
        "text\n\n<!-- attnprof reproduce -->\n", "--output", {"reproduce"}
    ),
    "a table of results": (
        render_csv(Report("profile", [record_kinds()["profile"]()])), "--output",
        {"profile", "sweep"},
    ),
    "a page for a comment": ("<!-- attnprof-check -->\n### x\n", "--summary", {"check"}),
    "a badge": (
        '{"schemaVersion": 1, "label": "attnprof", "message": "x"}', "--badge", {"check"}
    ),
    **{
        f"a report of {kind}": (
            Report(kind, [record_kinds()[kind]()]).to_json(), "--output", {kind.split()[0]}
        )
        for kind in record_kinds()
    },
}  # fmt: skip


@pytest.mark.parametrize("content", WRITTEN)
def test_a_file_of_ours_is_overwritten_for_its_own_purpose_alone(content, tmp_path):
    text, own_flag, owners = WRITTEN[content]
    (tmp_path / "x").write_text(text)
    for command, flag in product(COMMANDS, {own_flag, "--output"}):
        with one_command(command=command):
            may = command in owners and own_flag in (flag, "--summary")
            with contextlib.nullcontext() if may else pytest.raises(RequestError):
                note_output(tmp_path / "x", flag, force=False)
            note_output(tmp_path / "x", flag, force=True)


def test_every_command_writes_and_takes_force():
    written = {line.split()[0] for line in WRITERS.values()}
    assert written == set(COMMANDS)
    assert [command for command in COMMANDS if "--force" not in flags_of(command)] == []


INPUTS = {
    "the code": "derive my.py:Mine -o my.py",
    "the code, by its module": "derive my:Mine -o my.py",
    "one of two": "crossover standard my.py:Mine -o my.py",
    "code that is measured": "profile --attention standard,my.py:Mine --seq 8 -o my.py",
    "code that is swept": "sweep --attention my.py:Mine --seq 8 -o my.py",
    "code that is checked": "check --attention my.py:Mine --seq 8 --against . --junit my.py",
    "code of a suite": "check --suite suite.toml --against . --summary my.py",
    "a suite": "check --suite suite.toml --against . -o suite.toml",
    "a grid": "sweep --grid suite.toml -o suite.toml",
    "a table": "verify-formula --table table.csv standard -o table.csv",
    "a baseline": "check --baseline base.json -o base.json",
    "a baseline, as XML": "check --baseline base.json --junit base.json",
    "a link": "derive my.py:Mine -o link.py",
    "a second name": "derive my.py:Mine -o hard.py",
    "a link to the code": "derive link.py:Mine -o my.py",
    "a result": "history results -o results/a.json",
    "results as a figure": "plot results.png -o results.png",
}  # fmt: skip


@pytest.mark.parametrize("name", INPUTS)
def test_an_input_is_never_overwritten(attnprof, tmp_path, name):
    (tmp_path / "suite.toml").write_text(
        'case = [{attention = "my.py:Mine", seq = 8}]\ngrid = [{attention = "my.py:Mine", seq = 8}]'
    )
    (tmp_path / "table.csv").write_text("formula\n4*N*d\n")
    (tmp_path / "link.py").symlink_to("my.py")
    os.link(tmp_path / "my.py", tmp_path / "hard.py")
    base = Report("baseline", [], {"baseline_schema": 2, "fingerprint": {}}).to_json()
    (tmp_path / "base.json").write_text(base)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "a.json").write_text(base)
    (tmp_path / "results.png").write_bytes((tmp_path / "results.json").read_bytes())
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
    ended = attnprof(INPUTS[name], "--force")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.count("\n") == 1
    assert {path: path.read_bytes() for path in before} == before
    assert "reads it" in ended.err


@pytest.mark.parametrize("line", [
    "cost --seq 8 -f json -o out", "cost --seq 8 -f csv -o out",
    "cost --seq 8 -f markdown -o out", "plot results.json -o out.svg",
    "plot results.json -o out.pdf", "plot results.json -o out.png",
    "heatmap --seq 8,16 --d-model 8,16 --plot out.png -o out.csv",
    "reproduce --claim 004-EQ6 --format html -o out",
    "reproduce --claim 004-EQ6 -f markdown -o out",
])  # fmt: skip
def test_what_attnprof_wrote_is_known_and_written_again(attnprof, tmp_path, line):
    assert attnprof(line).code < 2
    made = list(tmp_path.glob("out*"))
    assert made
    assert all(writers_of(path) & {line.split()[0], "figure"} for path in made)
    if line.endswith((".svg", "-f csv -o out")):
        assert attnprof(line).code == 0


@pytest.mark.parametrize("command", ["list", "cost --seq 8 --latex"])
def test_a_table_or_latex_file_is_known_again_by_its_last_line(attnprof, command, tmp_path):
    path = tmp_path / "out.txt"
    for _ in range(2):
        assert attnprof(f"{command} -o {path}").code == 0
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[-1].removeprefix("% ") == f"Written by attnprof {command.split()[0]}."
    assert lines[-1].startswith("% ") is ("--latex" in command)
    path.write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")
    assert attnprof(f"{command} -o {path}").code == 2


@pytest.mark.parametrize("kind", record_kinds())
def test_headers_of_every_kind_of_record_are_known(tmp_path, kind):
    made = record_kinds()[kind]
    full = Report(kind, [made(**{name: "x" for name, _ in made.columns()})])
    for text in (render_csv(Report(kind, [made()])), render_markdown(full)):
        (tmp_path / "x").write_text(text, newline="")
        assert is_ours(tmp_path / "x")


@pytest.mark.parametrize("text", [
    "", '{"schema": "attnprof/1", "ceilings": []}\n', "<!-- attnprof-check -->\n### x\n",
    "# x\n\ntext\n\n<!-- attnprof derive -->\n",
    "\ufeffclaim,document,place,says,published,ours\n",
])  # fmt: skip
def test_marks_are_known(tmp_path, text):
    path = tmp_path / "x"
    path.write_text(text)
    assert is_ours(path)


@pytest.mark.parametrize("text", [
    " ", "attnprof", '{"a": {"schema": "attnprof/1", "command": "cost"}}', "[]",
    '{"schema": "attnprof/1", "key": "k/0"}\n', "mechanism,notes\n", "mechanism\n",
    "| mechanism | mine |\n", "see <!-- attnprof derive --> there\n",
    '{"schema": "attnprof/1"}', *PRECIOUS.values(),
])  # fmt: skip
def test_what_only_looks_like_it_is_not(tmp_path, text):
    path = tmp_path / "x"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert not is_ours(path)


def test_a_sweep_s_results_are_kept_and_force_overwrites_and_begins_a_sweep_anew(
    attnprof, tmp_path
):
    path = tmp_path / "out"
    path.write_text('{"schema": "attnprof/1", "key": "k/0", "record": {}}\n')
    assert "sweep's results" in attnprof("cost --seq 8 -f json -o out").err
    assert attnprof("cost --seq 8 -f json -o out --force").code == 0
    assert Report.load(path).command == "cost"
    (tmp_path / "s.jsonl").write_text("mine")
    words = "sweep --attention standard --seq 8 --d-model 8 --heads 2 --samples 1 --in-process"
    quick = " --min-time 0 --max-time 0.1 -o s.jsonl --force"
    assert attnprof(words.replace("standard", "nobody") + quick).code == 2
    assert (tmp_path / "s.jsonl").read_text() == "mine"
    assert attnprof(words + quick).code == 0
    lines = (tmp_path / "s.jsonl").read_bytes()
    assert attnprof(words + quick).code == 0
    assert (tmp_path / "s.jsonl").read_bytes() == lines


def test_two_outputs_are_two_files(attnprof, tmp_path):
    for line in ("crossover --plot x.png -o x.png", "check --baseline results.json --junit x -o x"):
        ended = attnprof(line)
        assert (ended.code, list(tmp_path.glob("x*"))) == (2, [])
    assert attnprof("heatmap --plot h.png -o h.csv -f json").code == 2


def test_a_folder_of_reports_is_written_again_and_another_is_kept(attnprof, tmp_path):
    assert attnprof("reproduce 002 --reports out").code == 0
    assert all(is_ours(path) for path in (tmp_path / "out").rglob("*.*"))
    for name in ("reproduction.md", "002/README.md", "002/claims.csv"):
        path = tmp_path / "out" / name
        before = path.read_bytes()
        path.write_text("mine")
        ended = attnprof("reproduce 002 --reports out")
        assert (ended.code, path.read_text()) == (2, "mine")
        path.write_bytes(before)
    (tmp_path / "out" / "002" / "table77.csv").write_text("mine")
    assert attnprof("reproduce 002 --reports out").code == 2


def test_a_file_keeps_its_mode_its_links_and_its_neighbours(tmp_path):
    target = tmp_path / ("n" * 255)
    target.write_text("")
    target.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(target)
    write_whole(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o640
    assert {path.name for path in tmp_path.iterdir()} >= {"link", target.name, "my.py"}
    assert not list(tmp_path.glob(".attnprof*"))


def test_a_file_that_came_since_is_kept(tmp_path, capsys, monkeypatch):
    import attnprof.cli.list as command

    monkeypatch.setattr(command, "_plugins", lambda: (tmp_path / "x").write_text("mine") and [])
    with pytest.raises(SystemExit) as ended:
        main(["list", "-f", "csv", "-o", "x"])
    assert ended.value.code == 2
    assert (tmp_path / "x").read_text() == "mine"
    assert "cannot overwrite" in capsys.readouterr().err


def test_a_pipe_that_nobody_reads_does_not_wait_for_ever(attnprof, tmp_path, monkeypatch):
    monkeypatch.setattr("attnprof.record.files.PATIENCE_S", 0.1)
    os.mkfifo(tmp_path / "pipe")
    assert attnprof("list -f csv -o pipe").code == 2


def test_standard_output_by_name_is_written_to():
    line = [sys.executable, "-m", "attnprof", "list", "-f", "csv", "-o", "/dev/stdout"]
    ended = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("mechanism,")


def test_the_library_writes_what_it_is_told(tmp_path):
    (tmp_path / "x.json").write_text("mine")
    Report("cost", []).save(tmp_path / "x.json")
    assert Report.load(tmp_path / "x.json").command == "cost"
