"""A baseline comes back as it was written; a doctored one says what is wrong with it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from attnprof.errors import RequestError
from attnprof.gate.baselines import BASELINE_SCHEMA, baseline_record, baseline_report, load_baseline
from attnprof.gate.counts import Case, Counted, Operation, count
from attnprof.gate.exact import compare
from attnprof.measure.environment import TITLES, differs, fingerprint, noted
from attnprof.measure.request import Budget, PointRequest

DATA = Path(__file__).parent / "data"
COUNTED = Counted(
    metrics={"flops": 2**63 + 1, "peak_bytes": 0},
    operations=[Operation("mm", "forward", "my.py:3", 2, 4096, 2**63 + 1)],
    formulas={"flops": "Max(4*B*N**2*h, floor(N/2))"},
    no_formula="peak_bytes: too many operations",
)
CASES = [
    Case(PointRequest("standard", 16, 2, 4)),
    Case(
        PointRequest(
            "longformer", 64, 2, 4, batch_size=3, causal=True, phase="train", dtype="float64",
            scope="core", seed=7, threads=1, params={"window": 8}, budget=Budget(min_time_s=0.1),
        ),
        rule="lenient",
    ),
    Case(PointRequest("my.py:Mine", 16, 2, 4, params={"args": ["d_model=h*d"]}), timed=False),
]  # fmt: skip


def written(folder, cases=CASES, counted=COUNTED, times=((0.001, 0.0012), (0.0011,))):
    """A baseline of some cases, saved."""
    path = folder / "baseline.json"
    records = [baseline_record(case, counted, times if case.timed else ()) for case in cases]
    baseline_report(records, {"torch": "2.13.0"}, suite="bench.toml").save(path)
    return path


def doctored(folder, change):
    """One whose JSON was changed."""
    path = written(folder)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    return path


def test_what_was_written_comes_back_exactly(tmp_path):
    baseline = load_baseline(written(tmp_path))
    assert baseline.cases == CASES
    assert list(baseline.counted) == [case.name for case in CASES]
    for case in CASES:
        sizes = case.request.workload.by_symbol()
        assert baseline.counted[case.name] == replace(COUNTED, sizes=sizes)
    assert baseline.times_s[CASES[0].name] == [[0.001, 0.0012], [0.0011]]
    assert baseline.times_s[CASES[2].name] == []
    assert baseline.fingerprint == {"torch": "2.13.0"}
    assert baseline.summary["suite"] == "bench.toml"
    assert baseline.summary["baseline_schema"] == BASELINE_SCHEMA


def test_cases_are_called_as_today_and_one_that_could_not_run_has_its_reason(tmp_path):
    path = doctored(tmp_path, lambda d: first(d).update(case=f"{CASES[0].name[:-1]} bias=true]"))
    baseline = load_baseline(path)
    assert list(baseline.counted) == list(baseline.times_s) == [case.name for case in CASES]
    baseline = load_baseline(written(tmp_path, CASES[:1], Counted(error="no such device"), ()))
    assert baseline.counted[CASES[0].name].error == "no such device"


def test_a_mechanism_that_is_gone_is_read_so_that_it_can_be_missing(tmp_path):
    case = Case(PointRequest("gone-by-now", 16, 2, 4, params={"window": 3}))
    baseline = load_baseline(written(tmp_path, [case]))
    assert baseline.cases == [case]
    (record,) = compare(case.name, baseline.counted[case.name], count(case.request, formulas=False))
    assert record.verdict == "missing"


def first(data):
    return data["records"][0]


@pytest.mark.parametrize(("change", "says"), [
    (lambda d: d.update(schema="attnprof/9"), "not an attnprof/1 report"),
    (lambda d: d.update(command="sweep"), "report of 'sweep'"),
    (lambda d: d.update(records={}), "records is {}, not a list"),
    (lambda d: d.update(records=[]), "no cases"),
    (lambda d: d["summary"].update(baseline_schema=99), "newer than this attnprof"),
    (lambda d: d["summary"].update(baseline_schema=0), "baseline_schema is 0"),
    (lambda d: d["summary"].pop("baseline_schema"), "baseline_schema is None"),
    (lambda d: d["summary"].update(fingerprint="x"), "fingerprint"),
    (lambda d: d.pop("environment"), "environment is not an object"),
    (lambda d: d["records"].append(first(d)), "is the same case"),
    (lambda d: first(d).pop("metrics"), "metrics is missing"),
    (lambda d: first(d).update(metrics={}), "neither metrics nor an error"),
    (lambda d: first(d).update(metrics=[1]), "metrics is [1], not an object"),
    (lambda d: first(d)["metrics"].update(flops=-1), "metrics.flops is -1, below 0"),
    (lambda d: first(d)["metrics"].update(flops=1.5), "metrics.flops is 1.5"),
    (lambda d: first(d)["metrics"].update(flops=None), "metrics.flops is None"),
    (lambda d: first(d)["metrics"].update(flops=True), "metrics.flops is True"),
    (lambda d: first(d)["operations"][0].update(times="2"), "operations[0].times is '2'"),
    (lambda d: first(d)["operations"][0].pop("op"), "operations[0].op is missing"),
    (lambda d: first(d)["formulas"].update(flops="__import__('os')"), "formulas.flops"),
    (lambda d: first(d)["formulas"].update(flops="2**(2**99)"), "formulas.flops"),
    (lambda d: first(d)["formulas"].update(flops="N +"), "formulas.flops"),
    (lambda d: first(d)["times_s"][0].append(-0.1), "times_s[0][2] is -0.1"),
    (lambda d: first(d)["times_s"][0].append(0), "times_s[0][2] is 0"),
    (lambda d: first(d).update(rule="defualt"), "did you mean default"),
    (lambda d: first(d).update(case="standard"), "its request is standard[forward N=16"),
    (lambda d: first(d).update(case="sdpa[forward N=16]"), "its request is standard[forward"),
    (lambda d: first(d)["request"].update(seq_len=0), "seq_len must be at least 1"),
    (lambda d: first(d)["request"].update(seq_len="16"), "request.seq_len is '16'"),
    (lambda d: first(d)["request"].update(causal=1), "request.causal is 1"),
    (lambda d: first(d)["request"].update(phase="sideways"), "unknown phase"),
    (lambda d: first(d)["request"].update(length=3), "request.length is not known"),
    (lambda d: first(d)["request"]["budget"].pop("spread"), "budget.spread is missing"),
    (lambda d: first(d)["request"]["budget"].update(spread=-1), "spread -1"),
    (lambda d: d["records"].append(3), "records[3]: it is 3, not an object"),
])  # fmt: skip
def test_a_doctored_baseline_is_a_wrong_request_that_says_where(tmp_path, change, says):
    path = doctored(tmp_path, change)
    with pytest.raises(RequestError) as caught:
        load_baseline(path)
    assert says in str(caught.value)
    of_ours = "no baseline that can be used" in str(caught.value)  # recorded again in its place
    assert f"attnprof baseline -o {path if of_ours else 'NEW.json'}" in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("place", ["0.0012", '"warmup_s": 0.2'])
def test_numbers_that_are_none_are_refused(tmp_path, place):
    path = written(tmp_path)
    text = path.read_text()
    for number in ("NaN", "Infinity", "-Infinity", "1e999"):
        changed = place.replace(place.rpartition(" ")[2], number)
        path.write_text(text.replace(place, changed))
        with pytest.raises(RequestError, match=r"no number|finite"):
            load_baseline(path)


def test_a_truncated_file_is_refused_wherever_it_ends_and_a_missing_one_says_how_to_record_it(
    tmp_path,
):
    path = written(tmp_path)
    text = path.read_text()
    for end in range(0, len(text) - 2, 97):
        path.write_text(text[:end])
        with pytest.raises(RequestError, match="no whole JSON"):
            load_baseline(path)
    path.unlink()
    with pytest.raises(RequestError, match="attnprof baseline -o"):
        load_baseline(path)


def test_a_fingerprint_survives_json_and_whatever_decides_on_speed_is_a_reason():
    here = fingerprint("cpu")
    assert set(TITLES) < set(here)
    assert differs(here, json.loads(json.dumps(here, allow_nan=False))) is None
    assert noted(here, here) is None
    for name in TITLES:
        assert differs(here, {**here, name: "another"})
        assert differs(here, {k: v for k, v in here.items() if k != name}) or here[name] is None


def test_reasons_are_told_in_words_and_another_attnprof_is_none():
    here = {**fingerprint("cpu"), "instructions": "AVX2", "torch": "2.13.0"}
    there = {**here, "instructions": "AVX512", "torch": "2.11.0"}
    assert differs(here, there) == "instructions AVX2, there AVX512; torch 2.13.0, there 2.11.0"
    older = {**here, "attnprof": "0.0.1"}
    assert differs(here, older) is None
    assert "attnprof 0.0.1" in noted(here, older)


def test_a_baseline_of_the_first_layout_is_read():
    (case,) = (baseline := load_baseline(DATA / "baseline-1.json")).cases
    assert baseline.summary["baseline_schema"] == 1
    counted = baseline.counted[case.name]
    assert case == Case(PointRequest("standard", 16, 2, 4, phase="train"))
    n, h, d = 16, 2, 4
    flops = 12 * n**2 * d * h + 9 * n**2 * h + 24 * n * d**2 * h**2 + 12 * n * d * h
    assert counted.metrics["flops"] == flops
    assert {(row.dtype, row.shape) for row in counted.operations} == {("", "")}
    assert sum(row.flops for row in counted.operations) == counted.metrics["flops"]


def test_a_baseline_of_the_second_layout_is_read_and_is_the_same_without_its_views(tmp_path):
    baseline = load_baseline(DATA / "baseline-2.json")
    assert baseline.summary["baseline_schema"] == 2
    records = [baseline_record(case, baseline.counted[case.name]) for case in baseline.cases]
    path = tmp_path / "again.json"
    baseline_report(records, baseline.fingerprint).save(path)
    again = load_baseline(path)
    for name, before in baseline.counted.items():
        kept = again.counted[name].operations
        assert len(kept) < len(before.operations)
        assert all(row.line or not row.bytes_moved for row in kept)
        for pair in ((before, again.counted[name]), (again.counted[name], before)):
            assert {(r.verdict, r.why) for r in compare(name, *pair)} == {("ok", "")}


def test_a_view_that_is_new_is_named_though_baselines_have_no_rows_of_views(tmp_path):
    rows = [Operation("mm", "forward", "my.py:3", 1, 8, 8, "float32", "2"),
            Operation("view", "forward", "my.py:4", 2, 0, 0, "float32", "2")]  # fmt: skip
    before = Counted({"dispatched_operations": 3}, rows)
    stored = load_baseline(written(tmp_path, CASES[:1], before)).counted[CASES[0].name]
    more = [*rows, Operation("t", "forward", "my.py:9", 1, 0, 0, "float32", "2")]
    (new,) = compare("a", stored, Counted({"dispatched_operations": 4}, more))
    assert (new.verdict, new.why) == ("regressed", "aten.t ×1 more at my.py:9")
    again = [*rows, replace(rows[1], line="my.py:5")]
    (often,) = compare("a", stored, Counted({"dispatched_operations": 5}, again))
    assert often.why == "aten.view ×2 more"


@pytest.mark.parametrize("text", ["# notes", "[]", '{"schema": "attnprof/1", "command": "cost"}'])
def test_nobody_is_told_to_write_a_baseline_over_a_file_of_something_else(tmp_path, text):
    path = tmp_path / "notes.json"
    path.write_text(text)
    with pytest.raises(RequestError) as raised:
        load_baseline(path)
    assert "give a file that attnprof baseline wrote" in str(raised.value)
    assert f"-o {path}" not in str(raised.value)
