"""Run the command line in this process and keep what it wrote."""

import csv
import io
import json
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from attnprof.cli.app import main


@dataclass
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def csv(self):
        return list(csv.DictReader(io.StringIO(self.out)))


@pytest.fixture
def attnprof(capsys, monkeypatch, tmp_path):
    """A function that runs ``attnprof ARGUMENTS`` in ``tmp_path`` and returns what came out.

    Arguments are split at spaces; the words of a tuple are taken as they are.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*arguments: str | tuple[str, ...]) -> Ended:
        words = (text if isinstance(text, tuple) else text.split() for text in arguments)
        with pytest.raises(SystemExit) as ended:
            main([word for group in words for word in group])
        captured = capsys.readouterr()
        code = ended.value.code
        return Ended(0 if code is None else code, captured.out, captured.err)

    return run


@pytest.fixture(scope="module")
def answers():
    """What commands of a module printed."""
    return {}


@pytest.fixture
def answered(attnprof, answers):
    """The same function, which runs a command line once for all tests of a module."""

    def run_once(*arguments):
        if arguments not in answers:
            answers[arguments] = attnprof(*arguments)
        return answers[arguments]

    return run_once


@contextmanager
def derived_once(module):
    """A module's ``derived`` derives a request once, whatever is asked or shown of it."""
    derived, made = module.derived, {}

    def kept(target, phases, at=None, **more):
        key = target.name, *target.spelled_inputs, str((target.notes, target.numbers, phases, at))
        if more or module.derived is not kept:  # kept by a file that was imported meanwhile
            return derived(target, phases, at, **more)
        if key not in made:
            made[key] = derived(target, phases, at)
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "derived", kept)
        yield
