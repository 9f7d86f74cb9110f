"""``heads``: values at every divisor, and the optimum against calculus done by sympy."""

import pytest
import sympy

from attnprof import registry
from attnprof.algebra.polynomials import divisors
from attnprof.workload import Workload


def test_the_real_optimum_is_the_root_of_the_cubic(attnprof):
    summary = attnprof("heads --d-model 256 --seq 1025 --format json").json["summary"]
    d = sympy.Symbol("d", positive=True)
    root = sympy.nsolve(8 * d**3 + 10 * d**2 - 3, d, 0.5)
    assert summary["optimum_head_dim"] == pytest.approx(float(root), rel=1e-12)
    assert f"{summary['optimum_head_dim']:.6f}" == "0.467297"
    assert summary["optimum_num_heads"] == pytest.approx(256 / float(root))
    assert summary["equation"] == "8*d**3 + 10*d**2 - 3 = 0"
    closed = sympy.sympify(summary["closed_form"])
    assert float(closed) == pytest.approx(float(root), rel=1e-12)
    assert summary["best_divisor"] == 256


@pytest.mark.parametrize(("width", "length"), [(256, 1025), (96, 17), (7, 3)])
def test_both_efficient_costs_fall_for_every_divisor(attnprof, width, length):
    report = attnprof(f"heads --d-model {width} --seq {length} --format json").json
    optima = [o for o in report["summary"]["optima"] if o["mechanism"] == "taylor-efficient"]
    published = [o for o in optima if o["kind"] == "published"]
    assert {o["trend"] for o in published} == {f"falls for every h up to {width}"}
    for quantity in ("flops", "peak_entries"):
        asked = ("taylor-efficient", quantity, "published")
        values = [
            row["value"] for row in report["records"]
            if (row["mechanism"], row["quantity"], row["kind"]) == asked
        ]  # fmt: skip
        assert len(values) == len(divisors(width))
        assert values == sorted(values, reverse=True)


def test_values_are_the_printed_head_forms(attnprof):
    rows = attnprof("heads --d-model 60 --seq 50 --kind published --format json").json["records"]
    n, width = 50, 60
    for row in rows:
        h, d = row["num_heads"], row["head_dim"]
        assert h * d == width
        printed = {
            ("taylor-direct", "flops"): 4 * n**2 * width + 6 * h * n**2,
            ("taylor-direct", "peak_entries"): width * n + 2 * n**2 * h,
            ("taylor-efficient", "flops"): h * n * (4 * d**3 + 10 * d**2 + 8 * d + 3),
            ("taylor-efficient", "peak_entries"): h * (d**3 + (n + 1) * d**2 + 3 * n * d + n),
        }
        assert row["value"] == printed[row["mechanism"], row["quantity"]]


def test_formula_values_are_those_of_the_closed_forms(attnprof):
    rows = attnprof("heads standard efficient --d-model 24 --seq 9 --kind formula -f json").json
    for row in rows["records"]:
        workload = Workload(9, row["num_heads"], row["head_dim"], dtype="entry")
        table = registry.get(row["mechanism"]).cost(workload, "core")
        wanted = table.flops if row["quantity"] == "flops" else table.peak()
        assert row["value"] == wanted


def test_the_formula_optimum_lies_between_its_neighbours(attnprof):
    """The slope of our own closed form, taken by sympy, vanishes at the optimum."""
    summary = attnprof("heads --d-model 64 --seq 100 --kind formula -f json").json["summary"]
    asked = ("taylor-efficient", "flops")
    one = next(o for o in summary["optima"] if (o["mechanism"], o["quantity"]) == asked)
    d = sympy.Symbol("d", positive=True)
    cost = registry.get("taylor-efficient").cost(Workload(100, 64 / d, d), "core").flops
    slope = sympy.diff(sympy.expand(cost), d)
    at = one["optimum_head_dim"]
    assert abs(float(slope.subs(d, at))) < 1e-6 * abs(float(slope.subs(d, 2 * at)))


@pytest.mark.parametrize(
    ("mechanism", "sizes", "has_one"),
    [("moba --set block=5 --set top=1", "--d-model 64 --seq 16 --batch 3", False),
     ("moba --set block=6 --set top=2 --causal", "--d-model 16 --seq 1", False),
     ("linear", "--d-model 64 --seq 64", True)],
)  # fmt: skip
def test_an_optimum_is_one_of_the_cost_and_not_of_a_branch_that_it_leaves(
    attnprof, mechanism, sizes, has_one
):
    costs = "--scope layer --kind formula --quantity peak_entries"
    report = attnprof(f"heads {mechanism} {sizes} {costs} -f json").json
    (one,) = report["summary"]["optima"]
    values = {row["num_heads"]: row["value"] for row in report["records"]}
    assert (one["optimum_num_heads"] is not None) == has_one
    if has_one:
        nearest = min(values, key=lambda h: abs(h - one["optimum_num_heads"]))
        assert values[nearest] == min(values.values())


def test_a_number_of_heads_that_groups_do_not_divide_is_left_out_with_the_reason(attnprof):
    words = "heads gqa --set num_kv_heads=2 --d-model 64 --seq 12 --quantity flops -f json"
    report = attnprof(words).json
    values = {row["num_heads"]: row["value"] for row in report["records"]}
    assert values == {1: None, **{h: 12**2 * (4 * 64 + 6 * h) for h in (2, 4, 8, 16, 32, 64)}}
    assert "does not divide num_heads=1" in report["summary"]["left_out"][0]
    assert report["summary"]["best_divisor"] == 2


def test_only_the_head_counts_asked_for_and_a_figure_is_drawn(attnprof, tmp_path):
    path = tmp_path / "heads.svg"
    words = f"heads --d-model 64 --heads 2,8 --kind published -f json --plot {path}"
    assert {row["num_heads"] for row in attnprof(words).json["records"]} == {2, 8}
    assert path.stat().st_size > 1000
