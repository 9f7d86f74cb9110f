"""A report of ``check`` as commands of GitHub Actions: shown beside the changed lines."""

from __future__ import annotations

from attnprof.gate import verdicts
from attnprof.gate.sentences import sentence
from attnprof.record import Report
from attnprof.record.escaping import visible
from attnprof.render.gate.cases import CaseRows, by_case, named

#: GitHub shows ten of a level in a step; more are lost.
MOST = 10
LEVELS = {
    verdicts.REGRESSED: "error",
    verdicts.ERROR: "error",
    verdicts.MISSING: "error",
    verdicts.INCONCLUSIVE: "warning",
}


def render_annotations(report: Report) -> str:
    """A command a line, one a case, worst first, ten at most; empty where nothing is amiss."""
    cases = [case for case in by_case(report) if case.verdict in LEVELS]
    lines = [_command(case, report) for case in cases]
    if len(lines) > MOST:
        rest = f"{len(lines) - MOST + 1} more cases are in the summary and in the JSON"
        lines = [*lines[: MOST - 1], f"::{LEVELS[cases[MOST - 1].verdict]}::{_escaped(rest)}"]
    return "".join(line + "\n" for line in lines)


def _command(case: CaseRows, report: Report) -> str:
    file, _, line = case.place.rpartition(":")
    where = {"file": _path(case, file), "line": line} if file and line.isdigit() else {}
    title = f"attnprof {case.verdict}: {case.name}"
    properties = ",".join(
        f"{name}={_escaped_property(value)}"
        for name, value in {**where, "title": title}.items()
        if value
    )
    told = "\n".join(sentence(r) for r in named(case, report) if r.verdict in LEVELS)
    return f"::{LEVELS[case.verdict]} {properties}::{_escaped(told)}"


def _path(case: CaseRows, file: str) -> str:
    """The file as the case names it, where a line of code is known by its file's name only."""
    named_path = case.name.partition(".py:")[0] + ".py"
    return named_path if named_path.rpartition("/")[2] == file else file


def _escaped(text: str) -> str:
    """A message's text: GitHub undoes these three; what is left are signs to be seen."""
    for sign, code in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A")):
        text = text.replace(sign, code)
    return visible(text)


def _escaped_property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")
