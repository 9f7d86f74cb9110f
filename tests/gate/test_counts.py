"""What a case counts equals the closed forms, and is the same every time."""

import gc
import json
import os
import subprocess
import sys
from unittest.mock import Mock

import pytest

from attnprof import registry
from attnprof.algebra.expressions import symbol
from attnprof.algebra.values import evaluate
from attnprof.errors import CannotRunError
from attnprof.gate import counts
from attnprof.gate.counts import Counted, count
from attnprof.gate.exact import compare, formula
from attnprof.measure.request import PointRequest
from attnprof.trace.events import KINDS, QUANTITIES
from attnprof.trace.report.derivation import Formula, PhaseForms

from .samples import PLAIN, request_of

CYCLES = PLAIN.replace(
    "        w = s.softmax(-1)\n",
    "        w = s.softmax(-1)\n        kept = [s]\n        kept.append(kept)\n",
)
SORTED = PLAIN.replace("w = s.softmax(-1)", "w = s.softmax(-1) * torch.erfinv(s)")
DRAWN = PLAIN.replace(
    "        self.out =",
    "        import random\n        self.w = random.randint(1, 9)\n        self.out =",
).replace("k = k.transpose(-1, -2)", "k = torch.cat([k] * self.w)[:B].transpose(-1, -2)")


@pytest.mark.parametrize(("mechanism", "changes"), [
    ("standard", {"causal": True, "batch_size": 3}), ("standard", {"phase": "decode"}),
    ("standard", {"scope": "core", "phase": "backward"}),
    ("efficient", {"phase": "train", "dtype": "float64"}),
    ("linformer", {"params": {"proj_len": 8}}),
    ("longformer", {"params": {"window": 4}, "causal": True}),
])  # fmt: skip
def test_registered_mechanisms_count_what_their_closed_forms_say(mechanism, changes):
    request = PointRequest(mechanism, 64, 2, 8, **changes)
    counted = count(request, formulas=False)
    table = registry.get(mechanism, **request.params).cost(request.workload, request.scope)
    assert counted.error is None
    for kind in (*KINDS, "flops", "bytes_moved"):
        assert counted.metrics[kind] == getattr(table.total, kind), kind
    assert counted.sizes == {"B": request.batch_size, "N": 64, "h": 2, "d": 8}


def test_operations_add_up_to_the_metrics(tmp_path):
    counted = count(request_of(tmp_path, PLAIN, phase="train"), formulas=False)
    rows, metrics = counted.operations, counted.metrics
    assert sum(row.times for row in rows) == metrics["dispatched_operations"]
    assert sum(row.bytes_moved for row in rows) == metrics["bytes_moved"]
    assert sum(row.flops for row in rows) == metrics["flops"]
    assert {row.part for row in rows} == {"forward", "backward"}
    scores = next(row for row in rows if row.op.startswith("_softmax"))
    assert (scores.line, scores.dtype) == ("attention.py:19", "float32")
    assert scores.shape == "2×2×96×96"


@pytest.mark.parametrize(
    ("text", "phase"),
    [(CYCLES, "train"), (SORTED, "forward"), (DRAWN, "forward")],
)
def test_a_count_is_the_same_every_time(tmp_path, text, phase):
    request = request_of(tmp_path, text, phase=phase)
    first = count(request, formulas=False)
    assert first.error is None
    assert {(r.verdict, r.why, r.place) for r in compare("case", first, first)} == {("ok", "", "")}
    for prepare in (gc.collect, lambda: None):
        prepare()
        assert count(request, formulas=False) == first
        assert gc.isenabled()


def test_a_count_is_the_same_in_another_process(tmp_path):
    request = request_of(tmp_path, PLAIN, phase="train")
    script = (
        "import json, sys\nfrom dataclasses import asdict\n"
        "from attnprof.gate.counts import count\n"
        "from attnprof.measure.request import PointRequest\n"
        "request = PointRequest.from_dict(json.loads(sys.argv[1]))\n"
        "print(json.dumps(asdict(count(request, False))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(request.to_dict())],
        capture_output=True, text=True, check=True, timeout=120,
        env={**os.environ, "PYTHONHASHSEED": "321"},
    )  # fmt: skip
    assert Counted.from_dict(json.loads(done.stdout)) == count(request, formulas=False)


@pytest.mark.parametrize("changes", [{"phase": "train"}, {"batch_size": 1}, {"num_heads": 1}])
def test_formulas_give_what_was_counted(tmp_path, changes):
    counted = count(request_of(tmp_path, PLAIN, **changes), formulas=True)
    assert counted.no_formula == ""
    assert list(counted.formulas) == list(QUANTITIES)
    for name, text in counted.formulas.items():
        assert evaluate(formula(text), counted.sizes) == counted.metrics[name], name


def test_formulas_of_a_decoding_step_are_those_of_the_step():
    counted = count(PointRequest("standard", 64, 2, 8, batch_size=2, phase="decode"), formulas=True)
    assert counted.formulas["exponentials"] == "B*N*h"


def test_where_there_are_no_formulas_the_reason_is_there_and_the_counts_are(tmp_path, monkeypatch):
    request = request_of(tmp_path, PLAIN)
    plain = count(request, formulas=False)
    for error in (CannotRunError("no closed form found"), ValueError("odd")):
        monkeypatch.setattr(counts, "_forms", Mock(side_effect=error))
        counted = count(request, formulas=True)
        assert str(error) in counted.no_formula
        assert (counted.metrics, dict(counted.formulas)) == (plain.metrics, {})


def test_a_formula_that_does_not_give_what_was_counted_is_left_out(tmp_path, monkeypatch):
    def other(_target, _sizes, phase):
        wrong = {name: Formula(phase, name, symbol("N")) for name in QUANTITIES}
        wrong["parameters"] = Formula(phase, "parameters", formula("4*d**2*h**2 + 4*d*h"))
        wrong["flops"] = Formula(phase, "flops", None, 3)
        return PhaseForms(phase, "symbolic", wrong)

    monkeypatch.setattr(counts, "_forms", other)
    counted = count(request_of(tmp_path, PLAIN), formulas=True)
    assert dict(counted.formulas) == {"parameters": "4*d**2*h**2 + 4*d*h"}
    assert counted.no_formula.startswith("multiplications, additions")
    assert "does not hold at this shape" in counted.no_formula


def test_what_flops_leave_out_is_a_metric_of_its_own(tmp_path):
    plain = count(request_of(tmp_path, PLAIN, "plain"), formulas=False)
    with_more = count(request_of(tmp_path, SORTED, "more"), formulas=False)
    assert plain.metrics["uncounted_operations"] == plain.metrics["unknown_scratch"] == 0
    assert with_more.metrics["uncounted_operations"] == 1


@pytest.mark.parametrize("name", ["none.py:Attention", "no_such_package_here:Attention", "standrd"])
def test_code_that_does_not_exist_is_missing(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    counted = count(PointRequest(name, 16, 2, 4), formulas=True)
    assert counted.missing
    assert name.partition(":")[0].removesuffix(".py") in counted.error
    assert not counted.metrics
    request = request_of(tmp_path, PLAIN.replace("class Attention", "class Attentive"))
    counted = count(request, formulas=False)
    assert (counted.missing, "Attentive" in counted.error) == (True, True)


@pytest.mark.parametrize(("text", "says"), [
    (PLAIN.replace("y = w @ v", "y = w @ k"), "attention.py:20"),
    (PLAIN.replace("y = w @ v", "y = w @ v * s.max().item()"), "attention.py:20"),
    ("import nothing_of_that_name\n", "does not import"),
    (PLAIN.replace("super().__init__()", "raise KeyError('gone')"), "KeyError"),
])  # fmt: skip
def test_code_that_fails_is_an_error_with_its_line(tmp_path, text, says):
    counted = count(request_of(tmp_path, text), formulas=True)
    assert not counted.missing
    assert says in counted.error
    assert not counted.metrics


def test_a_phase_that_a_module_lacks_and_a_run_that_is_too_long_are_errors(tmp_path, monkeypatch):
    counted = count(request_of(tmp_path, PLAIN, phase="decode"), formulas=False)
    assert not counted.missing
    assert counted.error
    monkeypatch.setattr(counts, "OPERATIONS", 10)
    counted = count(request_of(tmp_path, PLAIN), formulas=False)
    assert "more than 10 operations" in counted.error
    assert "shorter length" in counted.error


def test_a_module_for_a_batch_of_one_has_formulas_without_the_batch(tmp_path):
    text = PLAIN.replace(
        "        B, N, C = x.shape\n", "        _, N, C = x[0][None].shape\n        B = 1\n"
    )
    text = text.replace("reshape(B, N, C)", "reshape(x.shape)")
    counted = count(request_of(tmp_path, text, batch_size=1), formulas=True)
    assert counted.no_formula == ""
    assert counted.formulas["exponentials"] == "N**2*h"
