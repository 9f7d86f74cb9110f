"""Python callers get our errors, whatever they pass; numpy's integers are sizes."""

# ruff: noqa: E501 - the tables of cases are texts
import numpy as np
import pytest
import sympy
import torch

import attnprof
from attnprof import Report, Workload
from attnprof.errors import AttnprofError, RequestError

NO_SIZE = [
    None, True, np.bool_(True), 1.5, 2.0, np.float64(2), float("nan"), float("inf"), 0, -1, "8", "", b"8",
    [], {}, (1, 2), ..., 1j, torch.tensor(3), np.array(3), np.array([0, 2]), sympy.Float(2),
    sympy.nan, -sympy.Symbol("n", positive=True), int,
]  # fmt: skip
NO_TEXT = [1, None, [], {}, b"x", np.array([1, 2]), torch.float32, ...]
WORKLOAD = Workload(8, 2, 4)
Q = torch.zeros(1, 2, 4, 4)


@pytest.mark.parametrize("wrong", NO_SIZE, ids=repr)
@pytest.mark.parametrize("name", ["seq_len", "num_heads", "head_dim", "batch_size", "kv_seq_len"])
def test_a_workload_says_what_is_no_size(name, wrong):
    if name == "kv_seq_len" and wrong is None:
        return
    with pytest.raises(RequestError, match=name):
        Workload(**{"seq_len": 8, "num_heads": 2, "head_dim": 4, name: wrong})


@pytest.mark.parametrize("wrong", NO_TEXT, ids=repr)
@pytest.mark.parametrize("name", ["phase", "dtype"])
def test_a_workload_says_what_is_no_name(name, wrong):
    with pytest.raises(RequestError, match=f"{name} must be text.*possible: "):
        Workload(8, 2, 4, **{name: wrong})


def test_numpy_integers_are_sizes_and_huge_ones_stay_exact():
    workload = Workload(np.int64(8), np.uint8(2), np.int32(4), causal=np.bool_(False))
    assert workload == WORKLOAD
    assert type(workload.seq_len) is int
    huge = attnprof.cost("standard", Workload(10**400, 2, 4))
    assert huge.flops > 10**800
    assert isinstance(huge.flops, int)
    with pytest.raises(RequestError, match="bits"):
        Workload(-(10**5000), 2, 4)


CALLS = {
    "build": (lambda **k: attnprof.build(**{"name": "linformer", "d_model": 8, "num_heads": 2, "seq_len": 4, **k}),
              {"name": NO_TEXT, "d_model": NO_SIZE, "num_heads": NO_SIZE, "seq_len": NO_SIZE,
               "proj_len": [None, 1.5, True, [], 0], "shared": [None, 1, "maybe", []]}),
    "attend": (lambda **k: attnprof.attend(**{"name": "standard", "q": Q, "k": Q, "v": Q, **k}),
               {"name": NO_TEXT, "q": [None, 1, [1.0], Q[0], Q.int()], "causal": [None, 1, "no"],
                "seed": [None, -1, 1.5, 2**64], "weights": [1, {"x": 1}, {1: Q}]}),
    "cost": (lambda **k: attnprof.cost(**{"name": "longformer", "workload": WORKLOAD, **k}),
             {"name": NO_TEXT, "workload": [None, 8, {}, "x"], "scope": NO_TEXT,
              "window": [None, 1.5, True, [], 0, "x"]}),
    "crossover": (lambda **k: attnprof.crossover(**{"a": "taylor-direct", "b": "taylor-efficient", **k}),
                  {"a": NO_TEXT, "b": NO_TEXT, "head_dim": [*NO_SIZE[:7], [], 1j, np.array(3)],
                   "num_heads": NO_SIZE, "kinds": [1, [], "x", [1]], "metrics": [1, [], "x", [None]],
                   "scope": NO_TEXT, "phase": NO_TEXT, "causal": [1, "no"], "curves": [1, None],
                   "temperature": [float("nan"), "x", []]}),
    "derive": (lambda **k: attnprof.derive(**{"module_or_factory": "standard", **k}),
               {"module_or_factory": [None, 1, [], "", "nothing"], "workload": [8, "x", {}],
                "inputs": [1, [1], True], "args": [1, {1: 2}], "phases": [1, [None], [], "x"],
                "at": [1, "N=8", {"N": 1.5}, {"N": True}, {1: 2}, {"N": 0}], "dtype": NO_TEXT}),
    "profile": (lambda **k: attnprof.profile(**{"attention": "standard", "seq_len": 8, "d_model": 8, "num_heads": 2, **k}),
                {"attention": [None, 1, [], [1]], "seq_len": [None, 1.5, True, [], 0, 2**41], "d_model": NO_SIZE,
                 "num_heads": NO_SIZE, "batch_size": NO_SIZE, "device": NO_TEXT, "seed": [None, -1, 1.5],
                 "threads": [0, 1.5, True, 10**10], "samples": [0, 1.5, None], "min_time_s": [None, "x", float("nan")],
                 "isolate": [1, "no"], "check": [None, 1], "compiled": [None, 1]}),
    "sweep": (lambda **k: attnprof.sweep(**{"attention": "standard", "seq_len": 8, "output": "x.jsonl", **k}),
              {"output": [None, 5, "", "a\0b", []], "limit_s": [0, -1, "x", float("nan")],
               "processes": [0, 1.5, 10**9], "causal": ["no", 1], "seq_len": [[], [1.5]]}),
    "load": (Report.load, {"path": [None, 5, "", [], b"x", "no/such", "a\0b"]}),
    "save": (lambda **k: Report("cost", []).save(**k), {"path": [None, 5, "", [], "a\0b"]}),
}  # fmt: skip
CASES = [(call, name) for call, (_, names) in CALLS.items() for name in names]


@pytest.mark.parametrize(("call", "name"), CASES)
def test_a_function_says_what_is_wrong_with_an_argument(call, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function, wrongs = CALLS[call]
    for wrong in wrongs[name]:
        if wrong is None and (call, name) == ("build", "seq_len"):
            continue
        with pytest.raises(AttnprofError, match=r"\w{3}") as refusal:
            function(**{name: wrong})
        assert refusal.value.exit_code == 2, (name, wrong)
    assert list(tmp_path.iterdir()) == []
