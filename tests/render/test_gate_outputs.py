"""What `check` found is told alike to people, test runners, pull requests and programs."""

import json
import re
from dataclasses import asdict

import pytest
from junitparser import Error, Failure, JUnitXml, Skipped

from attnprof.gate.changes import causes
from attnprof.gate.rules import VERDICTS, WORST_FIRST, worst
from attnprof.record import BaselineRecord, CheckRecord, Report
from attnprof.render.gate import by_case, render_annotations, render_badge, render_junit
from attnprof.render.tables.check import (
    LIMIT,
    MARKER,
    baseline_tables,
    check_page,
    check_tables,
)
from attnprof.render.terminal import render_text

CASE = "my.py:Mine[forward N=1024 d_model=512 h=8]"


def flops(verdict="regressed", **more):
    fields = {
        "case": CASE, "metric": "additions", "baseline": 1000, "current": 1500, "ratio": 1.5,
        "why": "+ 2·B·N²·h additions", "place": "my.py:12", "unit": "FLOPs",
    }  # fmt: skip
    return CheckRecord(verdict=verdict, **{**fields, **more})


def time(verdict="ok", ratio=1.003, **more):
    fields = {"case": CASE, "metric": "time", "baseline": 0.01, "current": 0.01, "unit": "s"}
    bounds = {"ci_low": ratio - 0.01, "ci_high": ratio + 0.012} if ratio else {}
    return CheckRecord(verdict=verdict, ratio=ratio, **{**fields, **bounds, **more})


def report(*records, **summary):
    counts = {v: n for v in VERDICTS if (n := sum(r.verdict == v for r in records))}
    fields = {
        "mode": "against", "base": "origin/main", "head": "a1b2c3d", "rule": "default",
        "inconclusive": "retry", "counts": counts, "verdict": worst(r.verdict for r in records),
        "exit_code": 1, "spent_s": 34.2, "budget_s": 60.0, "noise": 0.012, "not_comparable": None,
        "causes": [asdict(c) for c in causes(records, {}, {}, summary.get("not_comparable"))],
        "power": ["a 10 % slowdown would be seen with 98 % probability"], "notes": [],
    }  # fmt: skip
    return Report("check", records, {**fields, **summary})


def terminal(checked, width=90, **how):
    return render_text(check_tables(checked, **how), width)


OUTPUTS = {
    "terminal": terminal, "junit": render_junit, "annotations": render_annotations,
    "page": check_page, "json": Report.to_json,
}  # fmt: skip


def on_one_line(text):
    """Without a page's escapes and a terminal's folding."""
    return re.sub(r"\s+", " ", text.replace("\\", "").replace("%3A", ":"))


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_regression_is_told_alike_everywhere(name):
    text = OUTPUTS[name](report(flops(), time()))
    text = json.dumps(json.loads(text), ensure_ascii=False) if name == "json" else text
    facts = ("regressed", "Mine[forward N=1024 d_model=512 h=8]", "+ 2·B·N²·h additions")
    for words in (*facts, "additions", "my.py"):
        assert words in on_one_line(text)


def ended(xml):
    """How each test of a JUnit file ended, by its name."""
    suites = JUnitXml.fromstring(xml.encode())
    return {test.name: [type(r) for r in test.result] for suite in suites for test in suite}


@pytest.mark.parametrize(("verdict", "kinds"), [
    ("ok", []), ("improved", []), ("new", []), ("regressed", [Failure]), ("error", [Error]),
    ("missing", [Error]), ("inconclusive", [Skipped]), ("not-comparable", [Skipped]),
])  # fmt: skip
def test_junit_says_what_failed_and_what_could_not_be_measured(verdict, kinds):
    xml = render_junit(report(flops(verdict)))
    assert ended(xml) == {"additions": kinds}
    suites = JUnitXml.fromstring(xml.encode())
    assert (suites.tests, suites.failures, suites.errors, suites.skipped) == (
        1, kinds == [Failure], kinds == [Error], kinds == [Skipped],
    )  # fmt: skip


def test_junit_says_why_and_where_and_what_was_compared():
    asked = report(time("inconclusive"), inconclusive="fail")
    assert ended(render_junit(asked)) == {"time": [Error]}
    suite = next(iter(JUnitXml.fromstring(render_junit(report(flops(), time())).encode())))
    failure = suite.name == CASE and next(iter(suite)).result[0]
    assert failure.message == "additions 1,000 → 1,500 (1.500×): + 2·B·N²·h additions"
    assert failure.text.endswith("my.py:12")
    assert {p.name: p.value for p in suite.properties()}["base"] == "origin/main"


def test_junit_holds_what_xml_cannot():
    why = "\x1b[31mRuntimeError\x1b[0m: a < b & c\x00"
    xml = render_junit(report(flops("error", metric="case", why=why)))
    error = next(iter(next(iter(JUnitXml.fromstring(xml.encode()))))).result[0]
    assert "RuntimeError" in error.message
    assert "a < b & c" in error.message


def test_annotations_are_escaped_as_github_takes_them():
    line = render_annotations(report(flops(case="a,b:C[100%]", why="50 %\r\nmore: x, y")))
    assert line == (
        "::error file=my.py,line=12,title=attnprof regressed%3A my.py%3A12 additions 1.50×::"
        "additions 1.50×, 50 %25%0D%0Amore: x, y%0Aa,b:C[100%25]\n"
    )


def test_ten_annotations_at_most_and_the_worst_first():
    mild = [flops("inconclusive", place=f"mild{i}.py:1") for i in range(8)]
    bad = [flops(place=f"bad{i}.py:1", ratio=1 + i / 10) for i in range(5)]
    lines = render_annotations(report(*mild, *bad)).splitlines()
    assert len(lines) == 10
    assert re.findall(r"file=(bad\d)", "".join(lines)) == ["bad4", "bad3", "bad2", "bad1", "bad0"]
    assert "4 more causes" in lines[-1]
    assert all(line.startswith("::error") for line in lines[:5])
    assert all(line.startswith("::warning") for line in lines[5:])


def test_one_annotation_tells_all_metrics_and_cases_of_a_cause():
    metrics = [flops(metric=name, case=case) for name in ("flops", "bytes_moved") for case in "abc"]
    (line,) = render_annotations(report(*metrics, time())).splitlines()
    assert "bytes moved 1.50×, FLOPs 1.50×, + 2·B·N²·h additions%0Aa%0Ab%0Ac" in line


@pytest.mark.parametrize(("case", "place", "file"), [
    ("src/my.py:Mine[forward]", "my.py:12", "src/my.py"),
    ("src/my.py:Mine[forward]", "other.py:12", "other.py"),
    ("standard[forward]", "my.py:12", "my.py"), ("src/my.py:Mine[forward]", "", None),
])  # fmt: skip
def test_an_annotation_points_at_the_file_the_case_names(case, place, file):
    line = render_annotations(report(flops(case=case, place=place)))
    assert line.startswith(f"::error file={file},line=12," if file else "::error title=")
    for verdict in ("ok", "improved", "new", "not-comparable"):
        assert render_annotations(report(flops(verdict, case=case, place=place))) == ""


def test_the_page_tells_regressions_first_and_folds_the_unchanged_away():
    faster = flops("improved", case="faster", place="fast.py:1", ratio=0.9, why="- 100 additions")
    page = check_page(report(time(case="same"), faster, flops()))
    assert page.startswith(MARKER)
    assert page.index("slower") < page.index("faster") < page.index("<details>")
    assert page.index("1 unchanged") < page.index("`same`")
    assert "1 unchanged" in page


@pytest.mark.parametrize(("verdict", "word"), [
    ("ok", "same"), ("improved", "faster"), ("regressed", "slower"), ("inconclusive", "uncertain"),
    ("missing", "missing"), ("error", "error"),
])  # fmt: skip
def test_the_page_says_in_a_word_how_it_came_out(verdict, word):
    page = check_page(report(flops(verdict)))
    assert f"### attnprof check: {word}\n" in page
    assert f"| **{word}** |" in page


#: A row of the page's chart: its words, its look, where its bar begins and ends.
BAR = re.compile(r"^  ([^:\n]+) :(?:(\w+), )?(\d+), (\d+)$", re.MULTILINE)


def test_the_chart_of_the_page_has_a_bar_from_1_a_count_and_an_interval_a_time():
    counted = flops(metric="flops"), flops("improved", metric="bytes_moved", ratio=0.5)
    page = check_page(report(*counted, time("regressed", 1.2), time(case="same")))
    assert BAR.findall(page) == [
        ("FLOPs 1.500×, slower", "crit", "1000", "1500"),
        ("time 1.200× (1.190 to 1.212), slower", "crit", "1190", "1212"),
        ("bytes moved 0.500×, faster", "active", "500", "1000"),
        ("time 1.003× (0.993 to 1.015), same", "done", "993", "1015"),
    ]


def test_the_chart_keeps_to_its_words_and_its_axis_whatever_a_case_is_called():
    named = [flops(metric="flops", case=f"a:b;#{n}%%{{x}}\n`end`", ratio=30.0) for n in range(12)]
    page = check_page(report(*named))
    chart = page.split("  1.000 :milestone, done, 1000, 0ms\n")[1].split("```")[0].splitlines()
    assert len(chart) == 16
    assert set(chart[1::2]) == {"  FLOPs 30.000×, slower :crit, 1000, 4000"}
    assert all(re.fullmatch(r"  section a b \d+ x end", line) for line in chart[::2])
    assert "4 more cases below" in page


def test_a_page_fits_into_a_comment_whatever_failed_and_has_no_chart_without_a_ratio():
    assert "mermaid" not in check_page(report(flops("ok"), flops("error", ratio=None)))
    many = [flops(case=f"{'long' * 60}{i}", why="w" * 2000) for i in range(400)]
    page = check_page(report(*many))
    assert len(page) <= LIMIT
    assert "in the JSON" in page


def test_times_that_no_machine_can_compare_are_told_once():
    why = "another processor: AVX2 there, AVX512 here"
    times = (time("not-comparable", None, case=f"case{i}", why=why) for i in range(5))
    checked = report(*times, not_comparable=why)
    for text in (terminal(checked, 200), check_page(checked)):
        assert text.count("AVX512") == 1


@pytest.mark.parametrize("width", [80, 100])
def test_the_terminal_fits_its_width(width):
    checked = report(flops(why="a reason " * 30), time("inconclusive"), time(case="other"))
    lines = terminal(checked, width).splitlines()
    assert max(map(len, lines)) <= width
    assert on_one_line(" ".join(lines)).startswith(f"1 of 2 cases ({CASE}) got worse: my.py")
    assert "1 stayed the same" in " ".join(lines[:2])


@pytest.mark.parametrize("width", [80, 120])
def test_every_record_is_there_where_asked_with_its_case_metric_and_verdict(width):
    checked = report(flops(), time(pairs=40), time("inconclusive", case="b" * 70))
    assert "40" not in terminal(checked)
    text = terminal(checked, width, verbose=True)
    assert max(map(len, text.splitlines())) <= width
    for words in (CASE, "b" * 70, "additions  regressed", "time       ok", "40", "1.015"):
        assert words in text


def test_a_reason_that_several_metrics_share_is_told_once_to_readers():
    checked = report(flops(), flops(metric="flops", ratio=1.2))
    assert terminal(checked, 200).count("2·B·N²·h") == 1
    assert check_page(checked).partition("<details>")[0].count("2·B·N²·h") == 1
    assert render_junit(checked).count("2·B·N²·h") == 4


@pytest.mark.parametrize(("records", "said"), [
    ([flops(), time()], f"{CASE} got worse: my.py:12 additions 1.50×."),
    ([flops(metric="flops", case=c) for c in "ab"], "All 2 cases got worse: my.py:12 FLOPs 1.50×."),
    ([flops("improved", ratio=0.5), time(case="b")],
     f"1 of 2 cases ({CASE}) got better: my.py:12 additions 0.50×. 1 stayed the same."),
    ([flops("error", metric="case", case="a"), time("inconclusive", case="b"), time(case="c")],
     "1 of 3 cases (a) could not be checked. 1 could not be judged and 1 stayed the same."),
    ([time("regressed", 1.1, case="a"), time("regressed", 1.2, case="b"), flops("ok", why="",
      metric="flops", case="c")],
     "2 of 3 cases (a, b) got worse: time 1.10× to 1.20×; FLOPs are unchanged. 1 stayed the same."),
    ([time(), time(case="b")], "All 2 cases stayed the same."),
])  # fmt: skip
def test_the_first_sentence_is_the_answer(records, said):
    assert on_one_line(terminal(report(*records), 300)).startswith(said)
    assert f"**{said}**" in check_page(report(*records)).replace("\\", "")


@pytest.mark.parametrize(("records", "message", "color"), [
    ([time(), time(case="b")], "2 cases ok", "brightgreen"), ([time()], "1 case ok", "brightgreen"),
    ([flops(case="a"), flops(case="b"), time("error")], "2 regressions", "red"),
    ([flops("missing", metric="case"), time(case="b")], "1 of 2 cases could not be checked",
     "orange"),
    ([time("inconclusive")], "1 of 1 case could not be judged", "yellow"),
])  # fmt: skip
def test_the_badge_says_how_many_cases_are_fine(records, message, color):
    assert json.loads(render_badge(report(*records))) == {
        "schemaVersion": 1, "label": "attnprof", "message": message, "color": color,
    }  # fmt: skip


def test_the_ending_counts_metrics_and_cases():
    checked = report(flops(), time(), time(case="other"))
    for text in (terminal(checked, 200), check_page(checked)):
        assert "metrics of 2 cases: 1 regressed, 2 ok" in text
    assert "time" not in terminal(report(flops("ok", why=""), power=[]))
    assert "N[bold]x[/]" in terminal(report(flops(case="N[bold]x[/]", why="[/red]")))


def test_the_noise_the_budget_and_the_power_are_said():
    passed = report(time(), exit_code=0)
    for text in (terminal(passed, 200), check_page(passed)):
        assert "noise 1.20 %" in text
        assert "34 s of 60 s" in text
        assert "10 % slowdown would be seen" in text


def test_a_slower_time_is_named_once_and_asks_for_no_more_budget():
    cases = [time("regressed", 1.3), time("inconclusive", 1.2, case="b", why="too much noise")]
    text = on_one_line(terminal(report(*cases)))
    assert text.count("1.30×") == 2  # the sentence, and its cause
    assert "too much noise" not in text
    assert "1 inconclusive" in text
    assert "would be seen" not in text


def test_bytes_are_readable_and_exact_and_an_empty_report_is_told_too():
    checked = report(flops(metric="peak_bytes", unit="bytes", baseline=2**20, current=2**21))
    assert "1.00 MiB [1,048,576] → 2.00 MiB [2,097,152]" in render_junit(checked)
    empty = report()
    assert "nothing was checked" in terminal(empty)
    assert "nothing was checked" in check_page(empty)
    assert render_annotations(empty) == ""
    assert JUnitXml.fromstring(render_junit(empty).encode()).tests == 0


def test_cases_come_worst_first():
    checked = report(*(flops(verdict, case=verdict) for verdict in VERDICTS))
    assert tuple(by_case(checked)) == WORST_FIRST


def test_a_baseline_is_a_table_a_module_that_tells_once_what_its_cases_share():
    counts = {"flops": 3_260_000, "peak_bytes": 2048, "dispatched_operations": 29}
    args = "d_model=64 h=4 d_model=h*d num_heads=h"
    names = [f"src/my.py:Mine[forward N={n} {args}]" for n in (64, 128)]
    records = [BaselineRecord(case=case, metrics=counts) for case in (*names, "linear[train N=64]")]
    text = render_text(baseline_tables(Report("baseline", records)), 80)
    assert f"src/my.py:Mine[… {args}]" in text
    for case in ("forward N=64", "forward N=128", "linear[train N=64]"):
        assert re.search(rf"(?m)^ ?{re.escape(case)} +3.26 M +2.00 KiB +29 ", text)
