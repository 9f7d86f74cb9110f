"""Products by operation against a count by hand; each difference gets its reason."""

from collections import Counter

import pytest
import torch

from attnprof.measure.counters import (
    FvcoreCount,
    TorchCount,
    counter_differences,
    peak_differences,
    watch_products,
)
from attnprof.measure.memory import Peak

KERNEL = "aten._scaled_dot_product_flash_attention_for_cpu"


def executed_by(call):
    watch, flops, _ = watch_products()
    with watch:
        call()
    return dict(flops)


@pytest.mark.parametrize(("call", "expected"), [
    (lambda: torch.ones(3, 5) @ torch.ones(5, 7), {"aten.mm": 2 * 3 * 5 * 7}),
    (lambda: torch.ones(2, 3, 5) @ torch.ones(2, 5, 7), {"aten.bmm": 2 * 2 * 3 * 5 * 7}),
    (lambda: torch.ones(3, 5) @ torch.ones(5), {"aten.mv": 2 * 3 * 5}),
    (lambda: torch.ones(5) @ torch.ones(5), {"aten.dot": 2 * 5}),
    (
        lambda: torch.baddbmm(torch.ones(1), torch.ones(2, 3, 5), torch.ones(2, 5, 7)),
        {"aten.baddbmm": 2 * 2 * 3 * 5 * 7},
    ),
    (lambda: torch.ones(4, 4).exp_().sum(), {}),
])  # fmt: skip
def test_products_are_counted_by_operation(call, expected):
    assert executed_by(call) == expected


@pytest.mark.parametrize(("causal", "pairs"), [(False, 11 * 11), (True, 11 * 12 // 2)])
def test_fused_attention_counts_the_pairs_it_sees(causal, pairs):
    q, k, v = (torch.ones(2, 3, 11, 8, requires_grad=True) for _ in range(3))

    def train():
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        out.backward(torch.ones_like(out))

    dot = 2 * 2 * 3 * 8 * pairs
    assert executed_by(train) == {KERNEL: 2 * dot, f"{KERNEL}_backward": 5 * dot}


def torch_count(counted, executed):
    return TorchCount(Counter(counted), Counter(executed), Counter(dict.fromkeys(executed, 1)))


NO_FVCORE = FvcoreCount(failed="fvcore counts forward passes only")


def test_agreement_needs_no_row():
    count = torch_count({"aten.bmm": 8}, {"aten.bmm": 8})
    assert counter_differences(8, count, FvcoreCount(Counter(bmm=4))) == []


BMM = ({"aten.bmm": 8}, {"aten.bmm": 8})
FLASH = "aten._scaled_dot_product_flash_attention"


@pytest.mark.parametrize(("formula", "count", "fvcore", "said"), [
    (9, BMM, NO_FVCORE, "unexplained difference of +1 FLOPs"),
    (8, ({}, {KERNEL: 8}), NO_FVCORE, "as 0: 8 FLOPs missing"),
    (6, ({FLASH: 9}, {FLASH: 6}), NO_FVCORE, "as dense: 3 FLOPs too many"),
    (8, ({"aten.bmm": 7}, {"aten.bmm": 8}), NO_FVCORE, "unexplained difference of -1"),
    (8, ({"aten.baddbmm": 8}, {"aten.baddbmm": 8}),
     FvcoreCount(Counter(), Counter({"aten::baddbmm": 2})),
     "fvcore does not know baddbmm ×2: 8 FLOPs missing"),
    (8, BMM, FvcoreCount(Counter(matmul=6)), "fvcore's rule for matmul differs by +4 FLOPs"),
    (8, BMM, FvcoreCount(Counter(bmm=4, layer_norm=5)),
     "fvcore counts layer_norm as 5 MACs, which is no product"),
    (8, BMM, FvcoreCount(Counter(bmm=3), batched=1),
     "unexplained difference of -2 FLOPs in fvcore's count"),
    (8, BMM, FvcoreCount(Counter(bmm=3)),
     "fvcore's tracer drops bmm ×1, which no output needs: 2 FLOPs missing"),
    (8, BMM, FvcoreCount(Counter(bmm=5)),
     "unexplained difference of +2 FLOPs in fvcore's count"),
    (8, BMM, FvcoreCount(Counter(), Counter({"prim::PythonOp.Mine": 1})),
     "fvcore does not look into the autograd function Mine ×1: 8 FLOPs missing"),
    (8, BMM, FvcoreCount(failed="TypeError: no"),
     "fvcore could not trace the module (TypeError: no)"),
])  # fmt: skip
def test_each_difference_is_named_with_its_size(formula, count, fvcore, said):
    (row,) = counter_differences(formula, torch_count(*count), fvcore)
    assert said in row


def test_equal_peaks_need_no_row_and_a_kernels_workspace_is_named():
    assert peak_differences(100_000, Peak(100_050)) == []
    kernel = Peak(130_000, "aten::_flash", 30_000, 100_000)
    (row,) = peak_differences(100_000, kernel)
    assert row == "kernel workspace: +30,000 bytes of the peak are aten::_flash's own"
    (row,) = peak_differences(100_000, Peak(130_000))
    assert "unexplained difference of +30,000 bytes" in row
