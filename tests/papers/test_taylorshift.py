"""004 replayed: known slips by id, and values by other means."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from attnprof.papers.checks import formula, same_formula
from attnprof.papers.documents import document
from attnprof.papers.taylorshift import checks_costs, checks_quoted, checks_sizes
from attnprof.papers.taylorshift.checks_costs import (
    WIDTHS,
    dearer_from,
    first_lengths,
    tightest_bound,
)
from attnprof.papers.taylorshift.figures import FIGURES, TABLES

CHECKS = document("004").checks()

ERRATA = {
    "004-A1": ["4*d**3 + 6*d**2", "4*d**2 + 6*d", "2*d + 3"],
    "004-A2-first": "8*z**3 + 10*z**2",
    "004-A2-depressed": "8*x**3 - 25/6*x - 199/108",
    "004-COLSUM": "4*N*(d + 1) - (d + 1)",
    "004-EQ3": [[1, 1, 1]] * 3,
    "004-T1-den": "N*(2*d + 1)/(2*d)",
    "004-SPHERE": "d - 1",
}


def ops_direct(n: int, d: int) -> int:
    """Eq 1 in loops: every addition and multiplication counted where it happens."""
    count = 0
    for _row, _key in product(range(n), range(n)):
        count += 2 * d + 4  # dot product, x·x, /2, + x, + 1
        count += 2  # into the sum of the row, division
        count += 2 * d  # times the value, into the result
    return count


def ops_efficient(n: int, d: int) -> int:
    """Eq 3 in loops, with + V as printed."""
    count = 0
    for _token in range(n):
        count += 2 * d * d  # both box products
        count += 2 * 2 * d * d * (d + 1)  # into A_mod, and read from it
        count += 2 * 2 * d * (d + 1)  # the same of the linear part
        count += 3 * (d + 1) + d  # half, two sums; division
    return count


@pytest.mark.parametrize("claim", ERRATA)
def test_a_known_slip_is_found_with_the_right_value_beside_it(claim: str) -> None:
    answer = CHECKS[claim].answer()
    assert answer.verdict == "erratum"
    assert same_formula(answer.ours, ERRATA[claim])


def test_which_form_is_dearer_depends_on_the_price_of_an_exponential():
    answer = CHECKS["004-STD-higher"].answer()
    assert answer.verdict == "not-reproducible"
    assert "how many operations an exponential is" in answer.why
    assert dearer_from() == "4"


def test_the_laws_errors_are_judged_for_the_values_that_the_document_draws():
    """A_mod fits on the sphere, QKᵀV does not: no law chooses its own kind of V."""
    described = {item["what"].split()[5]: item for item in FIGURES["5"]()["described"]}
    assert {name: item["agrees"] for name, item in described.items()} == {
        "A_mod": True, "(QK^T)^2": True, "QK^T": False, "Y_denom": False, "Y": False,
    }  # fmt: skip
    assert "0.1% with rows of V on the sphere" in described["A_mod"]["ours"]


@pytest.mark.parametrize("d", WIDTHS)
def test_the_efficient_form_is_dearer_up_to_the_length_before_the_transition(d: int) -> None:
    lengths = first_lengths(d)
    n0 = lengths["N0"]
    assert ops_efficient(1, d) * n0 <= (4 * d + 6) * n0**2
    assert ops_efficient(1, d) * (n0 - 1) > (4 * d + 6) * (n0 - 1) ** 2

    def dearer(n: int) -> bool:
        return d**2 * (d + 1) + 2 * d * n + (d + 1) * n + d**2 * n > d * n + 2 * n * n

    assert dearer(lengths["N1"] - 1)
    assert not dearer(lengths["N1"])


@pytest.mark.parametrize(("n", "d"), [(1, 1), (3, 2), (5, 4)])
def test_counted_forms_agree_with_loops(n: int, d: int) -> None:
    at = {checks_costs.symbol("N"): n, checks_costs.symbol("d"): d}
    assert checks_costs.direct_flops().subs(at) == ops_direct(n, d)
    assert checks_costs.efficient_flops().subs(at) == ops_efficient(n, d)


@pytest.mark.parametrize("claim", ["EQ4", "EQ5", "MHSA-triv", "MHSA-eff", "ent-triv", "ent-eff"])
def test_a_claim_prints_what_the_mechanism_names_as_published(claim: str) -> None:
    sources = {"ent-triv": "MHSA-ENT-DIRECT", "ent-eff": "MHSA-ENT-EFFICIENT"}
    d, h = checks_costs.symbol("d"), checks_costs.symbol("h")
    text = formula(CHECKS[f"004-{claim}"].published).subs(checks_costs.symbol("d_e"), d * h)
    assert same_formula(text, checks_costs.printed(f"004-{sources.get(claim, claim)}"))


def test_the_bound_on_n1_is_never_below_it_and_nearly_reached_at_narrow_heads() -> None:
    d = checks_costs.symbol("d")
    bound, n1 = formula(tightest_bound()), formula(CHECKS["004-EQ7"].published)
    gaps = [float((bound - n1).subs(d, Fraction(1, 10**k))) for k in range(5)]
    assert all(gap > 0 for gap in gaps)
    assert gaps[-1] < 1e-3


def test_the_radicals_of_a2_solve_the_equation() -> None:
    root = formula(CHECKS["004-h0-closed"].published)
    assert abs((8 * root**3 + 10 * root**2 - 3).evalf(50)) < 1e-45
    assert CHECKS["004-h0-root"].ours()["d"] == pytest.approx(float(root))
    assert len(checks_costs.real_solutions()) == 1


def test_costs_of_the_efficient_form_fall_with_every_head_and_of_the_direct_one_rise() -> None:
    n, width = 50, 24
    heads = [h for h in range(1, width + 1) if width % h == 0]
    efficient = [h * ops_efficient(n, width // h) for h in heads]
    assert efficient == sorted(efficient, reverse=True)
    assert not checks_costs.falls_for_every_head_count(checks_costs.direct_flops())


def sampled(values: str, n: int, d: int, draws: int) -> dict[str, np.ndarray]:
    """Sizes of random draws, one query each, by expression."""
    samples: dict[str, list[float]] = {name: [] for name in checks_sizes.EXPRESSIONS}
    draw = np.random.default_rng(1)
    for _ in range(draws):
        q, k, v = draw.normal(size=(3, n, d))
        q, k = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (q[:1], k))
        if values == checks_sizes.SPHERE:
            v /= np.linalg.norm(v, axis=1, keepdims=True)
        v = np.hstack([np.ones((n, 1)), v])
        x = (q @ k.T)[0]
        y = (1 + x + x**2 / 2) @ v
        box = (k[:, :, None] * k[:, None, :]).reshape(n, d * d)
        made = (box.T @ v, x**2 @ v, x @ v, y[:1], y[1:] / y[0])
        for name, array in zip(samples, made, strict=True):
            samples[name].append(float(np.sqrt((array**2).sum())))
    return {name: np.array(norms) for name, norms in samples.items()}


@pytest.mark.parametrize("values", [checks_sizes.SPHERE, checks_sizes.NORMAL])
def test_laws_of_sizes_agree_with_samples(values: str) -> None:
    n, d = 300, 6
    for expression, norms in sampled(values, n, d, draws=2000).items():
        size = checks_sizes.size(expression, values, n, d)
        assert norms.mean() == pytest.approx(size, rel=0.04), expression


def test_why_a_size_is_off_tells_what_would_fit() -> None:
    answer = CHECKS["004-T1-Y"].answer()
    assert answer.verdict == "erratum"
    assert "unit variance" in answer.why
    assert checks_sizes.dimension_of_sphere() == "d - 1"


VERDICTS = {
    "004-T3-four": ("erratum", {"datasets": 3}),
    "004-ABS-nodeg": ("erratum", False),
    "004-800": ("erratum", {"memory": 900, "speed": 1800}),
    "004-d62": ("erratum", [64, 128]),
    "004-T6-speed": ("erratum", {"faster": False, "less memory": True}),
    "004-T7-348": ("erratum", 384),
    "004-T6-1025": ("match", 1025),
}


@pytest.mark.parametrize("claim", VERDICTS)
def test_tables_answer_what_the_text_says_of_them(claim: str) -> None:
    answer = CHECKS[claim].answer()
    assert (answer.verdict, answer.ours) == VERDICTS[claim]


def test_tables_3_and_5_disagree_on_cifar_alone() -> None:
    answer = CHECKS["004-T5-cifar"].answer()
    different = [name for name in answer.ours if answer.ours[name] != answer.published[name]]
    assert answer.verdict == "erratum"
    assert different == ["cifar_pixel"]


def test_efficient_memory_of_table_6_is_the_entries_at_both_ends_only() -> None:
    answer = CHECKS["004-T6-effmem"].answer()
    fitting = [h for h in answer.ours if abs(answer.ours[h] - answer.published[h]) < 1]
    assert answer.verdict == "not-reproducible"
    assert fitting == ["1", "64"]
    assert "h = 2, 4, 8, 16, 32 lies on 327 + 2050/h" in answer.why


def test_tables_differ_where_errata_say_so_and_nowhere_else() -> None:
    differing = {
        (number, column, next(iter(row.values())))
        for number, made in TABLES.items()
        for row in made()["rows"]
        for column, cell in row.items()
        if isinstance(cell, dict) and cell["differs"]
    }
    laws = {place for place in differing if place[0] == "1"}
    assert {row for _, _, row in laws} == {"QK^T V", "Y_denom", "Y"}
    assert differing - laws == {
        ("5", "linear", "cifar_pixel"),
        ("7", "imagenet_s", "d_embed"),
        ("6", "direct MiB", 1),
        *(("6", "efficient MiB", h) for h in (2, 4, 8, 16, 32)),
    }


MEASURED = {
    "crossovers": {
        "d": [8, 16, 32, 64, 128],
        "N0": [73, 273, 1057, 4161, 16513],
        "N0hat": [73 + 152.0, 273 + 256.0, 1057 + 600.0, 4161 + 1150.0, 16513 + 2304.0],
        "N1": [47, 159, 574, 2174, 8446],
        "N1hat": [47, 159, 575, 2180, 8400],
    },
    "encoder": {"seq_len": [1000, 1500, 2000], "memory_ratio": [0.9, 0.512, 0.345]},
}


@pytest.mark.parametrize(
    ("claim", "name", "spoilt"),
    [
        ("004-18d", "crossovers", {"N0hat": [80.0, 300.0, 1100.0, 4200.0, None]}),
        ("004-06", "crossovers", {"N1hat": [47, 159, 575, 2200, 8400]}),
        ("004-1500", "encoder", {"memory_ratio": [0.9, 0.512, 0.4]}),
    ],
)
def test_measurements_decide_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, claim: str, name: str, spoilt: dict[str, list[float]]
) -> None:
    shown = dict(MEASURED)
    monkeypatch.setattr(checks_quoted, "measured", lambda _, which: shown[which])
    assert CHECKS[claim].answer().verdict == "match"
    shown[name] = {**MEASURED[name], **spoilt}
    answer = CHECKS[claim].answer()
    assert answer.verdict == "not-reproducible"
    assert answer.basis == "measured"
    assert answer.why
