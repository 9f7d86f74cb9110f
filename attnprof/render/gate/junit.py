"""A report of ``check`` as JUnit XML: a test suite a case, a test a metric."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from attnprof.gate import verdicts
from attnprof.gate.sentences import sentence
from attnprof.record import CheckRecord, Report
from attnprof.record.escaping import visible
from attnprof.render.gate.cases import by_case

#: What XML 1.0 cannot hold, not even escaped.
_UNWRITABLE = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
PROPERTIES = ("mode", "base", "head", "rule", "verdict", "exit_code", "not_comparable")


def render_junit(report: Report) -> str:
    """JUnit XML: ``failure`` for what got worse, ``error`` for what could not be measured.

    ``skipped`` is what cannot be said: times too noisy or from another machine. Where inconclusive
    times are asked to fail they are errors, as the exit code is 3.
    """
    from junitparser import JUnitXml, TestCase, TestSuite

    suites = JUnitXml("attnprof check")
    strict = report.summary.get("inconclusive") == "fail"
    for case in by_case(report):
        suite = TestSuite(_clean(case.name))
        for name in PROPERTIES:
            if report.summary.get(name) is not None:
                suite.add_property(name, _clean(str(report.summary[name])))
        for record in case.records:
            test = TestCase(_clean(record.metric), classname=_clean(case.name))
            if ending := _ending(record, strict=strict):
                test.result = [ending]
            elif record.why:
                test.system_out = _clean(sentence(record))
            suite.add_testcase(test)
        suites.add_testsuite(suite)
    suites.update_statistics()
    return str(suites.tostring().decode()) + "\n"


def _ending(record: CheckRecord, *, strict: bool) -> Any:
    """How the test of a record ended; None where it passed."""
    from junitparser import Error, Failure, Skipped

    kinds: Mapping[str, Any] = {
        verdicts.REGRESSED: Failure,
        verdicts.ERROR: Error,
        verdicts.MISSING: Error,
        verdicts.INCONCLUSIVE: Error if strict else Skipped,
        verdicts.NOT_COMPARABLE: Skipped,
    }
    kind = kinds.get(record.verdict)
    if kind is None:
        return None
    ending = kind(_clean(sentence(record)), record.verdict)
    ending.text = _clean("\n".join(part for part in (sentence(record), record.place) if part))
    return ending


def _clean(text: str) -> str:
    return _UNWRITABLE.sub("\N{REPLACEMENT CHARACTER}", visible(text, lines=True))
