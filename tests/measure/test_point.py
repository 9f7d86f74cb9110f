"""Whole points: closed form, counters and allocator agree, or the difference has a name."""

import json

import pytest
import torch

from attnprof import registry
from attnprof.errors import CannotRunError, RequestError
from attnprof.measure import batch, point
from attnprof.measure.batch import measure_apart
from attnprof.measure.counters import count_derived, count_with_fvcore, derived_differences
from attnprof.measure.request import PointRequest
from attnprof.measure.subject import build_subject, make_module, position, rewind_to
from tests.measure.samples import can, own_mechanism, request

NAMES = registry.names()
#: Forward passes, which every counter sees, and a training or a decoding step in turns; masks, too,
#: as far as a mechanism can be causal. tests/mechanisms/test_costs_by_aten.py has all phases.
PHASES = [
    (name, phase, bool(masked) and can(name, phase=phase, causal=True))
    for place, name in enumerate(NAMES)
    for step in (("decode", "train")[place % 2 or not can(name, phase="decode")],)
    for phase, masked in (("forward", place % 2), (step, place % 4 == 1))
]


@pytest.mark.parametrize(("mechanism", "phase", "causal"), PHASES)
def test_counters_agree_with_the_closed_form_or_the_difference_is_named(mechanism, phase, causal):
    # a state is built by real steps; 70 are a whole block of 64 or four of 16, and a rest
    seq_len = 24 if phase == "decode" else 70
    how = {"phase": phase, "causal": causal}
    record = point.count_point(request(mechanism, seq_len, batch_size=2, **how))
    rows = " ".join(record.differences)
    assert "unexplained" not in rows
    if record.flops_derived is None:
        assert "derived counts are left out" in rows
    else:
        assert record.flops_derived == record.flops_formula
        assert record.matmul_flops_derived == record.matmul_flops_formula
    if record.flops_torch != record.matmul_flops_formula:
        assert "torch counts" in rows
    if phase == "train":
        assert record.macs_fvcore is None
    elif record.flops_fvcore != record.matmul_flops_formula:
        assert "fvcore" in rows


#: Of all mechanisms closed forms and the allocator are held together in tests/mechanisms.
@pytest.mark.parametrize("mechanism", sorted({"sdpa", "gqa", *NAMES[::4]}))
def test_the_forward_peak_is_within_a_thousandth_or_the_kernels_workspace_is_named(mechanism):
    causal = NAMES.index(mechanism) % 2 == 0 and can(mechanism, causal=True)
    point_request = request(mechanism, 160, causal=causal, batch_size=2, counts=False, check=False)
    record = point.measure_point(point_request)
    near = abs(record.peak_bytes_measured / record.peak_bytes_predicted - 1) <= 1e-3
    rows = " ".join(record.differences)
    assert near or "kernel workspace" in rows
    assert "unexplained" not in rows
    assert record.ci_low_s <= record.median_s <= record.ci_high_s
    assert record.flops_per_s == record.flops_formula / record.median_s


def test_a_backward_pass_holds_what_its_forward_pass_saved():
    record = point.measure_point(request(phase="backward", seq_len=128))
    assert record.peak_bytes_measured == pytest.approx(record.peak_bytes_predicted, rel=1e-3)


def test_counting_allocates_nothing_of_the_points_size():
    far = request("standard", 2**20)  # the scores alone would be 8 TiB
    record = point.count_point(far)
    assert record.flops_torch == record.flops_fvcore == record.matmul_flops_formula


def test_a_closed_form_that_is_not_the_derived_count_is_named_and_so_are_counts_left_out():
    count = count_derived(request("standard"), operations=3)
    assert (count.flops, count.matmul_flops) == (None, None)
    rows = derived_differences(10, count)
    assert rows == ["derived counts are left out: over 3 operations"]
    count = count_derived(request("taylor-direct", phase="train", scope="core", causal=True))
    assert derived_differences(count.flops, count) == []
    (row,) = derived_differences(count.flops + 5, count)
    assert row.startswith("unexplained difference of +5 FLOPs")


def test_decoding_starts_from_the_state_before_the_token_each_time():
    subject = build_subject(request("standard", 33, phase="decode"))
    for _ in range(3):
        subject.prepare()
        assert subject.state.keys.length == 32
        subject.call()
        assert subject.state.keys.length == 33


def test_a_filled_cache_is_the_one_that_real_steps_build():
    point_request = request("standard", 20, phase="decode", batch_size=2)
    module = make_module(point_request)
    filled = position(module, point_request)
    stepped = module.init_state(2)
    for _ in range(19):
        _, stepped = module.step(torch.randn(2, 1, 32), stepped)
    assert filled.keys.filled.shape == stepped.keys.filled.shape
    assert filled.values.rows.shape == stepped.values.rows.shape


def test_rewinding_puts_counters_lists_and_references_back():
    class State:
        def __init__(self):
            self.seen, self.parts, self.sum = 3, [1, 2], torch.zeros(2)

    state = State()
    before = state.sum
    rewind = rewind_to(state)
    state.seen, state.sum = 4, torch.ones(2)
    state.parts.append(3)
    rewind()
    assert (state.seen, state.parts) == (3, [1, 2])
    assert state.sum is before


def test_a_request_survives_the_way_to_another_process():
    point_request = request(params={"bias": False}, causal=True)
    assert PointRequest.from_dict(json.loads(json.dumps(point_request.to_dict()))) == point_request


def test_a_point_in_a_process_of_its_own_gives_the_same_counts_and_peak():
    point_request = request(seq_len=64, threads=1)
    apart, here = measure_apart(point_request), point.measure_point(point_request)
    assert apart.skipped is None
    for name in ("flops_torch", "macs_fvcore", "peak_bytes_measured", "parameters"):
        assert getattr(apart, name) == getattr(here, name)


def test_a_point_leaves_random_numbers_as_they_were_and_has_the_threads_set_here():
    state, usual = torch.get_rng_state(), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        records = [measure(request(seq_len=16)) for measure in (point.measure_point, measure_apart)]
    finally:
        torch.set_num_threads(usual)
    assert [record.conditions["threads"] for record in records] == [3, 3]
    assert torch.equal(torch.get_rng_state(), state)


def test_onednn_that_a_module_switches_off_is_on_for_the_next_point(tmp_path):
    (path := tmp_path / "off.py").write_text(
        "import torch\n\ndef off(x):\n    if type(x) is torch.Tensor:\n"
        "        torch.backends.mkldnn.enabled = False\n    return x * 2\n"
    )
    before = torch.backends.mkldnn.enabled
    record = point.measure_point(request(f"{path}:off", seq_len=8, counts=False))
    assert record.median_s > 0
    assert torch.backends.mkldnn.enabled == before


BUILDS = """
from pathlib import Path

from torch import nn

class Own(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.map = nn.Linear(width, width)
        if width == 32:
            kind = type(self.map.weight.data).__name__
            with Path(__file__).with_suffix(".txt").open("a") as seen:  # what is kept is put back
                seen.write(f"{kind} {self.map.weight.device.type}\\n")

    def forward(self, x):
        return self.map(x)
"""


@pytest.mark.parametrize(("counts", "builds"), [
    (False, ["FakeTensor cpu", "Tensor cpu"]),
    (True, ["FakeTensor cpu", "FakeTensor cpu", "Tensor meta", "Tensor cpu"]),
])  # fmt: skip
def test_a_module_is_built_once_for_each_kind_of_tensor_it_is_looked_at_with(
    tmp_path, counts, builds
):
    """A run that is recorded, torch's counter, fvcore on meta tensors, and the one measured.

    Those at a small shape, by which the first is held against real tensors, are not of this width.
    """
    (tmp_path / "own.py").write_text(BUILDS)
    params = {"args": ["width=h*d"], "inputs": ["x: B, N, h*d"]}
    row = point.measure_point(request(f"{tmp_path}/own.py:Own", params=params, counts=counts))
    assert row.median_s
    assert builds == (tmp_path / "own.txt").read_text().splitlines()


def test_a_child_that_takes_too_long_is_a_row():
    assert "no result after" in measure_apart(request(), limit_s=0.01).skipped


def test_what_fits_and_what_may_die_follow_from_the_need(monkeypatch):
    monkeypatch.setattr(point, "needed_bytes", lambda _: 120)
    for available, fits, risky in ((100, False, True), (150, True, True), (900, True, False)):
        why, may_die = point.fit(request(), available)
        assert (why is None, may_die) == (fits, risky)


def test_a_containers_limit_is_respected(tmp_path):
    for name, text in {"memory.max": "1000", "memory.current": "900", "memory.stat":
                       "anon 5\ninactive_file 50\n"}.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    assert min(point._control_group_limits(tmp_path)) == 150
    (tmp_path / "memory.max").write_text("max\n")
    assert min(point._control_group_limits(tmp_path)) > 2**60


def test_unknown_devices_are_refused_and_a_gpu_that_is_not_there_cannot_be_used(monkeypatch):
    for device in ("tpu", "cpu:1", "cuda:x"):
        with pytest.raises(RequestError):
            batch.resolve_device(device)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(CannotRunError, match="--device cpu"):
        batch.resolve_device("cuda")
    assert batch.resolve_device("auto") == "cpu"


def test_a_refusal_is_a_row_among_others_and_an_error_alone(monkeypatch):
    def refuse(asked):
        if asked.mechanism == "sdpa":
            raise RequestError("sdpa cannot")
        return point.blank(asked)

    monkeypatch.setattr(batch, "tried_point", refuse)
    both = batch.measure_points([request(), request("sdpa")])
    assert [row.skipped for row in both.records] == [None, "sdpa cannot"]
    with pytest.raises(RequestError, match="sdpa cannot"):
        batch.measure_points([request("sdpa")])


def test_running_out_of_memory_is_a_row_and_any_other_failure_is_not_hidden(monkeypatch):
    def failing(text):
        def fail(*_, **__):
            raise RuntimeError(text)

        monkeypatch.setattr(point, "build_subject", fail)

    failing("[enforce fail] DefaultCPUAllocator: not enough memory: you tried")
    assert "out of memory on cpu" in point.measure_point(request()).skipped
    failing("a bug")
    with pytest.raises(RuntimeError, match="a bug"):
        point.measure_point(request())


def test_the_death_of_a_child_is_a_row_that_names_the_signal(tmp_path):
    deadly = own_mechanism(tmp_path / "deadly.py", "os.kill(os.getpid(), signal.SIGKILL)")
    report = batch.measure_points([request(deadly)], isolate=True)
    (row,) = report.records
    assert "killed by SIGKILL, most likely out of memory: needs" in row.skipped
    assert report.summary["measured"] == 0


def test_a_trace_that_fails_leaves_nothing_to_the_next():
    requests = [PointRequest(name, 48, 2, 16, 2) for name in ("he", "linformer", "standard")]
    failed, _, traced = [count_with_fvcore(request) for request in requests]
    assert failed.failed
    assert traced.macs
