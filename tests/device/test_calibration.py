"""Single operations are timed into tables, which a file keeps."""

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attnprof.device import calibration, calibration_run
from attnprof.device.benchmarks import Benchmark, benchmarks
from attnprof.device.calibration import Calibration
from attnprof.device.ceilings import Ceilings
from attnprof.device.checked_layers import CheckedLayer, SelfCheck
from attnprof.device.operation_forms import KernelCall
from attnprof.device.prediction import Predictor, predict_points
from attnprof.device.tables import TimeTable
from attnprof.device.times import Times
from attnprof.errors import CannotRunError, RequestError
from attnprof.measure.clocks import Clock
from attnprof.measure.environment import device_name
from attnprof.measure.request import Budget, PointRequest
from tests.device.test_prediction import SOME, made_up


def bench_of(now, *benchmark, reference=lambda: None):
    """A bench of one benchmark, by a clock of these nanoseconds."""
    clock = Clock(lambda: now[0], lambda: now[0])
    made = [Benchmark("one", *benchmark)]
    return calibration_run._Bench(lambda _: clock, 0.5, made, reference, 1e12)


def test_a_place_has_the_seconds_of_one_call():
    now = [0]

    def make(a, b):
        def call():
            now[0] += 1000 * a * b  # nanoseconds

        return call

    bench = bench_of(now, ((1, 8), (2, 4)), make, 16)
    tables, again = bench.tables()
    assert tables["one"].seconds == pytest.approx({(1, 2): 2e-6, (1, 4): 4e-6, (8, 2): 16e-6})
    assert again == pytest.approx([0.0] * 3)


def test_places_of_a_disturbed_processor_are_measured_again_for_a_while(monkeypatch):
    now, asked = [0], []
    slow = [n % 7 > 1 for n in range(10_000)]  # of 7 readings two are undisturbed

    def waiting(nanoseconds):
        def call():
            now[0] += nanoseconds * (3 if slow[len(asked)] else 1)

        return call

    def make(a):
        asked.append(a)
        return waiting(1000 * a)

    bench = bench_of(now, ((1, 8),), make, 8, reference=waiting(500))
    tables, _ = bench.tables()
    assert tables["one"].seconds == pytest.approx({(1,): 1e-6, (8,): 8e-6})
    monkeypatch.setattr(calibration_run, "REPEAT_LIMIT", 0)
    before = len(asked)
    bench.tables()
    assert len(asked) - before < before


@pytest.mark.parametrize(("limit", "passes"), [(1e9, 2), (-1, 1)])
def test_a_slow_processor_times_grids_once_and_all_scattered_places(monkeypatch, limit, passes):
    monkeypatch.setattr(calibration_run, "GRID_LIMIT", limit)
    now, made = [0], []

    def make(*place):
        made.append(place)
        return lambda: now.__setitem__(0, now[0] + 1000)

    grid = Benchmark("grid", ((1, 8),), make, 8, 1)
    scattered = Benchmark("scattered", (), make, 8, 1, scattered=((2, 3), (3, 2)))
    clock = Clock(lambda: now[0], lambda: now[0])
    bench = calibration_run._Bench(lambda _: clock, 0.5, [grid, scattered], None, 1e12)
    tables, _ = bench.tables()
    assert [made.count(place) for place in ((1,), (8,), (2, 3), (3, 2))] == [passes, passes, 1, 1]
    assert [len(tables[name].seconds) for name in ("grid", "scattered")] == [2, 2]


def test_products_of_a_slow_format_are_small():
    one = Benchmark("product", ((1, 8, 64),), lambda n: lambda: n, 64, flops=2)
    bench = calibration_run._Bench(lambda _: Clock(), 0.5, [one], lambda: None, 2000.0)
    tables, _ = bench.tables()
    assert list(tables["product"].seconds) == [(1,), (8,)]  # 64 would take 0.064 s


def test_the_rate_of_a_slow_format_is_that_of_small_products(monkeypatch):
    now, sizes = [0], []

    def slow(self, _other):
        sizes.append(len(self))
        now[0] += len(self) ** 3 * 100  # nanoseconds
        return self

    monkeypatch.setattr(torch.Tensor, "__matmul__", slow)
    monkeypatch.setattr(calibration_run, "PRODUCTS", (16, 32, 64, 128, 256))
    rate = calibration_run._product_rate(
        "cpu", "float32", Clock(lambda: now[0], lambda: now[0]), Budget(3, 0.0, 0.1, 0.0)
    )
    assert rate == pytest.approx(2e7)
    assert max(sizes) == 64


@pytest.mark.parametrize("one", benchmarks(torch.float32, "cpu"), ids=lambda one: one.name)
def test_every_benchmark_runs_at_its_smallest_place(one):
    place = next(iter(one.places()))
    assert one.make(*place)() is not None
    assert len(place) == len(one.axes or one.scattered[0])


def test_a_busy_machine_is_refused_unless_that_is_wanted(monkeypatch):
    monkeypatch.setattr(calibration_run, "processor_share", lambda: 0.3)
    monkeypatch.setattr(calibration_run, "PRODUCTS", (64,))
    monkeypatch.setattr(calibration_run, "COPY_BYTES", 1 << 20)
    monkeypatch.setattr(calibration_run, "benchmarks", lambda *_: benchmarks(*_)[-2:])
    monkeypatch.setattr(calibration_run, "_checks", lambda *_: {})
    with pytest.raises(CannotRunError, match=r"30%.*--contended"):
        calibration_run.calibrate("cpu", ["float32"], 0.01)
    measured = calibration_run.calibrate("cpu", ["float32"], 0.01, contended=True)
    assert measured.cpu_share == 0.3
    assert measured.ceilings.flops_per_s["float32"] > 0 < measured.ceilings.bytes_per_s
    assert torch.__version__ in measured.ceilings.source
    assert len(measured.tables["float32"]) == 2


def test_tables_come_back_from_their_file(tmp_path):
    tables = {"float32": {"product": TimeTable({(1, 8, 8, 8): 1e-6, (1, 8, 8, 16): 2e-6})}}
    more = {"fault_s": 1e-10, "repeatability": 0.02, "cpu_share": 0.97, "unsteadiness": 0.2}
    more["reference_s"], more["conditions"] = 1e-6, {"cores": "2"}
    layers = (
        CheckedLayer("linear", "train", 64, 2, 8, 1e-3, 2e-3),
        CheckedLayer("we", "decode", 8, 1, 8, 1e-5, 1e-5, 2e-5),
    )
    more["checks"] = {"float32": SelfCheck(layers)}
    made = Calibration(SOME, "cpu", 2, tables, **more)
    calibration.save(made, tmp_path / "c.json")
    loaded = calibration.load("some device", 2, tmp_path / "c.json")
    assert loaded.to_dict() == made.to_dict()
    assert loaded.tables["float32"]["product"].at((1, 8, 8, 16)) == pytest.approx(2e-6)


def written(folder, entry):
    path = folder / "c.json"
    path.write_text(json.dumps({"schema": "attnprof/1", "ceilings": [entry]}))
    return path


def test_ceilings_of_an_older_file_are_read_without_tables(tmp_path):
    entry = Calibration(SOME, "cpu", 2).to_dict()
    for name in ("version", "tables", "fault_s", "repeatability", "cpu_share"):
        del entry[name]
    loaded = calibration.load("some device", 2, written(tmp_path, entry))
    assert (loaded.ceilings.bytes_per_s, loaded.tables) == (1e10, {})


def calibrated(dtype, seconds=1.0, **more):
    tables = {dtype: {"product": TimeTable({(1, 8, 8, 8): seconds})}}
    ceilings = Ceilings("some device", {dtype: 1e11}, 1e10, "a test")
    return Calibration(ceilings, "cpu", 2, tables, **more)


def test_formats_are_added_whatever_their_order_and_one_again_is_replaced(tmp_path):
    path = tmp_path / "c.json"
    for dtype, seconds in (("float32", 1.0), ("bfloat16", 2.0), ("float64", 3.0), ("float32", 4.0)):
        calibration.save(calibrated(dtype, seconds, fault_s=seconds / 10), path)
    loaded = calibration.load("some device", 2, path)
    kept = {dtype: tables["product"].at((1, 8, 8, 8)) for dtype, tables in loaded.tables.items()}
    assert kept == pytest.approx({"float32": 4.0, "bfloat16": 2.0, "float64": 3.0})
    assert set(loaded.ceilings.flops_per_s) == set(kept)
    assert loaded.fault_s == 0.4  # of the device, as it was seen last


def test_formats_that_were_measured_under_other_conditions_are_not_mixed(
    attnprof, tmp_path, monkeypatch
):
    path, name, threads = tmp_path / "c.json", device_name("cpu"), torch.get_num_threads()
    for dtype, version in (("float32", "2.12"), ("float64", "2.12"), ("bfloat16", "2.13")):
        ceilings = Ceilings(name, {dtype: 1e11}, 1e10, "a test")
        now = replace(calibrated(dtype, conditions={"torch": version}), threads=threads)
        now = replace(now, ceilings=ceilings)
        monkeypatch.setattr(calibration_run, "calibrate", lambda *_, now=now, **__: now)
        ended = attnprof(f"calibrate --dtype {dtype} --calibration {path}")
        assert ended.code == 0
        assert ("--dtype float32,float64, too" in ended.err) is (dtype == "bfloat16")
    assert list(calibration.load(name, threads, path).tables) == ["bfloat16"]


def named(path, *devices):
    """A file with a calibration of each (name, threads)."""
    for name, threads in devices:
        one = calibrated("float32")
        ceilings = replace(one.ceilings, name=name)
        calibration.save(replace(one, ceilings=ceilings, threads=threads), path)
    return path


@pytest.mark.parametrize(("typed", "threads", "expected"), [
    ("xeon", None, "Intel(R) Xeon(R) Gold"), ("family 25", None, "AMD EPYC (family 25)"),
    ("EPYC 26", 1, "AMD EPYC (family 26)"), ("AMD H1", None, "AMD H1"),
])  # fmt: skip
def test_a_device_elsewhere_is_one_of_the_words_and_threads_that_are_typed(
    tmp_path, typed, threads, expected
):
    path = named(
        tmp_path / "all.json", ("AMD EPYC (family 26)", 1), ("AMD EPYC (family 26)", 2),
        ("AMD EPYC (family 25)", 2), ("Intel(R) Xeon(R) Gold", 2), ("AMD H1", 1), ("AMD H1 X", 1),
    )  # fmt: skip
    loaded = calibration.load_by_words(typed, path, threads)
    assert (loaded.ceilings.name, loaded.threads) == (expected, threads or loaded.threads)
    with pytest.raises(RequestError, match=r"family 26\) and AMD EPYC \(family 25\) were calibr"):
        calibration.load_by_words("epyc", path)
    with pytest.raises(RequestError, match="calibrated with 1 thread and 2 threads, not with 8"):
        calibration.load_by_words("EPYC 26", path, 8)
    with pytest.raises(RequestError, match=r"possible: AMD EPYC \(family 26\), .*Xeon.*H200"):
        predict_points([PointRequest("standard", 8, 1, 8)], on="a toaster", path=path)


def test_a_device_elsewhere_with_tables_of_another_version_is_calibrated_again(
    tmp_path, monkeypatch
):
    with monkeypatch.context() as older:
        older.setattr(calibration, "VERSION", 1)
        path = named(tmp_path / "c.json", ("AMD EPYC", 1), ("Tesla T4", 1))
    with pytest.raises(RequestError, match=r"AMD EPYC was calibrated by another version.* there"):
        calibration.load_by_words("epyc", path)
    assert calibration.load_by_words("T4", path) is None  # the maker's figures give a bound


def test_formats_of_another_version_or_number_of_threads_are_not_mixed(tmp_path, monkeypatch):
    path = tmp_path / "c.json"
    calibration.save(calibrated("float64"), path)
    with monkeypatch.context() as older:
        older.setattr(calibration, "VERSION", 1)
        calibration.save(calibrated("float32"), path)
        calibration.save(replace(calibrated("float32"), threads=1), path)
    calibration.save(calibrated("bfloat16"), path)
    assert set(calibration.load("some device", 2, path).tables) == {"bfloat16"}
    assert len(calibration.entries(path)) == 2


def test_calibrations_that_end_at_once_are_all_kept(tmp_path, monkeypatch):
    path, dtypes = tmp_path / "c.json", ("float16", "float32", "float64", "bfloat16")
    write = calibration.write_whole
    monkeypatch.setattr(calibration, "write_whole", lambda *what: (time.sleep(0.05), write(*what)))
    threads = [
        threading.Thread(target=calibration.save, args=(calibrated(dtype), path))
        for dtype in dtypes
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(calibration.load("some device", 2, path).tables) == set(dtypes)
    assert [one.name for one in tmp_path.iterdir()] == ["c.json"]


@pytest.mark.parametrize(("field", "value"), [
    ("repeatability", 1e30), ("repeatability", -1), ("unsteadiness", "x"), ("fault_s", -1e-9),
    ("cpu_share", 7), ("threads", 0), ("processors", 1.5), ("tables", {"float32": []}),
    ("bytes_per_s", 0), ("name", None), ("tables", {"float32": {"sum": [[1.5, 2, 1.0]]}}),
    *(("tables", {"float32": {"product": rows}}) for rows in (
        [], [[1, 2.0], [1, 2, 3.0]], [[1, -2.0]], [[1, "x"]], [1.0], [[0, 1.0]]
    )),
])  # fmt: skip
def test_a_value_that_no_device_has_is_refused_and_named(tmp_path, field, value):
    entry = {**calibrated("float32").to_dict(), field: value}
    with pytest.raises(RequestError, match=r"is no calibration: ceilings\[0\] has .*delete it"):
        calibration.entries(written(tmp_path, entry))


@pytest.mark.parametrize("text", ['{"schema": "attnprof/1", "ceilings": [{"na', "notes", "{}"])
def test_a_file_that_was_cut_off_is_named_for_deleting_and_somebody_s_is_not(tmp_path, text):
    path = tmp_path / "my calibration.json"
    path.write_text(text)
    with pytest.raises(RequestError) as refused:
        calibration.save(calibrated("float32"), path)
    assert (f"rm '{path}'" in str(refused.value)) is ("ceilings" in text)
    assert path.read_text() == text
    calibration.save(calibrated("float32"), path, force=True)
    assert calibration.load("some device", 2, path)


@pytest.mark.parametrize(("number", "dtype"), [(1, "float32"), (2, "bfloat16"), (3, "float32")])
def test_the_committed_calibrations_of_a_gpu_price(number, dtype):
    path = Path(__file__).parents[2] / "reports" / "times" / "h200" / f"device_{number}.json"
    loaded = calibration.load_by_words("h200", path)
    assert (loaded.checks, loaded.conditions) == ({}, {})
    assert Predictor(loaded).times(dtype).call_s > 0


def test_what_a_calibration_has_no_table_of_is_priced_as_a_multiplication():
    tables = made_up()
    for name in ("of gelu_backward", "of native_dropout"):
        del tables[name]
    dropout = KernelCall("native_dropout", "unary", (2**20,))
    assert Times(tables).seconds(dropout) == Times(made_up()).seconds(replace(dropout, name="mul"))
    expected = benchmarks(torch.float32, "cpu")
    known = {name: table for name, table in tables.items() if not name.startswith("of ")}
    with pytest.raises(RequestError, match="no table of of mul"):
        calibration.check_tables(known, [one for one in expected if one.name.startswith("of ")])
