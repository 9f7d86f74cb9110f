"""Formulas are broken between terms, whatever the width, and nothing of them is lost."""

import pytest

from attnprof.render.terminal import FormulaText

LONG = "4*B*N**2*d*h + 6*B*N**2*h - 2*d*h*(N - 512*floor(N/512))*Min(1, N - 512*floor(N/512)) + 7*N"
MAX = "Max(8*B*N**2*h + 32*B*N*d*h,\n    12*B*N**2*h + 16*B*N*d*h + 4*d**2*h**2)"


def squeezed(text):
    return "".join(text.split())


@pytest.mark.parametrize("formula", [LONG, MAX])
@pytest.mark.parametrize("width", [12, 20, 33, 58, 80, 200])
def test_a_formula_fits_and_is_whole(formula, width):
    lines = FormulaText(formula).folded(width).plain.splitlines()
    assert max(map(len, lines)) <= width
    assert squeezed("".join(lines)) == squeezed(formula)
    assert not any(line.rstrip().endswith((" +", " -", "**")) for line in lines)


def test_a_line_begins_with_a_term_or_an_argument():
    assert FormulaText(LONG).folded(58).plain.splitlines() == [
        "4*B*N**2*d*h + 6*B*N**2*h",
        "- 2*d*h*(N - 512*floor(N/512))*Min(1, N",
        "- 512*floor(N/512)) + 7*N",
    ]
    assert FormulaText(MAX).folded(40).plain.splitlines()[-2:] == [
        "    12*B*N**2*h + 16*B*N*d*h", "    + 4*d**2*h**2)",
    ]  # fmt: skip


@pytest.mark.parametrize(("most", "shown"), [
    (200, LONG), (30, "4*B*N**2*d*h + 6*B*N**2*h …"), (14, "4*B*N**2*d*h …"),
])  # fmt: skip
def test_a_brief_formula_ends_after_a_term(most, shown):
    assert FormulaText.brief(LONG, most).plain == shown
