"""Compiled points: their code, its time apart, and reasons where there is none."""

import hashlib
import json

import pytest
import torch

from attnprof.blocks.core import TextCore
from attnprof.measure import point
from attnprof.measure.request import PointRequest
from attnprof.measure.subject import build_subject
from attnprof.measure.sweep import Grid, key_of, points_of
from tests.measure.samples import QUICK


@pytest.fixture(autouse=True)
def _no_code(monkeypatch):
    """Graphs are captured and run as they are: no C++ compiler is needed."""
    monkeypatch.setattr("attnprof.measure.subject.BACKEND", "eager")
    yield
    torch.compiler.reset()


def request(mechanism="standard", seq_len=24, **changes):
    fields = {"num_heads": 2, "head_dim": 8, "budget": QUICK, "counts": False, "check": False,
             "compiled": True, **changes}  # fmt: skip
    return PointRequest(mechanism, seq_len, **fields)


@pytest.mark.parametrize("phase", ["forward", "backward", "train", "decode"])
def test_a_compiled_point_is_measured_and_its_compiling_told_apart(phase):
    row = point.measure_point(request(phase=phase))
    assert row.skipped is None
    assert row.compiled
    assert row.compile_s > max(row.times_s)
    assert row.peak_bytes_measured > 0


def test_what_is_timed_is_the_compiled_code(monkeypatch):
    seen = []

    def backend(graph, _inputs):
        def run(*inputs):
            seen.append(graph)
            return graph(*inputs)

        return run

    monkeypatch.setattr("attnprof.measure.subject.BACKEND", backend)
    row = point.measure_point(request(compiled=False))
    assert (row.compiled, row.compile_s) == (False, None)
    subject = build_subject(request(), compiled=True)
    eager = build_subject(request())
    assert not seen
    torch.testing.assert_close(subject.call(), eager.call())
    assert len(seen) == 1


def test_more_shapes_than_the_compiler_keeps_are_all_compiled():
    with torch._dynamo.config.patch(recompile_limit=2):
        for length in range(8, 12):
            row = point.measure_point(request(seq_len=length))
            assert (row.compile_s > 0, row.skipped) == (True, None)


def test_a_compiler_that_is_not_there_is_a_row_with_its_reason(monkeypatch):
    def backend(_graph, _inputs):
        raise RuntimeError("No working C++ compiler found\nlong story")

    monkeypatch.setattr("attnprof.measure.subject.BACKEND", backend)
    row = point.measure_point(request())
    assert row.skipped == "cannot be compiled: RuntimeError: No working C++ compiler found"
    assert row.median_s is None


def test_a_graph_that_breaks_is_said(monkeypatch):
    forward = TextCore.forward

    def broken(self, q, k, v, causal=False):
        torch._dynamo.graph_break()
        return forward(self, q, k, v, causal)

    monkeypatch.setattr(TextCore, "forward", broken)
    assert any("breaks" in row for row in point.measure_point(request()).differences)


def test_compiled_points_have_keys_of_their_own_and_eager_ones_keep_theirs():
    grid = [Grid(["linear"], [8], [16], [2])]
    (eager,), (other,) = (points_of(grid, QUICK, compiled=flag) for flag in (False, True))
    assert key_of(eager) != key_of(other)
    younger = ("budget", "counts", "check", "compiled", "error")
    older = {k: v for k, v in eager.to_dict().items() if k not in younger}
    digest = hashlib.sha256(json.dumps(older, sort_keys=True).encode()).hexdigest()[:16]
    assert key_of(eager) == f"linear-8-{digest}/0"


def test_code_that_computes_something_else_is_not_timed(monkeypatch):
    def backend(graph, _inputs):
        return lambda *inputs: tuple(1.01 * out for out in graph(*inputs))

    monkeypatch.setattr("attnprof.measure.subject.BACKEND", backend)
    row = point.measure_point(request(check=True))
    assert row.skipped.startswith("compiled code does not compute what the module does: its out")
    assert row.median_s is None
    assert point.measure_point(request(check=False)).median_s
    monkeypatch.setattr("attnprof.measure.subject.BACKEND", "eager")
    assert point.measure_point(request(check=True)).median_s
