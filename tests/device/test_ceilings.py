"""What devices can do at most, and how near a measurement comes."""

import pytest

from attnprof.device import calibration
from attnprof.device.calibration import Calibration, roofline, with_roofline
from attnprof.device.ceilings import GPUS, Ceilings, stated_ceilings
from attnprof.record import Report
from tests.render.test_results import record

SOME = Ceilings("some device", {"float32": 100.0, "tf32": 400.0}, 10.0, "a test")
MEASURED = record(
    "standard", 8, width=4, heads=1, flops_formula=1000, bytes_moved=50, median_s=20.0
)


def test_every_number_has_a_source_and_rates_fall_with_digits():
    for gpu in GPUS:
        assert gpu.source
        assert gpu.bytes_per_s > 1e11
        rates = gpu.flops_per_s
        assert rates["float16"] > rates["float32"] >= rates.get("float64", 0), gpu.name


@pytest.mark.parametrize(
    ("reported", "device"),
    [
        ("NVIDIA H200", "H200"), ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"), ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100"), ("NVIDIA A10G", "A10G"), ("NVIDIA A10", "A10"),
        ("NVIDIA A30", "A30"),
        ("NVIDIA L40S", "L40S"), ("Tesla T4", "T4"), ("AMD EPYC 7763", None),
        ("NVIDIA Something New", None), ("", None),
    ],
)  # fmt: skip
def test_a_device_is_known_by_its_drivers_name_or_not_at_all(reported, device):
    known = stated_ceilings(reported)
    assert (known.name if known else None) == device


def test_an_a30_multiplies_as_often_as_its_units_and_clock_say():
    units, clock_hz = 56, 1.44e9  # multiprocessors; fused multiply-adds of each at a clock below
    known = stated_ceilings("NVIDIA A30")
    for dtype, at_once in {"float16": 1024, "tf32": 512, "float32": 64, "float64": 64}.items():
        assert known.flops_per_s[dtype] == pytest.approx(2 * at_once * units * clock_hz, rel=0.01)
    assert known.bytes_per_s == pytest.approx(2 * 1.215e9 * 3072 / 8, rel=0.01)  # two a clock, bits


def test_the_slower_of_compute_and_memory_bounds_and_tf32_raises_the_ceiling_where_it_is_on():
    assert roofline(1000, 50, SOME, 100.0) == (10.0, "compute")
    assert roofline(10, 50, SOME, 100.0)[1] == "memory"
    assert (SOME.rate("float32"), SOME.rate("float32", tf32=True)) == (100.0, 400.0)
    assert SOME.rate("bfloat16", tf32=True) is None


def test_an_unknown_device_has_no_share_and_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    report = with_roofline(Report("profile", [MEASURED], {}, {"device_name": "a toaster"}))
    assert report.records[0].roofline_fraction is None
    assert "attnprof calibrate" in report.summary["roofline"]


def test_a_calibrated_device_has_a_share_of_its_own_ceilings(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calibration.save(Calibration(SOME, "cpu", 3), calibration.default_path())
    where = {"device_name": "some device", "threads": 3, "tf32": None}
    report = with_roofline(Report("profile", [MEASURED], {}, where))
    assert (report.records[0].bound, report.records[0].roofline_fraction) == ("compute", 0.5)
    other = with_roofline(Report("profile", [MEASURED], {}, {**where, "threads": 1}))
    assert other.records[0].roofline_fraction is None
