"""Crossings over any size: against every integer, at known lengths alone, and what is refused."""

import json
from dataclasses import asdict, replace
from itertools import pairwise

import pytest
import sympy

import attnprof
from attnprof import registry
from attnprof.crossovers.axis import LONGEST, CrossoverAxis, Lengths
from attnprof.crossovers.report import crossover_answer, crossover_report
from attnprof.crossovers.sides import Contest, CostSource, Meeting
from attnprof.crossovers.solve import bisected, solved
from attnprof.errors import RequestError
from attnprof.units import amount, every
from attnprof.workload import Workload

#: A, B, what varies, the sizes given, and the last value that is looked at.
CASES = {
    "head width": ("taylor-direct", "taylor-efficient", "d", Workload(90, 1, 1), "core", 30),
    "head width, training": ("taylor-direct", "taylor-efficient", "d",
                             Workload(200, 2, 1, phase="train"), "layer", 24),
    "heads of a model": ("taylor-direct", "taylor-efficient", "heads", Workload(60, 1, 1), "core",
                         64),
    "heads of a width": ("standard", "linear", "heads", Workload(40, 1, 8), "layer", 12),
    "batch": ("standard", "linear", "batch", Workload(40, 2, 8), "layer", 12),
    "key heads": ("standard", "sdpa", "kv_heads", Workload(40, 12, 4), "layer", 12),
    "window": ("standard", "longformer", "window", Workload(48, 2, 8), "core", 70),
    "window, backward": ("standard", "longformer", "window", Workload(64, 2, 8, phase="backward"),
                         "layer", 40),
    "landmarks": ("standard", "nystromformer", "num_landmarks", Workload(48, 1, 8), "core", 48),
    "projection": ("standard", "linformer", "proj_len", Workload(50, 2, 8), "core", 60),
    "features": ("standard", "performer", "num_features", Workload(50, 2, 8), "core", 60),
    "rank": ("standard", "low-rank", "rank", Workload(50, 2, 8), "core", 60),
    "buckets": ("standard", "reformer", "bucket_size", Workload(64, 1, 8), "core", 64),
    "stride": ("standard", "sparse", "stride", Workload(60, 2, 8), "core", 60),
    "decoding": ("standard", "linear", "d", Workload(20, 2, 1, phase="decode"), "core", 40),
}  # fmt: skip


def counted(case, axis, value):
    """Differences A - B at a value, by metric; None where one refuses it."""
    a, b, _, workload, scope, _ = CASES[case]
    sides, sizes = axis.placed(list(map(registry.get, (a, b))), workload, value, workload.seq_len)
    first, second = (side.cost(sizes, scope) for side in sides)
    differences = {"flops": first.total.flops - second.total.flops,
             "memory": first.peak() - second.peak()}  # fmt: skip
    if workload.phase == "decode":
        differences["state"] = first.state_entries - second.state_entries
    return differences


def told_by_integers(differences):
    """Verdict and first value from the signs of all integers; a tie is the next sign's first."""
    values = sorted(differences)
    signs = {v: (differences[v] > 0) - (differences[v] < 0) for v in values}
    for before, value, after in zip([None, *values], values, values[1:], strict=False):
        if not signs[value] and signs.get(before, 1):
            signs[value] = signs[after]
    turns = [b for a, b in pairwise(values) if signs[a] != signs[b]]
    if turns:
        return "crosses" if len(turns) == 1 else "several", turns[-1], signs[values[-1]]
    verdict = "always" if signs[values[0]] > 0 else "never"
    return verdict, values[0] if verdict == "always" else None, signs[values[-1]]


@pytest.mark.parametrize("case", CASES)
def test_every_integer_agrees(case):
    a, b, over, workload, scope, last = CASES[case]
    axis = CrossoverAxis(over, last=last, d_model=64 if case == "heads of a model" else None)
    known = {}
    for value in range(1, last + 1):
        try:
            known[value] = counted(case, axis, value)
        except RequestError:
            continue
    meeting = Meeting(registry.get(a), registry.get(b), workload, scope, axis=axis)
    metrics = [*next(iter(known.values()))]
    report = crossover_report(meeting, [workload.seq_len], ["formula"], metrics, environment={})
    assert len(report.records) == len(metrics)
    for row in report.records:
        verdict, first, above = told_by_integers({v: its[row.metric] for v, its in known.items()})
        names = {1: b, -1: a, 0: None}
        assert (row.verdict, row.first_value) == (verdict, first), row.metric
        assert row.cheaper_above == names[above]
        assert (row.over, row.crossover_seq_len, row.first_seq_len) == (over, None, None)
        assert row.seq_len == workload.seq_len


def test_a_closed_form_is_one_in_the_length():
    for length in (64, 300, 1024):
        rows = attnprof.crossover(
            "taylor-direct", "taylor-efficient", over="d", seq_len=length, metrics="flops",
            kinds="published",
        ).records  # fmt: skip
        value = sympy.sympify(rows[0].closed_form, {"N": length})
        assert float(value) == pytest.approx(rows[0].crossover_value, rel=1e-9)
        assert rows[0].closed_form == "sqrt(4*N - 1)/2 - 1/2"


def test_the_head_width_at_a_length_is_the_inverse_of_the_length_at_a_head_width():
    how = {"metrics": "flops", "kinds": "formula"}
    (there,) = attnprof.crossover("standard", "linear", head_dim=48, **how).records
    lengths = [there.first_seq_len - 1, there.first_seq_len]
    report = attnprof.crossover("standard", "linear", over="d", seq_len=lengths, **how)
    before, after = (row.crossover_value for row in report.records)
    assert before < 48 <= after


def stub(one, other, over, **axis):
    meeting = Meeting(
        registry.get("standard"),
        registry.get("sdpa"),
        Workload(1, 1, 5),
        axis=CrossoverAxis(over, **axis),
    )
    costs = tuple(CostSource(lambda _, w, cost=cost: cost(w)) for cost in (one, other))
    return solved(meeting, Contest("flops", "formula", costs), 7)[0]


def test_all_verdicts_are_told_apart():
    assert stub(lambda w: w.batch_size, lambda w: w.seq_len * 3, "batch").first == 21
    assert stub(lambda w: w.batch_size, lambda _: 0, "batch").verdict == "always"
    assert stub(lambda _: 0, lambda w: w.head_dim, "d").verdict == "never"
    several = stub(lambda w: w.head_dim**2 + 20, lambda w: 9 * w.head_dim, "d")
    assert (several.verdict, [float(root.at) for root in several.roots]) == ("several", [4.0, 5.0])
    # rounded sizes: every integer of the range is decided by integers
    rounded = stub(lambda w: 2 * -(-w.head_dim // 8), lambda _: 81, "d")
    assert (rounded.verdict, rounded.first) == ("crosses", 321)


def test_a_range_bounds_what_is_looked_at():
    def crossing(**span):
        return stub(lambda w: w.batch_size, lambda _: 100, "batch", **span)

    assert crossing().first == 100
    assert crossing(last=99).verdict == "never"
    assert crossing(first=101).verdict == "always"


@pytest.mark.parametrize(
    ("over", "message"),
    [("windw", "did you mean window?"), ("bias", "possible: seq, d"), ("rank", "num_landmarks")],
)
def test_an_unknown_axis_says_what_is_possible(over, message):
    with pytest.raises(RequestError, match="--over") as refused:
        attnprof.crossover("longformer", "nystromformer", over=over)
    assert message in str(refused.value)


def test_values_are_named_with_what_they_are():
    assert amount("seq", 1) == "1 token"
    assert amount("heads", 1200) == "1,200 heads"
    assert amount("d", 64) == "head width 64"
    assert amount("window", 64) == "window 64"
    assert every("rank") == "value of rank"


def test_rows_over_another_axis_have_a_parameter_for_what_varies():
    (row,) = attnprof.crossover(
        "standard", "longformer", over="window", seq_len=256, metrics="flops", kinds="formula"
    ).records
    assert "window" not in row.params_b
    assert json.loads(json.dumps(asdict(row)))["over"] == "window"


def test_an_answer_ends_where_derived_formulas_do_and_says_at_least():
    row = attnprof.crossover("taylor-direct", "taylor-efficient", head_dim=16).records[0]
    sentence = "taylor-efficient needs fewer FLOPs than taylor-direct from 273 tokens on"
    assert crossover_answer([row]).endswith(f"{sentence}.")
    ends = replace(row, kind="derived", searched=[[2, 512]])
    assert crossover_answer([ends]).endswith(f"{sentence}, up to 512 tokens.")
    floor = replace(row, kind="derived", bound="flops of f is at least what is compared here")
    assert crossover_answer([floor]).endswith(f"{sentence} (by totals that are at least these).")


def test_an_answer_says_where_a_measurement_contradicts_a_prediction():
    row = attnprof.crossover("taylor-direct", "taylor-efficient", head_dim=16).records[0]
    timed = {"metric": "time", "unit": "s", "closed_form": None}
    measured = replace(row, **timed, kind="measured", verdict="crosses", crossover_value=40.0)
    near = replace(measured, kind="predicted", crossover_value=44.0, ci_low=30.0, ci_high=60.0)
    assert "Predicted" not in crossover_answer([near, measured])
    far = replace(near, ci_low=42.0)
    sentence = "Predicted was a crossing at 44 tokens, measured a crossing at 40 tokens."
    assert crossover_answer([far, measured]).endswith(sentence)
    alike = replace(measured, ci_low=38.0, ci_high=42.5)  # intervals overlap
    assert "Predicted" not in crossover_answer([far, alike])
    always = replace(near, verdict="always", crossover_value=None)
    sentence = "Predicted was taylor-efficient faster everywhere, measured a crossing at 40 tokens."
    assert crossover_answer([always, measured]).endswith(sentence)


@pytest.mark.parametrize(("looked_at", "ends", "contradicts"), [
    ([16, 4096], (9000.0, 12_000.0), False),  # beyond what was timed
    ([16, 4096], (2500.0, 5000.0), False),  # may be
    ([16, 16_384], (9000.0, 12_000.0), True),
])  # fmt: skip
@pytest.mark.parametrize("faster", ["taylor-direct", "taylor-efficient"])
def test_a_prediction_is_contradicted_only_where_times_were_taken(
    looked_at, ends, contradicts, faster
):
    row = attnprof.crossover("taylor-direct", "taylor-efficient", head_dim=16).records[0]
    timed = {"metric": "time", "unit": "s", "closed_form": None, "searched": [[16, 2**20]]}
    at = sum(ends) / 2
    predicted = replace(
        row, **timed, kind="predicted", crossover_value=at, ci_low=ends[0], ci_high=ends[1]
    )
    never = replace(
        row, **{**timed, "searched": [looked_at]}, kind="measured", verdict="never",
        crossover_value=None, cheaper_below=faster, cheaper_above=faster,
    )  # fmt: skip
    said = "Predicted was a crossing" in crossover_answer([predicted, never])
    wrong_side = faster != predicted.cheaper_below and at > looked_at[1]
    assert said is (contradicts or wrong_side)


PREDICATES = {
    "from two on": (lambda n: n >= 2, [(2, None)], 1),
    "multiples of 64": (lambda n: n % 64 == 0, [(64, None)], 64),
    "a table of positions": (lambda n: 2 <= n <= 4096, [(2, 4096)], 1),
    "blocks up to 4,096": (lambda n: n % 64 == 0 and 64 <= n <= 4096, [(64, 4096)], 64),
    "a class apart": (lambda n: n % 256 == 37 and n < 5000, [(37, 4901)], 256),
    "above a branch": (lambda n: n > 307, [(308, None)], 1),
    "two branches": (lambda n: 2 <= n <= 128 or n >= 308, [(2, 128), (308, None)], 1),
    "no multiples": (lambda n: n % 64 != 0, [(1, None)], 1),
    "long ones only": (lambda n: n >= 10_000, [(10_000, None)], 1),
    "a single one": (lambda n: n == 100, [(100, 100)], 1),
    "none": (lambda _: False, [], 1),
}


@pytest.mark.parametrize("name", PREDICATES)
def test_stretches_and_steps_are_found(name):
    holds, stretches, step = PREDICATES[name]
    known = Lengths(holds)
    assert (known.stretches, known.step) == (stretches, step)
    assert all(holds(length) and length <= 2 * LONGEST for length in known.grid())


@pytest.mark.parametrize("name", [name for name in PREDICATES if name != "none"])
def test_only_known_lengths_are_looked_at_and_the_first_of_them_is_found(name):
    holds, stretches, _ = PREDICATES[name]
    middle = stretches[0][0] + 640

    def difference(length):
        assert holds(length)
        return length - middle

    crossings = bisected(difference, Lengths(holds))
    wanted = next((n for n in range(middle, middle + 400) if holds(n)), None)
    if wanted is None:
        assert crossings.verdict in ("never", "always") or stretches[1:]
    else:
        assert crossings.first == wanted
