"""Times of a GPU's own work, without one."""

from dataclasses import replace

import pytest
import torch

from attnprof import registry
from attnprof.crossovers import predicted_search
from attnprof.crossovers.report import crossover_report
from attnprof.crossovers.sides import Meeting, TimeTerms
from attnprof.device import calibration
from attnprof.device.benchmarks import CHAIN, CPU_GRIDS, GPU_GRIDS, benchmarks, grids
from attnprof.device.calibration import Calibration
from attnprof.device.ceilings import Ceilings
from attnprof.device.fused_times import FUSED_KERNELS
from attnprof.device.operation_forms import KernelCall
from attnprof.device.operations import Demand
from attnprof.device.prediction import Predictor, predict_points
from attnprof.device.tables import TimeTable
from attnprof.device.times import QUEUED, GpuTimes
from attnprof.errors import CannotRunError
from attnprof.measure.request import PointRequest
from attnprof.workload import Workload
from tests.device.test_prediction import made_up

LAUNCH_S = 1e-6


def on_gpu(**tables):
    """A made-up GPU, whose pieces cost as many entries."""
    pieces = TimeTable({(n,): LAUNCH_S + 4e-9 * n for n in (1, 1024, 2**20)})
    whole = made_up()
    vectors = {p[1:4]: s for p, s in whole["product"].seconds.items() if p[:2] == (1, 1)}
    return {**whole, "vector product": TimeTable(vectors), "in pieces": pieces, **tables}


def test_a_gpu_is_measured_at_larger_sizes():
    assert grids("cuda:1") is GPU_GRIDS
    assert grids("cpu") is CPU_GRIDS
    assert GPU_GRIDS.entries[-1] > 4 * CPU_GRIDS.entries[-1]
    names = {one.name for one in benchmarks(torch.float32, "cpu")}
    assert {"broadcast", "strided", "product"} <= names
    assert "in pieces" not in names


def test_pieces_cost_by_how_many_entries_they_have_together():
    times = GpuTimes(on_gpu())
    whole, many = (KernelCall("mul", "fill", (2**20,), runs) for runs in (1, 2**17))
    assert times.seconds(many) == pytest.approx(LAUNCH_S + 4e-9 * 2**20)
    assert times.seconds(whole) == pytest.approx(4e-9 * 2**20)


def test_runs_side_by_side_take_as_long_as_one_of_all_of_them():
    lengths, strides = (16, 2**16, 2**20), (2, 64)
    strided = {(n, stride): 3e-9 * n * stride for n in lengths for stride in strides}
    times = GpuTimes(on_gpu(strided=TimeTable(strided)))
    few, many = (KernelCall("copy_", "strided unary", (16, 64), runs) for runs in (64, 64 * 1024))
    assert times.seconds(many) / times.seconds(few) == pytest.approx(1024)


def fused(heads, n, m, d=64):
    return KernelCall("_scaled_dot_product_flash_attention", "fused", (heads, n, m, d, d))


def test_fused_attention_grows_with_its_scores_where_all_processors_have_work():
    times = GpuTimes(on_gpu(), processors=100)
    large, longer = (times.seconds(fused(64, n, 2048)) for n in (8192, 16384))
    assert longer / large == pytest.approx(2, rel=1e-3)


def test_fused_attention_with_few_queries_takes_as_long_as_one_block_of_them():
    times, rows = GpuTimes(on_gpu(), processors=100), FUSED_KERNELS[False, False].rows
    token, block = (times.seconds(fused(8, n, 4096)) for n in (1, rows))
    assert token == block
    assert times.seconds(fused(8, 1, 8192)) == pytest.approx(2 * token, rel=1e-3)
    assert GpuTimes(on_gpu()).seconds(fused(8, 1, 4096)) < token  # where nobody says how many


def test_what_is_queued_hides_the_host_and_more_waits_for_it():
    times = GpuTimes(on_gpu(chain=TimeTable({(1,): CHAIN * 1e-5})))  # 10 µs a call
    small = KernelCall("mul", "unary", (8,))
    assert times.of(Demand([small] * QUEUED)) < 1e-3
    waits = times.of(Demand([small] * 4 * QUEUED))
    assert waits == pytest.approx(3 * QUEUED * 10e-6, rel=1e-2)
    slow = times.of(Demand([replace(small, sizes=(2**18,))] * 4 * QUEUED))
    assert slow == pytest.approx(4 * QUEUED * times.seconds(replace(small, sizes=(2**18,))))


def test_views_and_functions_cost_a_gpu_nothing():
    times = GpuTimes(on_gpu(**{"4 views": TimeTable({(1,): 1e-5})}))
    work = Demand([KernelCall("view", "view")] * 9, nodes=9, functions=100)
    assert times.of(work) == 0.0


def test_entries_of_half_a_format_are_half_as_many_bytes():
    whole, half = GpuTimes(on_gpu()), GpuTimes(on_gpu(), entry_bytes=2)
    plain = KernelCall("mul", "unary", (2**16,))
    assert half.seconds(replace(plain, item_bytes=2)) == whole.seconds(plain)


@pytest.fixture
def elsewhere(tmp_path):
    """A file with the calibration of a GPU that is not here."""
    ceilings = Ceilings("NVIDIA H200", {"float32": 1e13}, 1e12, "made up", measured=True)
    path = tmp_path / "gpu.json"
    calibration.save(Calibration(ceilings, "cuda", 16, {"float32": on_gpu()}), path)
    return path


def test_a_device_elsewhere_is_predicted_by_its_calibration(elsewhere):
    known = calibration.load_by_words("h200", elsewhere)
    assert isinstance(Predictor(known).times("float32"), GpuTimes)
    assert calibration.load_by_words("H100", elsewhere) is None
    request = PointRequest("standard", 512, 2, 16)
    report = predict_points([request], path=elsewhere, on="H200")
    (record,) = report.records
    assert record.device == "cuda"
    assert record.ci_low_s < record.time_s < record.ci_high_s
    assert report.summary["made_of"].startswith("NVIDIA H200, 16 threads")


def test_crossovers_elsewhere_are_predicted_and_not_measured(attnprof, elsewhere, monkeypatch):
    monkeypatch.setattr(predicted_search, "LONGEST_CALL_S", 1e-3)
    typed = "crossover standard linear --d 16 --metric time --on H200"
    report = attnprof(f"{typed} --calibration {elsewhere} --format json").json
    assert [row["kind"] for row in report["records"]] == ["predicted"]
    assert "NVIDIA H200, 16 threads" in report["summary"]["made_of"]
    refused = attnprof(f"{typed} --calibration {elsewhere} --kind measured")
    assert (refused.code, "only what is here is measured" in refused.err) == (2, True)


def test_where_it_was_not_calibrated_it_says_so(tmp_path):
    pair = registry.configured(["standard", "linear"], {})
    terms = TimeTerms("cpu", 1, tmp_path / "none.json", on="H200")
    with pytest.raises(CannotRunError, match=r"none\.json has no calibration of it"):
        crossover_report(Meeting(*pair, Workload(1, 1, 16)), [16], ["predicted"], ["time"],
                         terms=terms, environment={})  # fmt: skip
