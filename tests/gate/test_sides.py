"""Real processes: they build, time, count; what crashes or hangs is an answer, not the end."""

import json

import pytest

from attnprof.gate import trees
from attnprof.gate.baselines import load_baseline
from attnprof.gate.check import check_against, check_baseline, record_baseline
from attnprof.gate.counts import Case
from attnprof.gate.rules import CheckOptions
from attnprof.gate.trees import RunningTree, TreeError
from attnprof.measure.request import PointRequest
from attnprof.processes.progress import Progress, Step, waiting
from attnprof.record import CheckRecord
from tests.hostile import copied

FINE = """
from torch import nn


class Att(nn.Module):
    def forward(self, x):
        print("noise on stdout")
        return x @ x.transpose(-1, -2) @ x
"""


def request(name):
    params = {"args": [], "inputs": ["x: B, N, h*d"]}
    return PointRequest(f"{name}.py:Att", 32, 2, 8, params=params, threads=1)


MODULES = """
from torch import nn


class Layer(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.inner = nn.Linear(d_model, d_model)
        self.outer = nn.Linear({width}, d_model)

    def forward(self, x):
        return self.outer(self.inner(x))


class Masked(Layer):
    def forward(self, x, mask=None):
        {checked}
        return self.inner(x)


class Tokens(nn.Embedding):
    def __init__(self):
        super().__init__(10, 8)


class Broken(nn.Module):
    def forward(self, x):
        raise ValueError("the shape (3, 4) of input x is wrong")
"""


@pytest.fixture(scope="module")
def both_sides(tmp_path_factory):
    sides = []
    for name, width, checked in (
        ("old", "d_model", "pass"), ("new", "d_model + 1", "assert mask is not None, 'a mask'"),
    ):  # fmt: skip
        folder = tmp_path_factory.mktemp(name)
        (folder / "m.py").write_text(MODULES.format(width=width, checked=checked))
        sides.append(RunningTree(folder, name))
    with sides[0], sides[1]:
        yield sides


COUNTS = CheckOptions(timed=False, formulas=False)


def case_of(name):
    return Case(PointRequest(f"m.py:{name}", 32, 2, 8, threads=1), timed=False, formulas=False)


def counted(both_sides, name):
    """Verdict and reason of a case of both sides; what was told meanwhile."""
    work = Progress(Step("checking"))
    with waiting(work):
        report = check_against([case_of(name)], *both_sides, COUNTS)
    (first, *_) = report.of(CheckRecord)
    return first.verdict, first.why, work


#: Code that runs no more, and how the reason begins.
BREAKS = [("Layer", "RuntimeError: "), ("Masked", "AssertionError: a mask (m.py:17)")]


@pytest.mark.parametrize(("name", "begins"), BREAKS)
def test_code_that_fails_where_the_baseline_runs_is_told_at_once(both_sides, name, begins):
    verdict, why, _ = counted(both_sides, name)
    assert verdict == "error"
    assert why.startswith(begins)
    assert why.count(begins) == 1
    assert f"m.py:{name} does not run with x: B, N, h*d; no other inputs were tried" in why
    assert "old runs with these inputs" in why


@pytest.fixture(scope="module")
def recorded(both_sides, tmp_path_factory):
    """A file with what the old code counts."""
    path = tmp_path_factory.mktemp("recorded") / "baseline.json"
    cases = list(map(case_of, ("Layer", "Masked", "Tokens")))
    record_baseline(cases, both_sides[0], COUNTS).save(path)
    return path


def checked_beside(path, both_sides, name):
    """Verdict and reason of a case of the new code beside a file; what was told meanwhile."""
    stored, work = load_baseline(path), Progress(Step("checking"))
    cases = [case for case in stored.cases if name in case.name]
    with waiting(work):
        report = check_baseline(cases, stored, both_sides[1], CheckOptions(timed=False))
    (first, *_) = [record for record in report.of(CheckRecord) if name in record.case]
    return first.verdict, first.why, work


@pytest.mark.parametrize(("name", "begins"), BREAKS)
def test_code_that_fails_where_a_file_says_that_it_ran_is_told_at_once(
    both_sides, recorded, name, begins
):
    verdict, why, work = checked_beside(recorded, both_sides, name)
    assert verdict == "error"
    assert why.startswith(begins)
    assert why.endswith("no other inputs were tried; the baseline runs with these inputs")
    assert work.news.empty()  # no others were tried


@pytest.mark.parametrize("name", ["Tokens", "Masked"])
def test_other_inputs_are_tried_where_a_file_does_not_say_that_the_first_ran(
    both_sides, recorded, tmp_path, name
):
    """Of what ran with others, and of a file that another version wrote."""
    data = json.loads(recorded.read_text())
    assert all("Tokens" not in case for case in data["summary"]["as_guessed"])
    if name != "Tokens":
        data["summary"]["fingerprint"]["attnprof"] = "0.1"
    path = tmp_path / "other.json"
    path.write_text(json.dumps(data))
    verdict, _, work = checked_beside(path, both_sides, name)
    assert verdict == ("ok" if name == "Tokens" else "error")
    assert work.news.get(timeout=0).startswith(f"trying other inputs for m.py:{name}[")


def test_other_inputs_are_tried_where_neither_side_runs_with_the_first(both_sides):
    verdict, why, work = counted(both_sides, "Tokens")
    assert (verdict, why) == ("ok", "")
    assert work.news.get(timeout=0).startswith("trying other inputs for m.py:Tokens[")


def test_what_runs_with_no_inputs_is_told_in_its_own_words_first(both_sides):
    verdict, why, _ = counted(both_sides, "Broken")
    assert verdict == "error"
    assert why.startswith("ValueError: the shape (3, 4) of input x is wrong (m.py:28): m.py:Broken")


def test_a_case_that_hangs_is_named_with_its_side_and_its_end(both_sides):
    work = Progress(Step("checking"))
    with waiting(work):
        counted_in = both_sides[1]
        case = Case(request("hangs_in_c"), timed=False, formulas=False)
        copied(counted_in.path, ["hangs_in_c"])
        patient, counted_in._limit_s = counted_in._limit_s, 1.0
        report = record_baseline([case], counted_in, COUNTS)
        counted_in._limit_s = patient
    assert "no answer within 1 s" in report.records[0].error
    assert work.step.text == f"counting {case.name} in new"
    assert work.step.limit_s == 1.0


# -- from here on servers are interpreters of their own ----------------------------------------
@pytest.fixture(scope="module")
def side(tmp_path_factory, fresh_servers):  # noqa: ARG001 - in real processes
    tree = tmp_path_factory.mktemp("tree")
    (tree / "fine.py").write_text(FINE)
    copied(tree, ["crashes", "raises_more", "hangs_in_c"])
    with RunningTree(tree, "the tree") as running:
        yield running


def opened(side, name):
    side.ask_open(request(name))
    return side.opened()


def test_blocks_are_timed(side):
    seconds = opened(side, "fine")
    assert seconds > 0
    processor, wall = side.block(20)
    assert processor > 0
    assert wall > 0
    side.close()


@pytest.mark.parametrize(("name", "said"), [
    ("crashes", "SIGSEGV"), ("raises_more", "of no use"),
])  # fmt: skip
def test_a_crash_is_told_and_survived(side, name, said):
    with pytest.raises(TreeError, match=said):
        opened(side, name)
    side.close()
    assert opened(side, "fine") > 0
    side.close()


def test_what_does_not_exist_is_missing(side):
    with pytest.raises(TreeError) as caught:
        opened(side, "nowhere")
    assert caught.value.missing
    side.close()


def test_what_hangs_is_ended_and_the_side_starts_again(side, monkeypatch):
    opened(side, "fine")
    side.close()
    monkeypatch.setattr(trees, "LIMIT_S", 1.0)
    with pytest.raises(TreeError, match="no answer within 1 s"):
        opened(side, "hangs_in_c")
    monkeypatch.setattr(trees, "LIMIT_S", 100.0)
    assert opened(side, "fine") > 0
    side.close()
