"""The right answer or a clear refusal, never a wrong formula."""

from functools import cache

import pytest
import sympy

from attnprof.algebra.expressions import symbol
from attnprof.errors import AttnprofError, CannotRunError, RequestError
from attnprof.trace.events import totals
from attnprof.trace.request.lookup import target_of
from attnprof.trace.run.runs import record
from attnprof.trace.solve.derive import derived
from tests.trace import hazards

B, N, h, d = map(symbol, ("B", "N", "h", "d"))
#: q, k, v of one linear map; two products with the weights.
PRODUCTS = 6 * B * N * d**2 * h**2 + 4 * B * N**2 * h * d
AWAY = ({"B": 5, "N": 448, "h": 3, "d": 24}, {"B": 2, "N": 1024, "h": 4, "d": 40})


def derivation_of(layer, at=None, phases=("forward",)):
    return derived_once(layer, phases, **(at or {}))


@cache
def derived_once(layer, phases, **at):
    return derived(target_of(layer, inputs=["x: B, N, h*d"]), phases, at)


def holds_away_from_where_it_was_fitted(derivation, layer, phase="forward"):
    target = target_of(layer, inputs=["x: B, N, h*d"])
    for sizes in AWAY:
        counted = totals(record(target, sizes, training=phase != "forward"), phase)
        for quantity in ("flops", "bytes_moved", "peak_bytes"):
            assert derivation.at(quantity, phase, **sizes) == counted[quantity], (quantity, sizes)


@pytest.mark.parametrize(
    "layer",
    [
        hazards.Attention, hazards.IntOfRatio, hazards.ImportedRoot, hazards.Normed,
        hazards.Tuple, hazards.Mapping, hazards.Dropped, hazards.CachedMask, hazards.LengthBranch,
    ],
)  # fmt: skip
def test_formulas_of_hazardous_modules_are_right(layer):
    derivation = derivation_of(layer)
    assert sympy.expand(derivation.expression("matmul_flops") - PRODUCTS) == 0
    holds_away_from_where_it_was_fitted(derivation, layer)


@pytest.mark.parametrize("layer", [hazards.IntOfRatio, hazards.Dropped, hazards.Checkpointed])
def test_backward_passes_of_hazardous_modules_are_right(layer):
    derivation = derivation_of(layer, phases=("train",))
    holds_away_from_where_it_was_fitted(derivation, layer, "train")


@pytest.mark.parametrize(("length", "adds"), [(100, 1), (1024, 0)])
def test_a_length_branch_is_that_of_the_asked_length_and_said(length, adds):
    derivation = derivation_of(hazards.LengthBranch, {"B": 2, "N": length, "h": 4, "d": 16})
    plain = derivation_of(hazards.Attention)
    more = derivation.expression("additions") - plain.expression("additions")
    assert sympy.expand(more - adds * B * N * h * d) == 0
    assert "307" in " ".join(derivation.phases["forward"].domain)


def test_padding_is_counted_at_the_padded_length():
    derivation = derivation_of(hazards.Padded)
    for length in (100, 128, 193):
        sizes = {"B": 2, "N": length, "h": 4, "d": 16}
        assert derivation.at("matmul_flops", **sizes) == PRODUCTS.subs(
            {B: 2, N: -(-length // 64) * 64, h: 4, d: 16}
        )


def test_a_sort_compares_and_is_complete():
    assert not derivation_of(hazards.Sorted).phases["forward"].uncounted


def test_windows_by_unfold():
    expression = derivation_of(hazards.Unfolded).expression("additions")
    assert sympy.expand(expression - 16 * B * (N - 15) * h * d) == 0


def test_a_scripted_function():
    assert derivation_of(hazards.Scripted).expression("exponentials") == B * N * h * d


def test_a_transform_is_right_though_it_is_no_polynomial():
    derivation = derivation_of(hazards.Spectral)
    assert "log" in str(derivation.expression())
    holds_away_from_where_it_was_fitted(derivation, hazards.Spectral)


def test_a_custom_operation_with_a_fake_is_named_and_one_without_is_refused():
    forms = derivation_of(hazards.WithKnown).phases["forward"]
    assert any("attnprof_tests.known" in name for name in forms.uncounted)
    with pytest.raises(AttnprofError, match=r"attnprof_tests::unknown.*register_fake"):
        derivation_of(hazards.WithUnknown)


@pytest.mark.parametrize(
    ("layer", "at"),
    [(hazards.ReadsValue, {}), (hazards.PicksRows, {"B": 1, "N": 64, "h": 2, "d": 8})],
)
def test_what_needs_values_is_refused_with_its_line(layer, at):
    with pytest.raises(CannotRunError, match=r"hazards\.py:\d+"):
        derivation_of(layer, at)


def test_what_raises_is_refused_with_its_line():
    with pytest.raises(Exception, match=r"not today.*hazards\.py:\d+") as refusal:
        derivation_of(hazards.Raises)
    assert refusal.value.exit_code in (2, 3)


def test_refusals_make_no_noise(capfd):
    for layer in (hazards.ReadsValue, hazards.WithUnknown, hazards.PicksRows):
        with pytest.raises(AttnprofError):
            derivation_of(layer)
    assert capfd.readouterr().err == ""


def test_sizes_of_one_are_right_at_one_and_need_no_memory():
    asked = {"B": 1, "N": 65536, "h": 8, "d": 64}
    derivation = derivation_of(hazards.IntOfRatio, asked)
    counted = totals(record(target_of(hazards.IntOfRatio), asked, training=False), "forward")
    for quantity, value in counted.items():
        assert derivation.at(quantity, **asked) == value


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (hazards.Asserts, r"AssertionError in `assert x.shape\[1\] < 2` \(hazards\.py:\d+\)"),
        (hazards.Unfinished, r"NotImplementedError in `raise NotImplementedError` \(hazards"),
        (hazards.Divides, r"ZeroDivisionError: division by zero \(hazards\.py:\d+\)"),
    ],
)
def test_a_reason_without_words_is_the_line_itself(layer, words):
    with pytest.raises(RequestError, match=words):
        derivation_of(layer)


@pytest.mark.parametrize("layer", [hazards.Exits, hazards.RaisesTheBase, hazards.ExitsWhenMade])
def test_code_that_ends_the_program_is_refused(layer):
    with pytest.raises(RequestError, match=r"it ends the program: .*hazards\.py:\d+"):
        derivation_of(layer)


def test_an_exit_at_some_lengths_is_a_border_like_any_error():
    derivation = derivation_of(hazards.ExitsWhenLong, {"B": 2, "N": 64, "h": 2, "d": 8})
    with pytest.raises(AttnprofError):
        derivation.at("flops", B=2, N=1000, h=2, d=8)


def test_a_factory_that_exits_is_refused(tmp_path):
    (tmp_path / "making.py").write_text("def make(d_model):\n    raise SystemExit(3)\n")
    with pytest.raises(RequestError, match=r"SystemExit: 3 \(making.py:2\)"):
        target_of(f"{tmp_path}/making.py:make")


@pytest.mark.parametrize(
    ("layer", "kind", "phase"),
    [
        (hazards.Jagged, "nested", "forward"), (hazards.Ragged, "nested", "train"),
        (hazards.Compressed, "sparse", "train"), (hazards.Coordinates, "sparse", "forward"),
    ],
)  # fmt: skip
def test_tensors_that_are_not_dense_are_said_not_to_be_supported(layer, kind, phase):
    with pytest.raises(CannotRunError, match=f"{kind} tensors are not supported.*hazards") as error:
        derivation_of(layer, phases=(phase,))
    assert "--arg" not in str(error.value)


def test_a_padded_encoder_is_derived_in_training_and_refused_in_words_in_evaluation():
    target = target_of(hazards.Masked, inputs=["x: B, N, 16", "mask: B, N bool"])
    with pytest.raises(CannotRunError, match=r"nested tensors.*type --phase train"):
        derived(target, ("forward",), {})
    derivation = derived(target, ("train",), {})
    forward = 2 * B * N * (4 * 16 * 16 + 2 * 16 * 32) + 2 * 2 * B * N**2 * 16
    assert sympy.expand(derivation.expression("matmul_flops", "train") - 3 * forward) == 0


ASKED = {"B": 2, "N": 16, "h": 2, "d": 8}


@pytest.mark.parametrize(
    ("layer", "at"),
    [(hazards.DroppingAlways, {}), (hazards.DroppingByNumpy, ASKED),
     (hazards.DroppingByTorch, ASKED), (hazards.DroppingByDepth, {})],
)  # fmt: skip
def test_what_chance_decides_is_refused_with_its_line(layer, at):
    with pytest.raises(CannotRunError, match=r"chance decides.*evaluation.*hazards\.py:\d+"):
        derivation_of(layer, at)


def test_chance_in_training_alone_leaves_the_forward_pass():
    assert (
        derivation_of(hazards.Dropping).expression("other")
        == derivation_of(hazards.Attention).expression("other") + 2 * B * N * h * d
    )
    with pytest.raises(CannotRunError, match="chance decides what runs in training"):
        derivation_of(hazards.Dropping, phases=("train",))


def test_draws_that_decide_nothing_are_no_chance():
    derivation_of(hazards.NeverDropping)


def test_a_scan_of_torchs_is_named_and_derived_for_a_given_length():
    with pytest.raises(CannotRunError, match=r"associative_scan, one of torch's higher-order"):
        derivation_of(hazards.Scanned)
    more = derivation_of(hazards.Scanned, {"N": 8}).expression("additions")
    more -= derivation_of(hazards.Attention, {"N": 8}).expression("additions").subs(N, 8)
    # of 8: 4 pairs, then 2, 1, and back 0, 1, 3
    assert sympy.expand(more - 11 * B * h * d) == 0


def test_a_higher_order_operation_that_torch_cannot_run_is_named():
    with pytest.raises(CannotRunError, match=r"while_loop, one of torch's higher-order operations"):
        derivation_of(hazards.Looping)
