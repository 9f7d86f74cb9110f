"""Quantity by quantity: what a run contradicts has no formula, and says where the two part."""

import random
import re
from io import StringIO

import pytest
import torch
from rich.console import Console
from torch import nn

from attnprof.algebra.values import evaluate
from attnprof.render.tables import derive
from attnprof.trace.report.derivation import Derivation
from attnprof.trace.report.records import report_of
from attnprof.trace.request.lookup import target_of
from tests.trace import hazards
from tests.trace.checks import check, counted_at, shown

HOW = ["d_model=h*d", "num_heads=h"], {"x": "B, N, h*d"}


def copies(length):
    return random.Random(length).random() < 0.5


class CopiesWithoutTelling(hazards.Attention):
    """Lays its result out anew at lengths that nothing but a run there can tell."""

    def done(self, y):
        n = y.shape[1]
        n = getattr(getattr(n, "node", None), "hint", n)  # no question that torch would hear
        return y.clone() if copies(n) else y


@pytest.fixture(scope="module")
def derivation() -> Derivation:
    return shown(CopiesWithoutTelling, *HOW, at={"B": 2, "N": 40, "h": 2, "d": 8})[1]


def test_what_is_contradicted_has_a_reason_and_others_keep_their_formulas(derivation):
    for sizes in ({"B": 3, "N": 99, "h": 3, "d": 5}, {"B": 2, "N": 1000, "h": 4, "d": 16}):
        counted = counted_at(target_of(CopiesWithoutTelling, *HOW), sizes, "forward")
        for quantity in ("flops", "matmul_flops", "multiplications", "exponentials", "parameters"):
            assert evaluate(derivation.expression(quantity), sizes) == counted[quantity]
    assert derivation.expression("bytes_moved") is None
    forms = derivation.phases["forward"]
    line = CopiesWithoutTelling.done.__code__.co_firstlineno + 3
    reason = forms.formulas["bytes_moved"].withheld
    assert reason.startswith("at B=")
    assert "forward bytes_moved are " in reason
    assert f"aten.clone (test_contradictions.py:{line})" in reason
    assert any(reason in note and "no formula of bytes moved" in note for note in forms.notes)


def test_it_has_a_value_by_a_run(derivation):
    formula = derivation.phases["forward"].formulas["bytes_moved"]
    shape = {"B": 2, "N": 40, "h": 2, "d": 8}
    assert formula.value == derivation.at("bytes_moved", **shape) > 0
    one, other = (derivation.at("bytes_moved", **{**shape, "N": n}) for n in (42, 43))
    assert one != other


def test_all_formats_show_it(derivation):
    report = report_of(derivation, in_steps=True)
    record = next(r for r in report.records if r.quantity == "bytes_moved")
    assert record.expression is None
    assert "they part at aten.clone" in record.withheld
    phase = report.summary["phases"]["forward"]
    for row in (*phase["operations"], *phase["lines"], *phase["steps"]):
        assert row["bytes_moved"] in ("no formula", "0")
    for page in (derive.derive_page(report), "\n".join(map(str, _texts(report)))):
        assert re.search(r"bytes moved \|? *no formula", page)
        assert record.withheld.split(",")[0] in page


def _texts(report):
    console = Console(width=300, file=StringIO())
    for block in derive.derive_tables(report):
        console.print(block)
    yield console.file.getvalue()


class Slices(nn.Module):
    """Two ways of taking everything, and one that is everything at 600 tokens."""

    def __init__(self, d_model):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(600, d_model))

    def forward(self, x):
        return x[:, :, None] * x[:, None, :] + self.table[: x.shape[1]]


class Convolved(nn.Module):
    """Its kernels lay whole blocks of channels out anew, and a bias only where one is not full."""

    def __init__(self, d_model):
        super().__init__()
        self.conv = nn.Conv1d(d_model, d_model, 2, 2)

    def forward(self, x):
        return self.conv(x.transpose(1, 2))


def pooled(x):
    """Landmarks: windows share an entry where lengths do not divide."""
    y = nn.functional.adaptive_avg_pool1d(x.transpose(1, 2), 6)
    return y * nn.functional.adaptive_max_pool1d(x.transpose(1, 2), 6)


def rotated(x):
    """Half of the width twice: what divides it is asked of its half, rounded up."""
    n, d = x.shape[-2:]
    angles = torch.outer(torch.arange(n), torch.arange(0, d, 2) / d)
    angles = torch.cat((angles, angles), -1)
    one, other = x.chunk(2, -1)
    return x * angles.cos() + torch.cat((-other, one), -1) * angles.sin()


@pytest.mark.parametrize(
    ("layer", "args", "phase", "shapes"),
    [
        (Slices, ["d_model=d"], "train", [(2, 600, 4), (3, 7, 5), (2, 2, 2)]),
        (Convolved, ["d_model=d"], "forward", [(3, 9, 16), (4, 70, 24), (2, 4, 17)]),
        (pooled, [], "train", [(3, 9, 16), (4, 72, 3), (2, 6, 17)]),
        (rotated, [], "train", [(3, 9, 16), (4, 72, 6), (2, 6, 10)]),
    ],
)
def test_causes_that_are_mended(layer, args, phase, shapes):
    target, derivation = shown(layer, args, phase=phase)
    forms = derivation.phases[phase]
    assert forms.method == "symbolic"
    assert not any(formula.withheld for formula in forms.formulas.values())
    check(target, derivation, [dict(zip("BNd", shape, strict=True)) for shape in shapes], phase)
