"""000: Eq 24, Figure 2, and Figure 3's ratio of standard to Efficient Attention."""

from functools import cache, partial
from itertools import combinations, product
from typing import Any

import sympy

from attnprof import registry
from attnprof.closed_form.heatmap import Heatmap, heatmap_report
from attnprof.papers.better_attention import values
from attnprof.papers.better_attention.values import HEADS, LENGTH, WIDTH, eq24, multiply_adds, ratio
from attnprof.papers.checks import Check, Checks, rounded
from attnprof.papers.documents import number
from attnprof.record import Report

CONSTANTS = {row["attention"]: row for row in values.DOCUMENT.rows("eq24_constants")}
PRINTED = {name: f"{row['C_attn']}*l*d_m + {row['head_term']}" for name, row in CONSTANTS.items()}
#: Figure 3's head counts.
PANELS = (1, 2, 4, 8)
#: Sizes on both its axes, which the document does not give: with these its means come out.
SIZES = tuple(2**exponent for exponent in range(11))
#: Grids up to this power of two are tried for the quoted means.
LARGEST = 13
GRID = "Eq 24 for l and d_m in 1, 2, 4, ..., 1024"
_about_eq24 = partial(Check, tables=("eq24",))
_about_figure_3 = partial(Check, tables=("fig3",))
CHECKS = Checks([
    _about_eq24(
        "000-EQ24-exact",
        PRINTED,
        lambda: {name: str(multiply_adds(name)) for name in values.MECHANISMS},
        how="2mkn for each matrix product (m x k)(k x n) of Definitions 1 to 4, both passes",
        why="Eq 24 counts one operation for each result of a product instead of one multiplication "
        "and addition for each of its terms: every factor d_m, and l of the products with the "
        "scores, is lost. The products alone take these; softmax adds about 5 h l^2 a pass",
    ),
    _about_eq24(
        "000-EQ24-origin",
        PRINTED,
        lambda: {name: str(values.results_counted(name)) for name in values.MECHANISMS},
        how="the whole of Eq 24 against results of the definitions' products, and scaling, "
        "exponential, row sum and division of each score, three times: forward once, backward "
        "twice",
        note="5, 4, 3 and 4 results of l x d_m and 5 of l x l a head, times 3; this is a number of "
        "results, not of FLOPs",
    ),
    _about_eq24(
        "000-EQ24-35",
        "3/5",
        lambda: str(eq24("efficient").diff(WIDTH) / eq24("standard").diff(WIDTH)),
        how="slope of Efficient over slope of standard attention in d_m, by Eq 24",
    ),
    _about_eq24(
        "000-EQ24-superopt",
        "0",
        lambda: str(sympy.factor(multiply_adds("super") - multiply_adds("optimised"))),
        how="multiplications and additions of Definition 4's products less those of Definition 2's",
        why="Super mixes values with an l x l map where Optimised maps keys with a d_m x d_m one: "
        "they cost the same only for l = d_m",
    ),
    _about_figure_3(
        "000-FIG3-formula",
        f"({PRINTED['standard']})/({PRINTED['efficient']})",
        lambda: str(ratio(values.results_counted)),
        how="results of Definition 1 over those of Definition 3, counted as Eq 24 does",
        note="5 (d_m + h l) / (3 d_m + 5 h l): an excess of 2 / (3 + 5 h l / d_m), below 2/3",
    ),
])  # fmt: skip


@CHECKS.answers(
    "000-EQ24-linear",
    {name: row["slope_wrt_d_m"] for name, row in CONSTANTS.items()},
    how="derivatives of Eq 24 by d_m, all free of d_m",
    note="of the printed equation; the products of the definitions grow with d_m^2",
    tables=("eq24",),
)
def slopes() -> dict[str, str]:
    """What one more unit of width costs, by Eq 24; free of the width itself if linear."""
    return {name: str(eq24(name).diff(WIDTH)) for name in values.MECHANISMS}


@CHECKS.answers(
    "000-FIG2-shape",
    True,
    how="Eq 24 over its own value at d_m = 1, looked through for l",
    why="C l d_m + 15 h l^2 = l (C d_m + 15 h l): slope over offset is C / (15 h l). The "
    "longer the context, the flatter all curves and the closer their ratios to 1",
)
def shape_is_free_of_length() -> bool:
    """Whether the length only scales the curves: whether FLOPs(d_m) / FLOPs(1) is free of it."""
    shapes = [sympy.cancel(eq24(name) / eq24(name).subs(WIDTH, 1)) for name in values.MECHANISMS]
    return not any(LENGTH in shape.free_symbols for shape in shapes)


# -- Figure 3 --------------------------------------------------------------------------
@cache
def heatmaps() -> Report:
    """Eq 24 of standard over Efficient Attention on the grid, a panel a head count."""
    a, b = registry.get("standard"), registry.get("efficient")
    return heatmap_report(Heatmap(a=a, b=b, seq_lens=SIZES, d_models=SIZES, num_heads=PANELS))


def excess(statistic: str) -> dict[str, float]:
    """Mean or max excess in percent, by head count."""
    found: dict[str, float] = heatmaps().summary[f"{statistic}_excess_percent"]
    return found


def quoted(source: str, statistic: str) -> dict[str, float]:
    """What the caption or the text quotes."""
    rows = values.DOCUMENT.rows("fig3_flop_ratio_quoted")
    return {
        row["h"]: number(row[f"{statistic}_excess_pct"]) for row in rows if row["source"] == source
    }


def quoted_order(source: str) -> list[str]:
    """Head counts by the quoted means, the largest first."""
    means = quoted(source, "mean")
    return sorted(means, key=lambda h: -means[h])


_in_order = partial(
    CHECKS.answers,
    how="head counts by the quoted means, the largest first, against the sign of the slope of Eq "
    "24's ratio in h; the means themselves: 000-FIG3-grid",
    tables=("fig3",),
)


@_in_order(
    "000-FIG3-order-text",
    quoted_order("text_B2"),
    note="by the formula the excess falls with the heads for all l and d_m",
)
@_in_order(
    "000-FIG3-order-caption",
    quoted_order("caption"),
    why="the head counts stand in reverse: 2 / (3 + 5 h l / d_m) falls with h for all l and "
    "d_m, as Sec B.2 has it: most for one head, least for eight",
)
def _by_excess() -> list[str]:
    slope = sympy.factor(ratio(eq24).diff(HEADS))
    assert slope.is_negative or slope.is_positive
    return [str(h) for h in sorted(PANELS, reverse=bool(slope.is_positive))]


def fitting_grids() -> list[tuple[int, int, int, int]]:
    """Exponents (first and last of l, first and last of d_m) of the grids with the quoted means.

    Powers of two in a row on each axis, three at least, from 1 to 2^LARGEST.
    """
    spans = [(a, b) for a, b in combinations(range(LARGEST + 1), 2) if b - a >= 2]
    wanted = quoted("text_B2", "mean")
    return [
        (*of_l, *of_d)
        for of_l, of_d in product(spans, spans)
        if all(round(mean_excess(of_l, of_d, int(h))) == mean for h, mean in wanted.items())
    ]


@cache
def mean_excess(of_l: tuple[int, int], of_d: tuple[int, int], heads: int) -> float:
    """The mean of 2 / (3 + 5 h l / d_m) over a grid of powers of two, in percent."""
    shares = [y - x for x in range(of_l[0], of_l[1] + 1) for y in range(of_d[0], of_d[1] + 1)]
    return 100 * sum(2 / (3 + 5 * heads / 2.0**share) for share in shares) / len(shares)


def largest_excess(heads: int) -> float:
    """What the excess of Eq 24 comes up to at a head count, in percent: its limit for short l."""
    return float(100 * (ratio(eq24).subs({LENGTH: 0, HEADS: heads}) - 1))


CHECKS += [
    _about_figure_3(
        "000-FIG3-grid",
        quoted("text_B2", "mean"),
        lambda: excess("mean"),
        how=f"mean over all cells of the figure's ratio, {GRID}",
        agree=rounded(0),
        lacking="the lengths and widths of the figure; with 1, 2, 4, ..., 1024 for both the means "
        "are 29.68, 24.85, 20.33 and 16.20",
        why=lambda *_: (
            f"of the grids of powers of two up to 2^{LARGEST}, {len(fitting_grids())} give the "
            "quoted means, this one and 1 to 2048 by 2 to 1024 among them: the excess depends on "
            "h l / d_m alone"
        ),
    ),
    _about_figure_3(
        "000-FIG3-max",
        {f.partition("_")[0]: max(quoted(f, "max").values()) for f in ("caption", "text_B2")},
        lambda: dict.fromkeys(("caption", "text"), largest_excess(1)),
        how="bound of the excess by Eq 24 over all lengths and widths, one head",
        agree=rounded(0),
        why=lambda _, ours: (
            f"two values for one maximum, which stays below {ours['text']:.2f} % on any grid. "
            "Rounded that is the caption's 67; the text's 66 is it cut off"
        ),
    ),
    _about_figure_3(
        "000-FIG3-all",
        {h: int(most) for h, most in quoted("text_B2", "max").items()},
        lambda: {str(h): int(largest_excess(h)) for h in PANELS},
        how="bound of the excess by Eq 24 over all lengths and widths at each head count, cut off "
        "to whole percents",
        note="2/3 for every head count: cut off 66 %, rounded 67 %",
    ),
]


@CHECKS.answers(
    "000-EQ24-exactratio",
    {"at most": 66.7, "falls with the heads": True},
    how="multiplications and additions of Definition 1's products over Definition 3's",
    agree=rounded(1),
    why="counted from the definitions the ratio is (2 d_m + l) / (d_m + l): up to 100 % more "
    "for short contexts, and the same for every number of heads",
)
def exact_excess() -> dict[str, Any]:
    """The largest excess when multiplications and additions are counted, and what heads do.

    The ratio falls with r = l / d_m, so that its bound is its limit for short contexts.
    """
    share = sympy.Symbol("r", positive=True)
    exact = sympy.cancel(ratio(multiply_adds).subs(LENGTH, share * WIDTH))
    assert sympy.factor(exact.diff(share)).is_negative
    return {
        "at most": float(100 * (exact.subs(share, 0) - 1)),
        "falls with the heads": HEADS in exact.free_symbols,
    }
