"""000's claims: known errata with their right value, and our values by other means."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest

from attnprof.papers.better_attention import (
    checks_formulas,
    checks_parameters,
    checks_tables,
    values,
)
from attnprof.papers.better_attention.values import (
    SYMBOLS,
    eq24,
    multiply_adds,
    parameters,
    results_counted,
)
from attnprof.papers.checks import READING
from attnprof.papers.documents import claims, document

CHECKS = document("000").checks()
ERRATA = {
    "000-PAR-T6_CIFAR100-super": {f"h={h}": 197_376 for h in (1, 2, 4, 8)},
    "000-CTX-ImageNet": 196,
    "000-REM3-CIFAR": "127/512",
    "000-FIG2-shape": False,
    "000-EQ24-superopt": "6*d_m*l*(-d_m + l)",
    "000-FIG3-order-caption": ["1", "2", "4", "8"],
    "000-FIG3-max": {"caption": 66.67, "text": 66.67},
    "000-EQ24-exactratio": {"at most": 100.0, "falls with the heads": False},
    "000-OPT-EQUIV": {"1": True, "2": False, "4": False},
    "000-PCT-5.86": {"percent": 9.63, "a": 8.31, "b": 7.58, "c": 7.58},
    "000-PCT-6.19": {"percent": 6.36, "a": 66.52, "b": 62.54, "c": 62.54},
    "000-PCT-S6-MNIST": 3.45,
    "000-PCT-S6-CIFAR": 16.47,
    "000-PCT-S6-ImageNet": 17.23,
    "000-PCT-B3-2.68": {"any other": 1.60, "standard": 3.23},
    "000-PCT-B3-27": {"Table 1": 17.23, "Table 7": 26.96},
    "000-TIME-OPT": {"from": 0.95, "to": 7.58},
    "000-TIME-EFF": {"from": 3.76, "to": 15.60},
    "000-TIME-SUP": {"from": 0.75, "to": 12.15},
    "000-CAP-T3T10": {"optimised": "3/4", "efficient": "1/2"},
    "000-DEF3": ["columns"],
    "000-SEC32": {"removed in Sec 3.1": ["W^V"], "side of W^K": ["right"]},
}
OTHER_ERRATA = {
    "000-EQ24-exact",
    "000-EQ17-18",
    *(f"000-RANK-table{table}" for table in ("01", "03", "05", "10")),
    *(f"000-HEADS-table{table}" for table in ("05", "09", "10")),
}
MISSING = {"000-SUP-45", "000-EFF-2x", "000-TABLE7", "000-FIG3-grid"}


def test_every_claim_is_answered_and_hardly_any_by_reading():
    assert set(CHECKS) == {claim for claim in claims() if claim.startswith("000-")}
    assert sum(check.basis == READING for check in CHECKS.values()) <= 8


@pytest.mark.parametrize("claim", ERRATA)
def test_an_erratum_gives_the_right_value(claim):
    answer = CHECKS[claim].answer()
    assert answer.verdict == "erratum"
    assert answer.why
    right = ERRATA[claim]
    if isinstance(right, float) or (
        isinstance(right, dict) and all(isinstance(v, float) for v in right.values())
    ):
        assert answer.ours == pytest.approx(right, abs=0.006)
    else:
        assert answer.ours == right


def test_all_other_claims_match():
    verdicts = {claim: check.answer().verdict for claim, check in CHECKS.items()}
    assert {c for c, v in verdicts.items() if v == "erratum"} == {*ERRATA, *OTHER_ERRATA}
    assert {c for c, v in verdicts.items() if v == "not-reproducible"} == MISSING


@pytest.mark.parametrize("claim", sorted({*ERRATA, *OTHER_ERRATA, *MISSING}))
def test_a_document_that_said_what_we_find_would_be_right(claim):
    own = replace(CHECKS[claim], published=CHECKS[claim].ours())
    assert own.lacking or own.answer().verdict == "match"


@pytest.mark.parametrize("mechanism", values.MECHANISMS)
@pytest.mark.parametrize(("width", "length"), [(128, 64), (32, 32), (256, 257)])
def test_parameters_are_those_of_the_modules(mechanism, width, length):
    import attnprof

    module = attnprof.build(mechanism, d_model=width, num_heads=4, seq_len=length)
    assert parameters(mechanism, width, length) == sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("mechanism", values.MECHANISMS)
def test_multiply_adds_are_those_torch_counts(mechanism):
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    import attnprof

    length, width, heads = 6, 8, 2
    layer = attnprof.build(mechanism, d_model=width, num_heads=heads, seq_len=length, bias=False)
    x = torch.randn(1, length, width, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        layer(x).sum().backward()
    sizes = dict(zip(SYMBOLS, (length, width, heads), strict=True))
    assert counter.get_total_flops() == multiply_adds(mechanism).subs(sizes)


@pytest.mark.parametrize(
    ("mechanism", "kept"),
    [
        ("standard", ["q", "k", "v", "sv", "o"]),
        ("optimised", ["q", "k", "sv", "o"]),
        ("efficient", ["q", "sv", "o"]),
        ("super", ["q", "av", "sv", "o"]),
    ],
)
def test_eq_24_is_three_times_the_number_of_results(mechanism, kept):
    length, width, heads = 5, 12, 3
    counted = Counter()
    for name in kept:
        for _ in product(range(length), range(width)):
            counted[name] += 1
    for _ in product(range(heads), range(length), range(length)):
        for name in ("score", "scaling", "exponential", "sum", "division"):
            counted[name] += 1
    sizes = dict(zip(SYMBOLS, (length, width, heads), strict=True))
    assert results_counted(mechanism).subs(sizes) == 3 * counted.total()
    assert eq24(mechanism).subs(sizes) == 3 * counted.total()


def mean_excess(sizes: list[int], heads: int) -> float:
    cells = [
        100 * ((15 * n * d + 15 * heads * n * n) / (9 * n * d + 15 * heads * n * n) - 1)
        for n in sizes
        for d in sizes
    ]
    return sum(cells) / len(cells)


@pytest.mark.parametrize("heads", checks_formulas.PANELS)
def test_mean_excess_is_that_of_a_loop_over_cells(heads):
    found = checks_formulas.excess("mean")[str(heads)]
    assert found == pytest.approx(mean_excess(list(checks_formulas.SIZES), heads), rel=1e-12)


def test_the_quoted_means_come_out_on_more_than_one_grid():
    quoted = checks_formulas.quoted("text_B2", "mean")
    grids = checks_formulas.fitting_grids()
    assert {(0, 10, 0, 10), (0, 11, 1, 10)} <= set(grids)
    assert len(grids) > 2
    for heads, mean in quoted.items():
        sizes = [2**e for e in range(11)]
        assert round(mean_excess(sizes, int(heads))) == mean
        assert checks_formulas.mean_excess((0, 10), (0, 10), int(heads)) == pytest.approx(
            mean_excess(sizes, int(heads))
        )


@pytest.mark.parametrize("heads", checks_formulas.PANELS)
def test_no_cell_of_any_grid_is_above_the_bound_and_short_contexts_come_near_it(heads):
    bound = checks_formulas.largest_excess(heads)
    excess = [100 * (5 * (d + heads * n) / (3 * d + 5 * heads * n) - 1)
              for n in (1, 7, 1000) for d in (1, 64, 10**7)]  # fmt: skip
    assert all(0 < value < bound for value in excess)
    assert max(excess) > bound - 1e-3


def test_parameters_are_asked_at_every_printed_number_of_heads():
    for claim, check in CHECKS.items():
        if claim.startswith("000-PAR-T") and "abbrev" not in claim:
            assert len(check.published) >= 3, claim
            assert set(check.published) == set(check.ours())


def test_slicing_reaches_fewer_maps_by_the_dimension_of_low_rank_matrices():
    for width, heads in product((4, 8), (1, 2, 4)):
        head = width // heads
        assert checks_formulas.reachable(width, heads, True) == width**2
        expected = heads * head * (2 * width - head)
        assert checks_formulas.reachable(width, heads, False) == expected


@pytest.mark.parametrize("table", values.TABLES)
def test_ranks_are_places_in_the_sorted_values(table):
    rows = [row for row in values.rows(table) if row["attention"]]
    printed = checks_tables.printed_ranks(table)
    for name, columns in checks_tables.recomputed_ranks(table).items():
        assert set(columns) == set(printed[name])
        for column, rank in columns.items():
            if column == "params" and table == "1":
                continue
            group = [
                row
                for row in rows
                if row[f"{column}_rank"] and row["dataset"] == name.rpartition(" ")[0]
            ]
            own = next(row for row in group if checks_tables.label(row) == name)
            less_is_better = column.endswith(("params", "_s", "loss"))
            ordered = sorted((float(row[column]) for row in group), reverse=not less_is_better)
            assert rank == ordered.index(float(own[column])) + 1


def test_the_tables_hold_as_many_ranks_as_the_claims_say():
    for table in values.TABLES:
        said = claims()[f"000-RANK-table{int(table):02}"].says
        count = sum(len(columns) for columns in checks_tables.printed_ranks(table).values())
        assert said == f"{count} rank annotations"


@pytest.mark.parametrize("hidden", [None, 2000])
def test_table_7_models_are_counted_as_torch_counts_them(hidden):
    import torch
    from torch import nn

    with torch.device("meta"):
        block = nn.TransformerEncoderLayer(768, 12, 3072)
        head = (
            [nn.Linear(768, 1000)]
            if hidden is None
            else [nn.Linear(768, hidden), nn.Linear(hidden, 1000)]
        )
        model = nn.ModuleList([nn.Conv2d(3, 768, 8, 8), nn.LayerNorm(768), *head])
        tokens = 768 * (1 + 197)
    total = 8 * sum(p.numel() for p in block.parameters()) + tokens
    total += sum(p.numel() for p in model.parameters())
    ours = checks_parameters.encoder("standard", 768, 8) + checks_parameters.head(768, hidden)
    assert ours == total


def test_one_hidden_width_explains_table_7():
    assert checks_parameters.fitting_heads() == [2000]
    assert "2000 units" in CHECKS["000-TABLE7"].answer().why


def test_bounds_of_the_savings_are_limits_of_the_counts():
    from attnprof.papers.better_attention.checks_tables import bound

    sizes = dict(zip(SYMBOLS, (1, 10**9, 1), strict=True))
    for count, mechanism in product((eq24, multiply_adds), ("efficient", "super")):
        far = float((count("standard") / count(mechanism)).subs(sizes))
        assert math.isclose(bound(count, mechanism), far, rel_tol=1e-6)
