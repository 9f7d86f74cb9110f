"""A module that computes something else than it claims is found before it is timed."""

from dataclasses import replace

import pytest
import torch

from attnprof import registry
from attnprof.measure import batch, correctness, point
from attnprof.measure.correctness import check_module
from tests.measure.samples import FORWARD, STEP, can, own_mechanism, request

FORMATS = ("float64", "float32", "bfloat16", "float16")
#: Training, which is checked as a forward pass is, too, has a mask where there can be one.
CASES = [
    (name, {"causal": phase == "train" and can(name, causal=True), "phase": phase})
    for name in registry.names() for phase in ("decode", "train") if can(name, phase=phase)
]  # fmt: skip
#: formats take turns from case to case
IN_FORMATS = [(*case, FORMATS[place % 4]) for place, case in enumerate(CASES)]


@pytest.mark.parametrize(("mechanism", "how", "dtype"), IN_FORMATS)
def test_every_mechanism_computes_what_it_claims(mechanism, how, dtype):
    verdict = check_module(request(mechanism, dtype=dtype, **how))
    assert verdict.wrong is None
    assert ("float32" if dtype == "float64" else "float64") in verdict.against
    if how["phase"] == "decode":
        assert "the whole causal pass" in verdict.against
    if how["phase"] == "train":
        assert "in its gradients" in verdict.against
    if how["causal"]:
        assert "itself with other later tokens" in verdict.against


@pytest.mark.parametrize(("mechanism", "params", "twin"), [
    ("sdpa", {}, "standard"),
    ("standard", {}, "sdpa"),
    ("longformer", {"window": 4}, "longformer window=4 impl=dense-mask"),
    ("neural", {}, "neural impl=naive"),
    ("she", {}, "she impl=direct"),
    ("taylor-efficient", {"impl": "symmetric"}, "taylor-direct"),
    ("taylor-direct", {"temperature": 2.0}, "taylor-efficient temperature=2.0"),
])  # fmt: skip
def test_a_mechanism_is_held_against_other_code_where_there_is_some(mechanism, params, twin):
    verdict = check_module(request(mechanism, params=params))
    assert verdict.wrong is None
    assert twin in verdict.against.split("; ")


def test_the_reference_itself_is_held_against_no_other():
    assert correctness.twin_of(request("neural", params={"impl": "naive"})) is None
    assert correctness.twin_of(request("linear")) is None


def test_a_core_is_checked_as_a_layer_is_and_the_generator_stays_as_it_was():
    correctness._VERDICTS.clear()
    before = torch.get_rng_state()
    verdict = check_module(request("taylorshift", scope="core", phase="decode"))
    assert "the whole causal pass" in verdict.against
    assert torch.equal(torch.get_rng_state(), before)


SEEN = "super().forward(q, k, v, causal)"
SCALED = "return super().forward(2 * q, k, v, causal)"
ROUNDED = f"out = {SEEN}; return out if out.dtype == torch.float64 else (out * 64).round() / 64"
#: A gradient that is not the function's, but in double precision.
OTHER_GRADIENT = f"""q = 1 * q
        if q.requires_grad and q.dtype != torch.float64:
            q.register_hook(lambda grad: grad * 1.01)
        return {SEEN}"""


@pytest.fixture
def broken(tmp_path):
    def made(body, method=FORWARD, claim="", **how):
        return request(own_mechanism(tmp_path / "broken.py", body, method, claim), **how)

    return made


@pytest.mark.parametrize(("what", "how", "said"), [
    (["return super().forward(q, k, v, False)"], {"causal": True},
     "itself with other later tokens"),
    ([ROUNDED], {}, "float64"),
    ([f"return {SEEN} * 1e30 * 1e30"], {}, "float64"),
    (["out, state = super().step(q, k, v, state); return 1.01 * out, state", STEP],
     {"phase": "decode"}, "the whole causal pass"),
    ([SCALED, FORWARD, 'same_as = ("standard", {})'], {}, "standard"),
    ([OTHER_GRADIENT], {"phase": "train"}, "float64 in its gradients"),
])  # fmt: skip
def test_a_wrong_module_is_skipped_with_what_differs(broken, what, how, said):
    row = point.measure_point(broken(*what, **how))
    assert row.skipped.startswith("does not compute what it claims: at 33 tokens")
    assert f"away from {said} (" in row.skipped
    assert row.median_s is None
    assert row.flops_formula


def test_what_a_subclass_computes_is_not_its_parents_claim(broken):
    verdict = check_module(broken(SCALED))
    assert (verdict.wrong, verdict.against) == (None, "float64")


def test_a_module_is_measured_unchecked_where_that_is_asked_or_no_such_shape_is_taken(
    broken, tmp_path
):
    row = point.measure_point(replace(broken(ROUNDED), check=False, counts=False))
    assert (row.skipped, row.checked, row.median_s > 0) == (None, None, True)
    blocks = own_mechanism(tmp_path / "blocks.py", f"assert q.shape[2] % 64 == 0; return {SEEN}")
    row = point.measure_point(request(blocks, 128, counts=False))
    assert (row.skipped, row.checked, row.median_s > 0) == (None, None, True)


def test_what_was_compared_is_in_the_record():
    row = point.measure_point(request("sdpa", counts=False))
    assert row.checked == "float64; standard"


def test_a_module_of_somebodys_own_claims_nothing(tmp_path):
    (tmp_path / "own.py").write_text("import torch\n\nclass Own(torch.nn.Identity):\n    pass\n")
    assert check_module(request(f"{tmp_path}/own.py:Own")) == correctness.Verdict()


def test_processes_do_not_repeat_what_another_has_checked(monkeypatch):
    point_request = request("linear", counts=False, seed=7)
    orders = []
    run = batch._POOL.run

    def remember(order, *rest, **terms):
        orders.append(order["request"]["check"])
        return run(order, *rest, **terms)

    monkeypatch.setattr(batch._POOL, "run", remember)
    rows = [batch.measure_apart(point_request) for _ in range(2)]
    assert [row.checked for row in rows] == ["float64"] * 2
    assert orders == [True, False]
    assert batch.measure_apart(replace(point_request, check=False)).checked is None


def test_what_code_of_ours_raises_is_told_unless_torch_lacks_the_format(monkeypatch):
    def raising(text):
        def run(*_):
            raise RuntimeError(text)

        monkeypatch.setattr(correctness.SmallModule, "run", run)
        return correctness._verdict(request("linear")).wrong

    assert "shapes do not match" in raising("shapes do not match")
    assert raising("\"softmax\" not implemented for 'Half'") is None


def test_what_was_found_wrong_stays_wrong_where_a_later_comparison_fails(monkeypatch):
    def compared(*_):
        yield "float64", torch.ones(1), torch.zeros(1), 1e-9
        raise ValueError("no")

    monkeypatch.setattr(correctness.SmallModule, "compared", compared)
    assert "away from float64" in correctness._verdict(request("linear")).wrong
