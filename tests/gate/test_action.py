"""The action for GitHub: its steps run here, on a repository of two commits and an event's JSON."""

import json
import os
import re
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml

from tests.gate.test_trees import git

DOCS = Path(__file__).parents[2] / "docs"
ACTION = yaml.safe_load((DOCS / "action" / "action.yml").read_text(encoding="utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"] if "run" in step}
GOLDEN = Path(__file__).parent / "data" / "comment.md"
MODULE = """from torch import nn


class Mine(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.out(x @ x.mT @ x)
"""
SUITE = """[[case]]
attention = "my.py:Mine"
seq = 64
d_model = 32
heads = 4
input = ["x: B, N, h*d"]
time = false
formula = false
"""


class Issues(BaseHTTPRequestHandler):
    """Comments of a pull request, as GitHub's interface has them."""

    def do_GET(self):
        self.answer(self.server.comments if self.path.endswith("page=1") else [])

    def do_POST(self):
        self.server.comments.append({"id": len(self.server.comments), **self.body()})
        self.answer({"html_url": f"new at {self.path}"})

    def do_PATCH(self):
        self.server.comments[int(self.path.rpartition("/")[2])] |= self.body()
        self.answer({"html_url": f"again at {self.path}"})

    def body(self):
        assert self.headers["Authorization"] == "Bearer secret"
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def answer(self, value):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def github():
    """A server with one comment of somebody's who quotes ours."""
    server = HTTPServer(("127.0.0.1", 0), Issues)
    server.comments = [{"id": 0, "body": "I saw <!-- attnprof-check --> here"}]
    Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


class Job:
    """A job's folders and variables, and its steps run as GitHub runs them."""

    def __init__(self, folder, server):
        self.folder, self.temporary = folder / "repository", folder / "temporary"
        (folder / "bin").mkdir()
        (folder / "bin" / "attnprof").write_text(
            f'#!/bin/sh\nexec {sys.executable} -m attnprof "$@"\n', encoding="utf-8"
        )
        (folder / "bin" / "attnprof").chmod(0o755)
        (folder / "bin" / "python").symlink_to(sys.executable)
        self.temporary.mkdir()
        root = str(DOCS.parent)
        self.files = {name: folder / name for name in ("output", "summary", "event.json")}
        self.environment = os.environ | {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "RUNNER_TEMP": str(self.temporary),
            "GITHUB_ACTIONS": "true", "GITHUB_OUTPUT": str(self.files["output"]),
            "GITHUB_STEP_SUMMARY": str(self.files["summary"]),
            "GITHUB_EVENT_PATH": str(self.files["event.json"]), "GITHUB_REPOSITORY": "us/ours",
            "GITHUB_API_URL": f"http://127.0.0.1:{server.server_port}", "PYTHONPATH": root,
            "SUITE": "bench.toml", "OPTIONS": "--no-time", "TOKEN": "secret",
            "INSTALL": "echo installed > installed",
        }  # fmt: skip

    def step(self, name, **more):
        """Run a step; return its exit code and what it printed."""
        script = self.temporary / "script"
        script.write_text(STEPS[name]["run"], encoding="utf-8")
        shells = {"bash": ["bash", "--noprofile", "--norc", "-eo", "pipefail"],
                  "python": [sys.executable]}  # fmt: skip
        ended = subprocess.run(
            [*shells[STEPS[name]["shell"]], str(script)], cwd=self.folder, text=True,
            env=self.environment | more, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            check=False,
        )  # fmt: skip
        return ended.returncode, ended.stdout

    def outputs(self):
        lines = self.files["output"].read_text(encoding="utf-8").splitlines()
        return dict(line.split("=", 1) for line in lines)


@pytest.fixture(scope="module")
def job(tmp_path_factory, github):
    """A job whose pull request adds a copy; its comparison has run."""
    made = Job(tmp_path_factory.mktemp("job"), github)
    made.folder.mkdir()
    git(made.folder, "init", "-q")
    (made.folder / "bench.toml").write_text(SUITE)
    for text in (MODULE, MODULE.replace("x @ x.mT @ x", "x @ x.mT @ x.clone()")):
        (made.folder / "my.py").write_text(text)
        git(made.folder, "add", "-A")
        git(made.folder, "commit", "-qm", "a commit")
    base = subprocess.run(["git", "rev-parse", "HEAD~1"], cwd=made.folder, text=True, check=True,
                          capture_output=True)  # fmt: skip
    event = {"pull_request": {"number": 7, "base": {"sha": base.stdout.strip()},
                              "head": {"repo": {"full_name": "us/ours"}}}}  # fmt: skip
    made.files["event.json"].write_text(json.dumps(event))
    made.compared = made.step("Compare")
    return made


def test_a_step_s_script_has_no_text_of_somebody_s_put_into_it():
    assert list(STEPS) == ["Install", "Compare", "Comment", "Verdict"]
    for step in STEPS.values():
        assert "${{" not in step["run"]


def test_the_install_step_runs_what_was_asked_for(job):
    assert job.step("Install") == (0, "")
    assert (job.folder / "installed").exists()


def test_the_comparison_says_slower_annotates_the_line_and_fills_the_summary(job):
    code, printed = job.compared
    assert (code, job.outputs()) == (0, {"code": "1", "verdict": "slower"})
    assert re.search(r"::error file=my.py,line=10,title=attnprof regressed%3A .*clone", printed)
    assert "### attnprof check: slower" in job.files["summary"].read_text(encoding="utf-8")
    files = {path.name for path in (job.temporary / "attnprof").iterdir()}
    assert files == {"junit.xml", "comment.md", "badge.json", "check.json"}


def test_the_comment_is_the_golden_one(job):
    text = (job.temporary / "attnprof" / "comment.md").read_text(encoding="utf-8")
    shown = re.sub(r"\b[0-9a-f]{7,40}\b", "COMMIT", text)
    if os.environ.get("GOLDEN"):
        GOLDEN.write_text(shown, encoding="utf-8")
    assert shown == GOLDEN.read_text(encoding="utf-8"), "if it is right: GOLDEN=1 pytest, and look"


def test_the_comment_is_written_once_and_then_again_in_its_place(job, github):
    comment = job.temporary / "attnprof" / "comment.md"
    first = comment.read_text(encoding="utf-8")
    assert job.step("Comment") == (0, "new at /repos/us/ours/issues/7/comments\n")
    comment.write_text("<!-- attnprof-check -->\nlater", encoding="utf-8")
    assert job.step("Comment") == (0, "again at /repos/us/ours/issues/comments/1\n")
    comment.write_text(first, encoding="utf-8")
    assert [comment["body"].split("\n")[-1] for comment in github.comments] == [
        "I saw <!-- attnprof-check --> here", "later",
    ]  # fmt: skip


def test_a_fork_and_a_push_have_no_comment(job, tmp_path):
    fork = json.loads(job.files["event.json"].read_text())
    fork["pull_request"]["head"]["repo"]["full_name"] = "them/theirs"
    for event, said in ((fork, "a fork may not comment"), ({"before": "x"}, "nothing to comment")):
        (tmp_path / "event.json").write_text(json.dumps(event))
        code, printed = job.step("Comment", GITHUB_EVENT_PATH=str(tmp_path / "event.json"))
        assert code == 0
        assert printed.startswith(said)


@pytest.mark.parametrize("code", [0, 1, 3])
def test_the_job_ends_as_the_check_did(job, code):
    assert job.step("Verdict", CODE=str(code))[0] == code
