"""Predictions are sums of what was measured of single operations; recommendations rank them."""

import itertools
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from attnprof import registry
from attnprof.device import calibration, recommendation
from attnprof.device.benchmarks import CHAIN, POINTWISE, POINTWISE_PREPARED, WEIGHT_ENTRIES
from attnprof.device.calibration import Calibration
from attnprof.device.call_costs import CALLS
from attnprof.device.ceilings import Ceilings, stated_ceilings
from attnprof.device.machine_reading import MachineReading
from attnprof.device.operation_forms import OUTER, KernelCall
from attnprof.device.operations import Demand, operations_of
from attnprof.device.prediction import Predictor, alternative, predict_points, record_with_peak
from attnprof.device.recommendation import gives_up, recommend
from attnprof.device.tables import TimeTable
from attnprof.device.times import Times
from attnprof.errors import CannotRunError, RequestError
from attnprof.measure.allocator import LARGEST_KEPT
from attnprof.measure.environment import device_name
from attnprof.measure.request import PointRequest
from attnprof.workload import Workload

SQUARE = ("fused square", "fused causal", "fused backward", "fused causal backward")
FLOP_S, BYTE_S = 1e-10, 1e-9
SOME = Ceilings("some device", {"float32": 1e11}, 1e10, "a test")


def made_up():
    """A device without overheads: products by their FLOPs, everything else by its entries."""
    grid, ends = (1, 1024, 2**20), (1, 8, 96, 4096)
    products = {
        (b, m, n, k, layout): 2 * b * m * n * k * FLOP_S
        for b, m, n, k, layout in itertools.product((1, 64), ends, ends, ends, (1, 2))
    }
    entries = {(n,): 4 * n * BYTE_S for n in grid}
    rows = {(a, b): 4 * a * b * BYTE_S for a in grid for b in (1, 4096)}
    patterns = ("fill", "in place", "unary", "binary", "binary in place")
    over_rows = (
        *(f"{outer}{name}" for outer in ("", "outer ") for name in OUTER),
        "max", "layer norm", "layer norm backward", "cumsum", "sort", "gather", "scatter",
        "fourier", "inverse fourier", "strided",
    )  # fmt: skip
    nothing = {(1,): 1e-30}
    scores = {
        (h, n, m, d): 4 * h * n * m * d * FLOP_S
        for h, n, m, d in itertools.product((1, 64), ends, ends, (1, 64))
    }
    square = {(h, n * m, d): seconds for (h, n, m, d), seconds in scores.items() if n == m}
    tables = {
        "vector product": {p: s for p, s in products.items() if 1 in (p[1], p[3])},
        "product": products,
        **dict.fromkeys(patterns, entries), **dict.fromkeys(over_rows, rows),
        **{f"of {name}": entries for name in (*POINTWISE, *POINTWISE_PREPARED)},
        "fused": scores, **dict.fromkeys(SQUARE, square),
        "weights": {(n,): n * 2 * FLOP_S for n in WEIGHT_ENTRIES},
        "broadcast": rows, "4 views": nothing, "functions": nothing,
        **dict.fromkeys(("sequence", "broken sequence", "flush", "chain", "recorded"), nothing),
        "played": {(1,): 5e-30}, "alone": {(1,): 16e-30},
    }  # fmt: skip
    return {name: TimeTable(seconds) for name, seconds in tables.items()}


def test_products_take_their_flops_and_the_rest_its_entries():
    times = Times(made_up())
    work = operations_of(PointRequest("standard", 96, 2, 8, scope="core"))
    products = sum(times.seconds(o) for o in work.operations if o.form == "product")
    assert products == pytest.approx(2 * 2 * 2 * 96 * 96 * 8 * FLOP_S)
    softmax = sum(times.seconds(o) for o in work.operations if o.form == "softmax")
    assert softmax == pytest.approx(4 * 2 * 96 * 96 * BYTE_S)


def test_what_a_layer_computes_in_another_format_is_priced_in_that_one():
    dear = {name: TimeTable({k: 3 * v for k, v in table.seconds.items()})
            for name, table in made_up().items()}  # fmt: skip
    known = Calibration(SOME, "cpu", 1, {"float32": made_up(), "bfloat16": dear})
    both, alone = Predictor(known).times("bfloat16"), Times(dear, entry_bytes=2)
    whole, half = (
        KernelCall("mm", "product", (1, 64, 64, 64), dtype=name) for name in known.tables
    )
    assert both.seconds(whole) == Times(made_up()).seconds(whole)
    assert both.seconds(half) == alone.seconds(half) == alone.seconds(whole)
    assert both.call_s_of(whole) == pytest.approx(both.call_s_of(half) / 3)
    assert "float32 was not" not in Predictor(known).made_of
    assert "float32 was not" in Predictor(replace(known, tables={"bfloat16": dear})).made_of
    request = PointRequest("retnet", 96, 2, 8, dtype="bfloat16")
    assert {"float32", "bfloat16"} <= {o.dtype for o in operations_of(request).operations}


def test_factors_of_half_formats_that_lie_apart_are_packed_first():
    packed = (KernelCall("clone", "unary", (2**20,), dtype="bfloat16"),)
    plain = KernelCall("bmm", "product", (8, 64, 64, 64), dtype="bfloat16")
    times = Times(made_up(), entry_bytes=2)
    assert times.seconds(replace(plain, packed=packed)) == pytest.approx(
        times.seconds(plain) + times.seconds(*packed)
    )


def test_weights_that_no_cache_holds_until_the_next_call_take_longer():
    tables = made_up()
    near, far = WEIGHT_ENTRIES[0], WEIGHT_ENTRIES[-1]
    tables["weights"] = TimeTable({(near,): near * 1e-9, (far,): far * 5e-9})
    times, entry_bytes = Times(tables), 4
    product = KernelCall("mm", "product", (1, 1, 64, 64), weights=64 * 64 * entry_bytes)

    def far_s(size):
        return times.between(Demand([product, product], input_bytes=size))["weights from memory"]

    assert far_s(entry_bytes * near) == (2, 0.0)
    assert far_s(entry_bytes * far) == (2, pytest.approx(2 * 64 * 64 * 4e-9))


@pytest.mark.parametrize("name", ["standard", "sdpa"])  # two products, one fused kernel
def test_the_weights_of_a_call_are_what_it_did_not_make(name):
    request = PointRequest(name, 96, 2, 8, phase="decode")
    work = operations_of(request)
    weights, biases, row, cache = 4 * 4 * 16 * 16, 4 * 4 * 16, 4 * 16, 2 * 4 * 16 * 96
    assert sum(o.weights for o in work.operations) == weights + biases + 3 * row + cache
    assert weights + cache <= work.input_bytes < 1.2 * (weights + cache)


def test_products_alike_are_one_row_whether_their_factors_are_given_or_made():
    known = Calibration(SOME, "cpu", 1, {"float32": made_up()})
    rows = Predictor(known).point(PointRequest("standard", 96, 2, 8)).operations
    places = [(row["name"], tuple(row["sizes"]), row["part"]) for row in rows if row["sizes"]]
    assert len(places) == len(set(places))
    assert ("addmm", (1, 96, 16, 16), "forward") in places


def test_new_memory_is_paid_only_where_the_c_library_maps_it_anew():
    times = Times(made_up(), fault_s=1e-6)
    small, large = (KernelCall("mul", "unary", (9,), fresh=LARGEST_KEPT + more) for more in (-1, 0))
    assert times.seconds(large) - times.seconds(small) == pytest.approx(LARGEST_KEPT * 1e-6)


def test_a_call_pays_for_its_number_and_for_memory_or_arithmetic():
    grid = (1, 1024, 2**20)
    steep = {name: {(n,): (each * n + call) * 1e-9 for n in grid}
             for name, each, call in (("in place", 1, 900), ("binary", 3, 200), ("of mul", 2, 900),
                                      ("of exp", 9, 300), ("of neg", 2, 100))}  # fmt: skip
    times = Times({**made_up(), **{name: TimeTable(rows) for name, rows in steep.items()}})

    def of(name, **more):
        return times.seconds(KernelCall(name, "in place", (2**20,), **more)) * 1e9

    assert of("mul_") == pytest.approx(900 + 2**20, rel=1e-5)  # memory; and a number as operand
    assert of("mul_", operands=2) == pytest.approx(200 + 2**20, rel=1e-5)  # another tensor
    assert of("neg_") == pytest.approx(100 + 2**20, rel=1e-5)
    assert of("exp_") == pytest.approx(300 + 9 * 2**20, rel=1e-3)  # arithmetic


def test_nodes_and_functions_are_added():
    dear = {"played": TimeTable({(1,): CHAIN * 7e-6}), "functions": TimeTable({(1,): 1e-3})}
    times = Times({**made_up(), **dear})
    assert times.of(Demand([], nodes=3)) == pytest.approx(3 * 7e-6, rel=1e-3)
    assert times.of(Demand([], functions=2)) == pytest.approx(2 * times.function_s)


def test_what_comes_between_calls_makes_them_dearer_whatever_their_size():
    dearer = {"sequence": TimeTable({(1,): 1.5e-30}), "functions": TimeTable({(1,): 1e-3})}
    times = Times({**made_up(), "in place": TimeTable({(1,): 2e-6, (2**20,): 1e-3}), **dearer})

    def pair(size, *names):
        return [KernelCall(name, "in place", (size,), operands=2) for name in names]

    def more(calls):
        return times.of(Demand(calls)) - sum(map(times.seconds, calls))

    small, large = (more(pair(size, "mul_", "neg_")) for size in (8, 2**20))
    assert small == pytest.approx(large)
    assert small > 0
    assert more(pair(8, "mul_", "mul_")) == 0.0
    two = Demand(pair(8, "mul_", "neg_"), functions=2)
    functions = times.of(two) - times.of(Demand(two.operations))
    of_two_kinds = 0.5 / (len(CALLS) - 1)
    assert functions == pytest.approx(2 * times.function_s * (1 + of_two_kinds))


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """The calibration of this device, made up."""
    path = tmp_path_factory.mktemp("device") / "calibration.json"
    ceilings = Ceilings(device_name("cpu"), {"float32": 1e10}, 1e9, "", measured=True)
    calibration.save(Calibration(ceilings, "cpu", 1, {"float32": made_up()}), path)
    return path


@pytest.fixture
def here(known, tmp_path):
    """A copy of it, to be changed."""
    return Path(shutil.copy(known, tmp_path))


def test_a_point_has_time_interval_peak_and_what_takes_the_time(here):
    request = PointRequest("standard", 96, 2, 8, threads=1)
    report = predict_points([request], path=here)
    assert json.loads(report.to_json())["records"][0]["operations"]
    (record,) = report.records
    assert record.ci_low_s < record.time_s < record.ci_high_s
    assert record.peak_bytes_predicted > 0
    assert record.operations[0]["time_s"] >= record.operations[-1]["time_s"]
    assert sum(row["time_s"] for row in record.operations) <= record.time_s * (1 + 1e-9)


def test_the_faster_mechanism_at_every_length_is_the_answer(here):
    points = [PointRequest(name, seq, 1, 8, threads=1, scope="core")
              for seq in (8, 4096) for name in ("taylor-direct", "taylor-efficient")]  # fmt: skip
    answer = predict_points(points, path=here).summary["answer"]
    assert "taylor-direct at 8 tokens and taylor-efficient at 4,096 tokens" in answer


def test_an_answer_names_both_where_intervals_overlap_and_promises_nothing_by_lower_bounds(here):
    points = [PointRequest(name, 64, 1, 8, threads=1, scope="core")
              for name in ("taylor-efficient", "standard", "optimised")]  # fmt: skip
    report = predict_points(points, path=here)
    first, second, last = sorted(report.records, key=lambda record: record.time_s)
    assert second.ci_low_s <= first.ci_high_s < last.ci_low_s
    sentence = f"predicted to be fastest: {first.mechanism} or {second.mechanism} at 64 tokens"
    assert report.summary["answer"] == sentence
    assert predict_points(points, on="H100").summary["answer"].startswith("least by lower bounds: ")


@pytest.mark.parametrize(
    "reading", [MachineReading(slowdown=4), MachineReading(slowdown=0.25), MachineReading(swing=4)]
)
def test_a_speed_that_two_mechanisms_have_in_common_makes_no_rival(reading):
    request = PointRequest("standard", 64, 1, 8, threads=1, scope="core")
    near, far = (Predictor(Calibration(SOME, "cpu", 1, {"float32": made_up()}), False, by)
                 for by in (MachineReading(), reading))  # fmt: skip
    for factor in (1.01, 3.0):
        pairs = []
        for predictor in (near, far):
            first = predictor.point(request)
            times = (first.time_s, first.ci_low_s, first.ci_high_s)
            time_s, low_s, high_s = (factor * one for one in times)
            second = replace(first, mechanism="b", time_s=time_s, ci_low_s=low_s, ci_high_s=high_s)
            pairs.append(alternative([first, second], first, predictor.reading))
        assert pairs[0] == pairs[1] == (" or b" if factor < 2 else "")


def test_without_a_calibration_of_this_device_it_says_what_to_type(tmp_path):
    with pytest.raises(CannotRunError, match="attnprof calibrate --threads 1"):
        predict_points([PointRequest("standard", 8, 1, 8, threads=1)], path=tmp_path / "none.json")


def test_a_format_that_was_not_calibrated_is_a_row_with_what_to_type(here):
    request = PointRequest("standard", 8, 1, 8, threads=1, dtype="bfloat16")
    (record,) = predict_points([request], path=here).records
    assert "attnprof calibrate --dtype bfloat16" in record.skipped


def test_a_device_elsewhere_has_its_roofline_for_a_lower_bound():
    request = PointRequest("standard", 4096, 8, 64, dtype="bfloat16")
    (record,) = predict_points([request], on="H100").records
    rate = stated_ceilings("H100").flops_per_s["bfloat16"]
    assert record.time_s >= 2 * 2 * 8 * 4096**2 * 64 / rate
    assert (record.ci_low_s, record.ci_high_s) == (record.time_s, None)
    assert record.device == "cuda"
    with pytest.raises(RequestError, match=r"possible: .*H200"):
        predict_points([request], on="a toaster")


def test_profile_predicts_instead_of_running(attnprof, here, monkeypatch):
    monkeypatch.setattr(calibration, "default_path", lambda: here)
    shape = "--seq 64 --d-model 8 --heads 1 --threads 1"
    report = attnprof(f"profile -a linear {shape} --predict-only --format json").json
    assert report["command"] == "predict"
    assert report["records"][0]["time_s"] > 0


@pytest.mark.parametrize(("name", "form", "sizes", "table"), [
    ("", "fused", (8, 1, 4096, 64, 64), "fused"),
    ("", "fused", (8, 256, 256, 64, 64), "fused square"),
    ("", "fused causal", (8, 256, 256, 64, 64), "fused causal"),
    ("_backward", "fused", (8, 256, 256, 64, 64), "fused backward"),
    ("_backward", "fused causal", (8, 256, 256, 64, 64), "fused causal backward"),
])  # fmt: skip
def test_fused_attention_takes_what_its_own_kernel_took(name, form, sizes, table):
    square = TimeTable({(h, n * n, d): 1.0 for h in (1, 8) for n in (64, 256) for d in (16, 64)})
    tables = dict.fromkeys(SQUARE, square)
    queries = itertools.product((1, 8), (1, 64), (64, 4096), (16, 64))
    tables["fused"] = TimeTable(dict.fromkeys(queries, 1.0))
    tables[table] = TimeTable(dict.fromkeys(tables[table].seconds, 2.0))
    call = KernelCall(f"_scaled_dot_product_flash_attention_for_cpu{name}", form, sizes)
    assert Times(tables).seconds(call) == pytest.approx(2.0)


@pytest.mark.parametrize(("name", "table"), [
    ("product", None), ("softmax", None), ("flush", None),
    ("softmax", {(n,): 1.0 for n in (1, 8)}),
    ("sum", dict.fromkeys(zip(range(1, 900), range(1, 900), strict=True), 1.0)),
])  # fmt: skip
def test_a_calibration_without_a_table_is_a_row_with_what_to_type(here, name, table):
    kept = json.loads(here.read_text())
    tables = kept["ceilings"][0]["tables"]["float32"]
    del tables[name]
    if table:
        tables[name] = [[*place, seconds] for place, seconds in table.items()]
    here.write_text(json.dumps(kept))
    (record,) = predict_points([PointRequest("standard", 8, 1, 8, threads=1)], path=here).records
    assert name in record.skipped
    assert "attnprof calibrate --dtype float32" in record.skipped


#: Operations over entries that take ever less for more of them, as one would read by mistake.
FALLING = {
    "adding in place": ("in place", {(1,): 5e-3, (1024,): 1e-3, (2**20,): 1e-4}),
    "multiplying": ("of mul", {(1,): 5e-3, (1024,): 1e-3, (2**20,): 1e-4}),
    "filling": ("fill", {(1,): 5e-3, (1024,): 1e-3, (2**20,): 1e-4}),
    "softmax": ("softmax", {(1, 1): 5e-3, (1, 4096): 1e-3, (2**20, 1): 1e-3, (2**20, 4096): 1e-4}),
}


def falling(path, name, table, faster=1.0):
    """A file whose table falls, ends ``faster`` so many times; the records of a layer by it."""
    kept = json.loads(path.read_text())
    rows = [[*place, seconds] for place, seconds in table.items()]
    rows[-1][-1] /= faster
    kept["ceilings"][0]["tables"]["float32"][name] = rows
    path.write_text(json.dumps(kept))
    requests = [
        PointRequest("standard", n, 2, 8, phase=phase, threads=1)
        for n in (8, 4096) for phase in ("forward", "train")
    ]  # fmt: skip
    return predict_points(requests, path=path).records


@pytest.mark.parametrize("case", FALLING)
def test_no_operation_takes_less_than_no_time_where_tables_fall(here, case):
    by_length = falling(here, *FALLING[case])
    for record in by_length:
        assert record.skipped is None
        assert 0 < record.ci_low_s < record.time_s < record.ci_high_s
        assert all(row["time_s"] >= 0 for row in record.operations)
    assert by_length[0].time_s < by_length[2].time_s


@pytest.mark.parametrize("case", FALLING)
def test_a_table_that_falls_as_no_kernel_does_is_refused(here, case):
    name, table = FALLING[case]
    for record in falling(here, name, table, faster=1000.0):
        assert record.time_s is None
        assert f"its table of {name} falls with size, from " in record.skipped
        assert "type attnprof calibrate --dtype float32" in record.skipped


def test_what_would_take_no_time_is_refused():
    no_numbers = {"softmax": TimeTable({(1, 1): float("nan")})}
    work = Demand([KernelCall("softmax", "softmax", (8, 8))])
    with pytest.raises(RequestError, match=r"gives nan s for 1 operation, which is no time: type"):
        Times({**made_up(), **no_numbers}).of(work)


def ranked(known, workload, **how):
    mechanisms = {name: registry.get(name) for name in registry.names()}
    return recommend(workload, mechanisms, device="cpu", threads=1, path=known, **how)


@pytest.fixture(scope="module")
def ranking(known):
    return ranked(known, Workload(64, 2, 16))


def test_exact_ones_come_first_and_the_fast_before_the_slow(ranking):
    rows = [row for row in ranking.records if row.rank is not None]
    assert [row.rank for row in rows] == list(range(1, len(rows) + 1))
    for exact in (True, False):
        times = [float(f"{row.time_s:.3g}") for row in rows if row.exact is exact]
        assert times == sorted(times)
    assert [row.exact for row in rows] == sorted((row.exact for row in rows), reverse=True)
    assert {row.mechanism for row in ranking.records} == set(registry.names())
    assert ranking.summary["answer"].startswith(f"At 64 tokens take {rows[0].mechanism}")
    assert ranking.summary["fastest"]


def test_two_whose_intervals_overlap_are_both_named(ranking):
    first, second = [row for row in ranking.records if row.exact and row.rank is not None][:2]
    assert second.ci_low_s <= first.ci_high_s
    sentence = f"At 64 tokens take {first.mechanism} or {second.mechanism}: "
    assert ranking.summary["answer"].startswith(sentence)
    sure = [replace(row, ci_low_s=row.time_s, ci_high_s=row.time_s) for row in ranking.records]
    assert recommendation._answer(sure, [], MachineReading()).startswith(
        f"At 64 tokens take {first.mechanism}: "
    )


@pytest.mark.parametrize(
    ("names", "memory", "first", "ending"),
    [
        # equal but for biases, which three digits do not show
        (["sdpa", "gqa"], None, "sdpa", " that computes softmax attention"),
        (["linear", "mla"], None, "linear", ""),
        (["standard", "linear"], 2**26, "linear", "; no exact one can do what is asked"),
    ],
)
def test_the_best_of_named_mechanisms_is_one_sentence(names, memory, first, ending):
    report = recommend(
        Workload(4096, 8, 64), {x: registry.get(x) for x in names}, on="H100", memory=memory
    )
    assert [row.mechanism for row in report.records if row.rank == 1] == [first]
    assert {row.mechanism for row in report.records} == {*names}
    answer = report.summary["answer"]
    start = rf"At 4,096 tokens take {first}: at least \S+ µs, the fastest"
    assert re.fullmatch(rf"{start}{ending}\.", answer), answer


def test_the_fastest_at_other_lengths_may_be_one_whose_operations_are_not_all_listed():
    def predict(request, _):
        """Return a time; linear takes multiples of 32, of which 1,500 tokens can be listed."""
        n = request.seq_len
        if request.mechanism == "linear" and n % 32:
            raise RequestError(f"not {n}")
        if request.mechanism == "linear" and n > 1500:
            raise CannotRunError("too many operations")
        return replace(
            record_with_peak(request), time_s=n if request.mechanism == "linear" else n**2
        )

    points = [PointRequest(name, 2048, 1, 8) for name in ("standard", "linear")]
    (stretch,) = recommendation._stretches(points, predict, None)
    assert (stretch["exact"], stretch["fastest"]) == ("standard", "linear")
    odd = replace(points[1], seq_len=2080)  # a sixteenth of it is refused, and so are both others
    with pytest.raises(CannotRunError, match="too many operations"):
        recommendation._predict(odd, predict)


def test_what_does_not_fit_or_cannot_has_no_rank_but_a_reason(known, monkeypatch):
    monkeypatch.setattr(registry, "names", lambda: ["standard", "sdpa", "linformer"])
    rows = ranked(known, Workload(64, 2, 16, causal=True), memory=100_000).records
    left = [row for row in rows if row.rank is None]
    assert all(row.skipped for row in left)
    by_name = {row.mechanism: row for row in rows}
    assert "causal" in by_name["linformer"].skipped
    assert by_name["standard"].fits is False
    assert by_name["sdpa"].rank is not None


def test_where_nothing_fits_that_is_said(known, monkeypatch):
    monkeypatch.setattr(registry, "names", lambda: ["standard", "linear"])
    said = r"can do what is asked here: linear needs .+; standard needs .+; type .+ more --memory"
    with pytest.raises(CannotRunError, match=said):
        ranked(known, Workload(256, 2, 16), memory=1000)


def test_what_is_given_up_is_told_of_all_that_are_not_exact():
    for spec in map(registry.get, registry.names()):
        assert bool(gives_up(spec)) is (spec.to_softmax[0] != "same"), spec.name
