"""The command line of ``profile``: lists, formats, exit codes, clean stdout."""

import json

import pytest

QUICK = ("--samples", "3", "--min-time", "0", "--max-time", "0.2", "--threads", "1")


def run(attnprof, *arguments):
    ended = attnprof("profile", *arguments)
    return ended.code, ended.out, ended.err


def test_lists_give_a_record_for_each_mechanism_at_each_length(attnprof):
    code, out, _ = run(
        attnprof, "--attention", "standard,sdpa", "--seq", "32:64:x2", "--d-model", "64",
        "--heads", "4", "--format", "json", *QUICK,
    )  # fmt: skip
    report = json.loads(out)
    assert code == 0
    rows = [(r["mechanism"], r["seq_len"]) for r in report["records"]]
    assert rows == [("standard", 32), ("sdpa", 32), ("standard", 64), ("sdpa", 64)]
    first = report["records"][0]
    assert first["matmul_flops_formula"] == first["flops_torch"] == 2 * first["macs_fvcore"]
    assert len(first["times_s"]) >= 3
    assert first["flops_derived"] == first["flops_formula"]
    assert first["matmul_flops_derived"] == first["matmul_flops_formula"]
    assert first["roofline_fraction"] is None
    assert report["environment"]["threads"] == 1
    assert report["summary"] == {
        "measured": 4, "skipped": 0, "fastest": report["summary"]["fastest"],
        "roofline": report["summary"]["roofline"], "answer": report["summary"]["answer"],
    }  # fmt: skip
    assert report["summary"]["answer"].startswith("At 64 tokens sdpa takes ")


def test_the_table_puts_the_numbers_side_by_side_and_names_the_differences(attnprof):
    code, out, err = run(
        attnprof, "--attention", "sdpa", "--seq", "64", "--d-model", "32", "--heads", "2", *QUICK
    )
    assert code == 0
    for heading in ("matmul FLOPs (formula)", "torch's counter", "2x fvcore", "peak (measured)"):
        assert heading in out
    assert out.startswith("At 64 tokens sdpa takes ")
    assert "sdpa at 64 tokens: torch counts fused SDPA on CPU" in err
    assert "torch counts" not in out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--seq", "64"], 2, "--attention"),
        (["--attention", "standard"], 2, "--seq"),
        (["--attention", "nope", "--seq", "64"], 2, "unknown mechanism"),
        (["--attention", "standard", "--seq", "0"], 2, "at least 1"),
        (["--attention", "standard", "--seq", "64", "--heads", "7"], 2, "do not divide"),
        (["--attention", "standard", "--seq", "64", "--phase", "sideways"], 2, "unknown phase"),
        (["--attention", "standard", "--seq", "64", "--scope", "house"], 2, "unknown scope"),
        (["--attention", "standard", "--seq", "64", "--dtype", "int8"], 2, "unknown dtype"),
        (["--attention", "standard", "--seq", "64", "--device", "tpu"], 2, "unknown device"),
        (["--attention", "standard", "--seq", "64", "--device", "cuda:99"], 3, "--device"),
        (["--attention", "standard", "--seq", "64", "--set", "window=3"], 2, "window"),
        (
            ["--attention", "standard", "--seq", "64", "--samples", "0"],
            2,
            "samples must be at least",
        ),
        (["--attention", "standard", "--seq", "64", "--threads", "0"], 2, "threads"),
        (["--attention", "standard", "--seq", "64", "--output", "/no/such/x"], 2, "--output"),
    ],
)
def test_bad_requests_end_with_one_helpful_message(attnprof, arguments, code, said):
    ended, out, err = run(attnprof, *arguments)
    assert (ended, out) == (code, "")
    assert said in err
    assert err.count("\n") == 1


def test_every_point_out_of_memory_ends_with_3_after_the_report(attnprof, tmp_path):
    target = tmp_path / "report.json"
    code, _, _ = run(
        attnprof, "--attention", "standard", "--seq", "16777216", "--device", "cpu", "--format",
        "json", "--output", str(target),
    )  # fmt: skip
    assert code == 3
    (row,) = json.loads(target.read_text())["records"]
    assert "does not fit" in row["skipped"]
    assert row["matmul_flops_formula"] > 0


def test_one_point_out_of_memory_is_a_row_among_others(attnprof):
    code, out, _ = run(
        attnprof, "--attention", "standard", "--seq", "32,16777216", "--device", "cpu",
        "--format", "json", *QUICK,
    )  # fmt: skip
    assert code == 0
    assert [bool(r["skipped"]) for r in json.loads(out)["records"]] == [False, True]


@pytest.mark.parametrize(
    ("flag", "checked"), [("--check", "float64; standard"), ("--no-check", None)]
)
def test_a_module_is_checked_before_it_is_timed_unless_told_not_to(attnprof, flag, checked):
    _, out, _ = run(
        attnprof, "--attention", "sdpa", "--seq", "16", "--d-model", "32", "--heads", "2",
        flag, "--format", "json", *QUICK,
    )  # fmt: skip
    (record,) = json.loads(out)["records"]
    assert record["checked"] == checked
    assert record["median_s"]


@pytest.mark.parametrize(
    ("phase", "shown", "hidden"),
    [
        ("train", ("activations", "gradients", "AdamW moments"), "KV cache"),
        ("decode", ("KV cache", "decoding state"), "gradients"),
    ],
)
def test_memory_is_shown_in_the_parts_of_the_phase(attnprof, phase, shown, hidden):
    _, out, _ = run(
        attnprof, "--attention", "standard", "--seq", "24", "--d-model", "32", "--heads", "2",
        "--phase", phase, *QUICK,
    )  # fmt: skip
    assert all(title in out for title in shown)
    assert hidden not in out
