"""What is frozen of commands is what they answer, without what changes by itself."""

import argparse

from attnprof.cli.program import COMMANDS
from tests.frozen import commands, derivations, freeze


def test_readme_is_read_for_every_command_that_there_is():
    written = {line.split()[1] for line in commands.WRITTEN.findall(commands.README)}
    assert {*COMMANDS} <= written


def test_numbers_of_an_answer_are_kept_and_its_environment_is_not():
    answer = {"environment": {"cpu": "x"}, "records": [{"flops": 7, "seconds": 0.2, "note": "a"}]}
    assert commands.without_what_changes(answer) == {
        "environment": "dict",
        "records": [{"flops": 7, "seconds": "float", "note": "a"}],
    }
    assert commands.shape(answer["records"]) == [
        {"flops": "number", "seconds": "number", "note": "str"}
    ]


def test_a_text_is_kept_without_folders_times_and_dates(tmp_path):
    text = f"wrote {tmp_path}/a.json in 1.25 s at 2026-01-02T03:04:05+00:00; 4.34 G FLOPs"
    kept = commands.plain(text, tmp_path)
    assert kept == "wrote FOLDER/a.json in TIME at DATE; 4.34 G FLOPs"


def test_a_changed_answer_ends_with_exit_code_1_and_is_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(freeze, "files", lambda _: [("a.txt", "one\ntwo\n"), ("b.txt", "three\n")])
    arguments = argparse.Namespace(folder=tmp_path)
    assert freeze.dump(arguments) == 0
    assert freeze.compare(arguments) == 0
    (tmp_path / "a.txt").write_text("one\n2\n")
    assert freeze.compare(arguments) == 1
    assert {"-2", "+two", "1 of 2 files as before"} <= {*capsys.readouterr().out.splitlines()}


def test_derivations_have_names_of_their_own_and_every_way_of_asking():
    names = derivations.cases()
    assert len(names) == len(derivations.MECHANISMS) + len(derivations.WRITTEN) + len(
        derivations.FOREIGN
    ) + len(derivations.MODELS)
