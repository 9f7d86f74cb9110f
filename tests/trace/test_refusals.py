"""The right answer or a clear refusal, never a wrong formula."""

from functools import cache

import pytest
import sympy
from torch.nn import functional as F

from attnprof.algebra.expressions import symbol
from attnprof.errors import AttnprofError, CannotRunError, RequestError
from attnprof.trace.request.lookup import target_of
from attnprof.trace.rules.table import RULES
from attnprof.trace.solve.derive import derived
from tests.trace import hazards
from tests.trace.checks import counted_at

B, N, h, d = map(symbol, ("B", "N", "h", "d"))
#: q, k, v of one linear map; two products with the weights.
PRODUCTS = 6 * B * N * d**2 * h**2 + 4 * B * N**2 * h * d
AWAY = ({"B": 5, "N": 448, "h": 3, "d": 24}, {"B": 2, "N": 1024, "h": 4, "d": 40})


@cache
def derivation_of(layer, phase="forward", **at):
    return derived(target_of(layer, inputs=["x: B, N, h*d"]), (phase,), at)


@pytest.mark.parametrize(
    ("layer", "phase"),
    [
        (hazards.IntOfRatio, "forward"), (hazards.Tuple, "forward"), (hazards.Mapping, "forward"),
        (hazards.LengthBranch, "forward"), (hazards.spectral, "forward"),
        (hazards.Mapping, "train"), (hazards.Checkpointed, "train"), (hazards.Sorted, "forward"),
        (hazards.calls_scripted, "forward"),
    ],
)  # fmt: skip
def test_formulas_of_hazardous_modules_are_right_away_from_where_they_were_fitted(layer, phase):
    derivation = derivation_of(layer, phase)
    target = target_of(layer, inputs=["x: B, N, h*d"])
    for sizes in AWAY:
        counted = counted_at(target, sizes, phase)
        for quantity in ("flops", "bytes_moved", "peak_bytes"):
            assert derivation.at(quantity, phase, **sizes) == counted[quantity], (quantity, sizes)
    assert not derivation.phases[phase].uncounted
    if isinstance(layer, type) and phase == "forward":
        assert sympy.expand(derivation.expression("matmul_flops") - PRODUCTS) == 0
    said = "307" in " ".join(derivation.phases[phase].domain)
    assert said == (layer is hazards.LengthBranch)
    no_polynomial = "log" in str(derivation.expression("flops", phase))
    assert no_polynomial == (layer is hazards.spectral)


ASKED = {"B": 2, "N": 16, "h": 2, "d": 8}
NOT_DENSE, BY_CHANCE = "{} tensors are not supported.*hazards", r"chance decides.*hazards\.py:\d+"
ENDS = r"it ends the program: .*hazards\.py:\d+"
#: Layer, phase, sizes asked for, and the error's kind and words.
REFUSED = [
    (hazards.raises, "forward", {}, RequestError, r"not today.*hazards\.py:\d+"),
    # without words of its own a reason is the line itself
    (hazards.Asserts, "forward", {}, RequestError,
     r"AssertionError in `assert x.shape\[1\] < 2` \(hazards\.py:\d+\)"),
    (hazards.unfinished, "forward", {}, RequestError,
     r"NotImplementedError in `raise NotImplementedError` \(hazards"),
    (hazards.divides, "forward", {}, RequestError,
     r"ZeroDivisionError: division by zero \(hazards\.py:\d+\)"),
    (hazards.exits, "forward", {}, RequestError, ENDS),
    (hazards.raises_the_base, "forward", {}, RequestError, ENDS),
    (hazards.ExitsWhenMade, "forward", {}, RequestError, ENDS),
    (hazards.Jagged, "forward", {}, CannotRunError, NOT_DENSE.format("nested")),
    (hazards.Ragged, "train", {}, CannotRunError, NOT_DENSE.format("nested")),
    (hazards.Compressed, "train", {}, CannotRunError, NOT_DENSE.format("sparse")),
    (hazards.Coordinates, "forward", {}, CannotRunError, NOT_DENSE.format("sparse")),
    (hazards.DroppingAlways, "forward", {}, CannotRunError, BY_CHANCE),
    (hazards.DroppingByNumpy, "forward", ASKED, CannotRunError, BY_CHANCE),
    (hazards.DroppingByTorch, "forward", ASKED, CannotRunError, BY_CHANCE),
    (hazards.DroppingByDepth, "forward", {}, CannotRunError, BY_CHANCE),
    (hazards.Dropping, "train", {}, CannotRunError, "chance decides what runs in training"),
    (hazards.ReadsValue, "forward", {}, CannotRunError, r"hazards\.py:\d+"),
    (hazards.MasksAStack, "forward", {}, CannotRunError, r"is_causal or tgt_is_causal \("),
    (hazards.WithUnknown, "forward", {}, AttnprofError, "attnprof_tests::unknown.*register_fake"),
    (hazards.Scanned, "forward", {}, CannotRunError,
     "associative_scan, one of torch's higher-order"),
    (hazards.Looping, "forward", {}, CannotRunError,
     "while_loop, one of torch's higher-order operations"),
    (hazards.Choosing, "train", {}, AttnprofError, "cond, .*: write a branch of it.* place$"),
]  # fmt: skip


@pytest.mark.parametrize(("layer", "phase", "at", "kind", "words"), REFUSED)
def test_what_has_no_formula_is_refused_in_words_and_without_noise(
    capfd, layer, phase, at, kind, words
):
    with pytest.raises(kind, match=words) as refusal:
        derivation_of(layer, phase, **at)
    assert refusal.value.exit_code in (2, 3)
    assert capfd.readouterr().err == ""
    if "not supported" in words:
        assert "--arg" not in str(refusal.value)
    if words == BY_CHANCE:
        assert "evaluation" in str(refusal.value)


def test_sizes_of_one_are_right_at_one_and_need_no_memory():
    asked = {"B": 1, "N": 65536, "h": 8, "d": 64}
    derivation = derivation_of(hazards.IntOfRatio, **asked)
    counted = counted_at(target_of(hazards.IntOfRatio), asked, "forward")
    for quantity, value in counted.items():
        assert derivation.at(quantity, **asked) == value


def test_an_exit_at_some_lengths_is_a_border_like_any_error():
    derivation = derivation_of(hazards.ExitsWhenLong, **{**ASKED, "N": 64})
    with pytest.raises(AttnprofError):
        derivation.at("flops", B=2, N=1000, h=2, d=8)


def test_a_factory_that_exits_is_refused(tmp_path):
    (tmp_path / "making.py").write_text("def make(d_model):\n    raise SystemExit(3)\n")
    with pytest.raises(RequestError, match=r"SystemExit: 3 \(making.py:2\)"):
        target_of(f"{tmp_path}/making.py:make")


def test_a_padded_encoder_is_derived_in_training_and_refused_in_words_in_evaluation():
    target = target_of(hazards.Masked, inputs=["x: B, N, 16", "mask: B, N bool"])
    with pytest.raises(CannotRunError, match=r"nested tensors.*type --phase train"):
        derived(target, ("forward",), {})
    derivation = derived(target, ("train",), {})
    forward = 2 * B * N * (4 * 16 * 16 + 2 * 16 * 32) + 2 * 2 * B * N**2 * 16
    assert sympy.expand(derivation.expression("matmul_flops", "train") - 3 * forward) == 0


def test_chance_in_training_alone_leaves_the_forward_pass_as_do_draws_that_decide_nothing():
    comparisons = B * h * N**2 + 2 * B * N * h * d  # of softmax, and two of relu
    for layer in (hazards.Dropping, hazards.NeverDropping):
        assert sympy.expand(derivation_of(layer).expression("other") - comparisons) == 0


def test_a_scan_of_torchs_is_derived_for_a_given_length():
    additions = derivation_of(hazards.Scanned, N=8).expression("additions")
    plain = (PRODUCTS / 2 + 2 * B * h * N**2).subs(N, 8)  # softmax shifts and sums
    # of 8: 4 pairs, then 2, 1, and back 0, 1, 3
    assert sympy.expand(additions - plain - 11 * B * h * d) == 0


def test_a_mistake_of_our_own_is_told_apart_from_the_users_code(monkeypatch):
    monkeypatch.setitem(RULES, "softplus", RULES["pow"])  # which asks for an exponent
    target = target_of(F.softplus, None, ["input: B, N"])
    with pytest.raises(AttnprofError, match=r"attnprof itself fails at .*\.py:\d+, please report"):
        derived(target, ("forward",))
    for mistaken in (lambda x: x.nothing, lambda x: range(2, x), lambda x: x + {}):
        with pytest.raises(AttnprofError) as refusal:
            derived(target_of(mistaken, None, ["x: B, N"]), ("forward",))
        assert "attnprof itself" not in str(refusal.value)
