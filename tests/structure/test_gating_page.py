"""The page on gating, and its workflow, name what is there."""

import inspect
import re
from pathlib import Path

import yaml

from attnprof.cli.measurement import suite_from_file
from attnprof.gate.counts import count
from attnprof.gate.in_tests import TestGate, request_for
from attnprof.gate.plugin import DEFAULT
from attnprof.gate.rules import POLICIES, RULES, VERDICTS, exit_code
from attnprof.measure.request import PointRequest
from attnprof.record import CheckRecord, Report
from attnprof.render.gate import MOST_ANNOTATIONS as MOST
from attnprof.render.gate import render_junit
from attnprof.render.tables.check import MARKER
from tests.structure.command_flags import flags_in, flags_of

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "gating.md").read_text(encoding="utf-8")
WORKFLOW = (DOCS / "attnprof-check.yml").read_text(encoding="utf-8")
ACTION = (DOCS / "action" / "action.yml").read_text(encoding="utf-8")


def tables():
    """The page's tables as rows of cells."""
    for block in re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE):
        rows = [line.strip("| ").split(" | ") for line in block.splitlines()]
        yield rows[0], rows[2:]


def table(title):
    return next(rows for head, rows in tables() if head[0].strip("`") == title)


def test_the_verdicts_are_all_there_and_end_as_the_page_says():
    rows = {verdict.strip("`"): rest for verdict, *rest in table("verdict")}
    assert set(rows) == set(VERDICTS)
    for verdict, (_, code, junit) in rows.items():
        if code != "by `--inconclusive`":
            assert exit_code([verdict]) == int(code)
        record = CheckRecord(case="a", metric="flops", verdict=verdict)
        assert (f"<{junit.strip('`')} " in render_junit(Report("check", [record]))) is (
            junit != "passed"
        )


def test_the_metrics_are_those_that_are_counted():
    named = {name for cell, _ in table("metric") for name in re.findall(r"`([\w:]+)`", cell)}
    counted = count(PointRequest("standard", 8, 2, 4), False)
    assert named == {*counted.metrics, "formula:flops", "time"}


def test_the_rules_are_those_of_the_code():
    rows = {name.strip("`"): (float(b), float(p)) for name, b, p in table("--rule")}
    assert rows == {r.name: (1 + r.bound, 1 + r.point) for r in RULES.values()}
    assert all(f"`--inconclusive {p}`" in PAGE or f"`{p}`" in PAGE for p in POLICIES)


def test_the_suite_of_the_page_is_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "my.py").write_text(
        "from torch import nn\n\nclass MyAttention(nn.Module):\n    def forward(self, x): return x"
    )
    (tmp_path / "bench.toml").write_text(re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)[1])
    cases = suite_from_file(tmp_path / "bench.toml")
    assert len(cases) == 2 * 2 + 2
    assert {case.rule for case in cases} == {"default", "lenient"}


def test_the_fixture_takes_what_the_page_says():
    sizes = {*inspect.signature(request_for).parameters, "formulas"} - {"attention"}
    assert "formulas" in inspect.signature(TestGate.check).parameters
    said = PAGE.split("Both take", 1)[1].split("Counts are compared", 1)[0]
    assert sizes <= set(re.findall(r"`(\w+)", said))
    assert f"`{DEFAULT}`" in PAGE


def test_the_marker_and_the_limits_of_the_outputs_are_the_code_s():
    assert MARKER in PAGE
    assert "up to ten annotations" in " ".join(PAGE.split())
    assert MOST == 10


def steps(text):
    """The steps of a workflow's only job, or of an action."""
    its = yaml.safe_load(text)
    (job,) = its["jobs"].values() if "jobs" in its else [its["runs"]]
    return job["steps"]


def test_the_action_types_what_check_takes():
    (step,) = [step for step in steps(ACTION) if "attnprof check" in step.get("run", "")]
    options = yaml.safe_load(ACTION)["inputs"]["options"]["default"]
    assert flags_in(f"{step['run']} {options}") <= flags_of("check")


def test_the_workflow_fetches_the_other_revision_and_gives_the_action_what_it_takes():
    checkout, check = steps(WORKFLOW)
    assert checkout["uses"].startswith("actions/checkout@")
    assert checkout["with"]["fetch-depth"] == 0
    assert check["with"].keys() <= yaml.safe_load(ACTION)["inputs"].keys()
    (keep,) = [step for step in steps(ACTION) if "upload-artifact" in step.get("uses", "")]
    assert keep["with"]["path"] == "${{ runner.temp }}/attnprof"


def test_the_page_and_the_workflow_can_be_found():
    text = (DOCS.parent / "README.md").read_text(encoding="utf-8") + PAGE
    for name in ("gating.md", "attnprof-check.yml", "action/action.yml"):
        assert name in text
