"""Orders of growth: what is written, what is fitted, what every mechanism keeps."""

import math

import pytest

from attnprof import Workload, registry
from attnprof.algebra.orders import fitted, order_value, stays_within
from attnprof.errors import RequestError
from attnprof.measure.growth import LENGTHS, GrowthCase, closed_form_growth
from attnprof.mechanisms.extractors import HE
from attnprof.mechanisms.standard import Standard


@pytest.mark.parametrize(
    ("order", "value"),
    [("N", 256), ("N^2", 65536), ("N^1.5", 4096), ("N log N", 2048), ("N^2 log N", 524288)],
)
def test_orders_are_read_as_written(order, value):
    assert order_value(order, 256) == value


@pytest.mark.parametrize("order", ["n", "linear", "N^", "2N", "N*N", ""])
def test_an_order_written_otherwise_is_refused(order):
    with pytest.raises(RequestError, match="order of growth"):
        order_value(order, 256)


@pytest.mark.parametrize("power", [0.5, 1, 1.5, 2, 3])
def test_the_exponent_of_a_power_is_the_power(power):
    assert fitted(LENGTHS, [7 * n**power for n in LENGTHS]) == pytest.approx(power)


def test_what_is_constant_does_not_hide_the_power():
    values = [n**2 + 2048 * n + 10**6 for n in LENGTHS]
    assert 1.9 < fitted(LENGTHS, values) < 2
    two = [2**20, 2**21]
    assert fitted(two, [n * math.log2(n) for n in two]) == pytest.approx(1 + math.log2(21 / 20))


@pytest.mark.parametrize("name", registry.names())
def test_no_mechanism_grows_faster_than_it_says(name):
    """With defaults and each known variant: forward, and training with a mask."""
    known = registry.get(name)
    scope = "core" if known.abilities.attend else "layer"
    for params in ({}, *(variant.params for variant in known.variants if variant.params)):
        for causal, phase in ((False, "forward"), (known.abilities.causal, "train")):
            sizes = Workload(1, 1, 64, causal=causal, phase=phase)
            for record in closed_form_growth(GrowthCase(known.with_params(params), sizes, scope)):
                assert record.expected, (params, record.quantity, record.found_exponent)


def test_the_documents_dense_mask_is_caught():
    spec = registry.get("longformer", impl="dense-mask")
    flops, peak = closed_form_growth(GrowthCase(spec, Workload(1, 1, 64), "core"))
    for record in (flops, peak):
        assert record.found_exponent == pytest.approx(2, abs=0.01)
        assert (record.claimed_order, record.verdict) == ("N", "grows faster")
        assert "N×N" in record.reason
    assert "weighted values grows like N^2" in flops.reason


def test_a_quadratic_mechanism_that_claims_less_is_caught():
    class Boaster(Standard):
        time_order = "N log N"
        memory_order = "N"

    for record in closed_form_growth(GrowthCase(Boaster(), Workload(1, 1, 64), "core")):
        assert record.verdict == "grows faster"
        assert record.expected is False


@pytest.mark.parametrize(("order", "count", "kept"), [
    ("N", lambda n: 10**6 * n + n * n.bit_length(), False),
    ("N", lambda n: 4356 * n + n * -(-n // 4096), False),
    ("N log N", lambda n: 6 * 64**2 * n + 15 * n * n.bit_length(), True),
    ("N^1.5", lambda n: n * (math.isqrt(n) + 1), True),
    ("N", lambda n: n * (math.isqrt(n) + 1), False),
    ("N^2", lambda n: n**2 + 10**6 * n, True),
])  # fmt: skip
def test_what_leads_in_the_end_decides(order, count, kept):
    assert stays_within(order, count) is kept


def test_a_logarithm_beside_a_large_linear_term_is_caught():
    class Boaster(HE):
        time_order = "N"

    flops, _ = closed_form_growth(GrowthCase(Boaster(), Workload(1, 8, 64), "layer"))
    assert flops.found_exponent < 1.05
    assert (flops.verdict, flops.expected) == ("grows faster", False)


def test_memory_that_grows_beyond_the_usual_lengths_is_told():
    spec = registry.get("she")
    _, peak = closed_form_growth(GrowthCase(spec, Workload(1, 1, 64), "layer"))
    assert (peak.verdict, peak.expected) == ("grows faster", True)
    assert "65,536 tokens" in peak.reason
