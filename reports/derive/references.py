"""Derived matrix products of torch's own modules and of public packages, against torch's counter.

Each module is derived (``attnprof.derive``: formulas, or numbers where there is no formula), then
run for real at the asked shape under ``FlopCounterMode``; forward, and forward and backward. Into
an environment with attnprof and the packages that ``speed/implementations.py`` names::

    python reports/run.py derive/references
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from rows import since, table
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import attnprof
from attnprof.errors import AttnprofError

X = {"x": "B, N, h*d"}
HEADS = {"q": "B, h, N, d", "k": "B, h, N, d", "v": "B, h, N, d"}
AT = {"B": 2, "N": 256, "h": 4, "d": 16}


@dataclass(frozen=True)
class Row:
    """Products of a case in a phase: the formula, its value, what torch's counter saw."""

    case: str
    phase: str
    method: str
    formula: str
    derived: int
    counted: int
    seconds: float
    refused: str = ""


@dataclass(frozen=True)
class Case:
    """``make`` builds the module from sizes; ``inputs`` as derive takes them."""

    name: str
    make: Callable[..., Any]
    args: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=lambda: X)
    eval_forward: bool = True


class MultiHead(nn.Module):
    """Self-attention by ``nn.MultiheadAttention``, with or without its weights."""

    def __init__(self, width: Any, heads: Any, weights: bool) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(width, heads, batch_first=True)
        self.weights = weights

    def forward(self, x: Any) -> Any:
        """(batch, tokens, width) in and out."""
        return self.inner(x, x, x, need_weights=self.weights)[0]


WIDTHS = {"width": "h*d", "heads": "h"}


def cases() -> dict[str, Case]:
    """Return torch's own, then the packages', by name."""
    listed = [
        Case("nn.MultiheadAttention, weights", MultiHead, {**WIDTHS, "weights": True}),
        Case("nn.MultiheadAttention, no weights", MultiHead, {**WIDTHS, "weights": False}),
        Case("nn.TransformerEncoderLayer", nn.TransformerEncoderLayer,
             {"d_model": "h*d", "nhead": "h", "dim_feedforward": 128, "batch_first": True},
             {"src": "B, N, h*d"}),
        Case("performer-pytorch", _performer, {"head": "d", "causal": False}, HEADS),
        Case("linformer", _linformer, {"width": "h*d", "n": "N", "heads": "h"}),
        Case("nystrom-attention", _nystrom, {"width": "h*d", "heads": "h", "head": "d"}),
        Case("reformer-pytorch", _reformer, {}, {"qk": "B, N, d", "v": "B, N, d"}),
        Case("local-attention", _local, {"head": "d"}, HEADS),
        Case("transformers Nystromformer", _hf_nystrom, {"width": "h*d", "heads": "h", "n": "N"},
             {"hidden_states": "B, N, h*d"}),
    ]  # fmt: skip
    return {case.name: case for case in listed}


def _performer(head: Any, causal: bool) -> Any:
    from performer_pytorch import FastAttention

    return FastAttention(head, nb_features=32, causal=causal)


def _linformer(width: Any, n: Any, heads: Any) -> Any:
    from linformer import LinformerSelfAttention

    return LinformerSelfAttention(width, n, k=32, heads=heads)


def _nystrom(width: Any, heads: Any, head: Any) -> Any:
    from nystrom_attention import NystromAttention

    return NystromAttention(width, head, heads, num_landmarks=32, residual=True)


def _reformer() -> Any:
    from reformer_pytorch import LSHAttention

    return LSHAttention(bucket_size=16, n_hashes=2)


def _local(head: Any) -> Any:
    from local_attention import LocalAttention

    return LocalAttention(32, causal=True, use_rotary_pos_emb=False, dim=head)


def _hf_nystrom(width: Any, heads: Any, n: Any) -> Any:
    from types import SimpleNamespace

    from transformers.models.nystromformer import modeling_nystromformer as source

    config = SimpleNamespace(
        hidden_size=width, num_attention_heads=heads, num_landmarks=32, conv_kernel_size=None,
        segment_means_seq_len=n, attention_probs_dropout_prob=0.0, inv_coeff_init_option=False,
    )  # fmt: skip
    return source.NystromformerSelfAttention(config)


def counted(case: Case, phase: str) -> int:
    """What torch's counter sees in a real run at the asked shape."""
    values = {name: _value(text) for name, text in case.args.items()}
    module = case.make(**values)
    module.train(phase == "train")
    inputs = [
        torch.randn(*(_value(dim) for dim in dims.split(",")), requires_grad=phase == "train")
        for dims in case.inputs.values()
    ]
    counter = FlopCounterMode(display=False)
    # the counter sees neither the fast path nor the fused kernel: their plain forms stand in
    plain = sdpa_kernel(SDPBackend.MATH)
    with _no_fast_path(), plain, torch.set_grad_enabled(phase == "train"), counter:
        out = module(*inputs)
        out = out[0] if isinstance(out, tuple) else out
        if phase == "train":
            out.backward(torch.ones_like(out))
    return int(counter.get_total_flops())


@contextmanager
def _no_fast_path() -> Iterator[None]:
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def _used(case: Case) -> dict[str, int]:
    """The asked sizes that the case has."""
    texts = " ".join(str(text) for text in [*case.args.values(), *case.inputs.values()])
    return {name: size for name, size in AT.items() if re.search(rf"\b{name}\b", texts)}


def _value(text: Any) -> Any:
    return eval(text, {}, dict(AT)) if isinstance(text, str) else text  # noqa: S307


def rows(name: str, case: Case) -> Iterator[Row]:
    """Yield both phases of a case."""
    for phase in ("forward", "train"):
        start = time.process_time()
        try:
            derivation = attnprof.derive(
                case.make, args=case.args, inputs=case.inputs, phases=[phase], at=_used(case)
            )
        except AttnprofError as error:
            yield Row(name, phase, "", "", 0, 0, since(start), str(error))
            continue
        seconds, forms = since(start), derivation.phases[phase]
        formula = forms.formulas["matmul_flops"]
        has_formula = formula.expression is not None
        value = (
            derivation.at("matmul_flops", phase, **_used(case)) if has_formula else formula.value
        )
        text = str(formula.expression) if has_formula else ""
        yield Row(name, phase, forms.method, text, value, counted(case, phase), seconds)


_NOTE = (
    "Torch's counter sees neither the fast path of its attention nor the fused kernel on a CPU; it "
    "counted their plain forms. Known differences: the fused kernel's backward pass computes the "
    "scores again (5 products for 4: 2·B·N²·h·d more); the counter takes the weight gradient of a "
    "grouped convolution for that of a full one."
)


def page(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the page."""
    at = ", ".join(f"{name}={size}" for name, size in AT.items())
    yield "# Matrix products derived from others' modules"
    yield f"At {at}; FLOPs of matrix products, derived against torch's counter on a real run."
    equal = sum(not row.refused and row.derived == row.counted for row in rows)
    yield from ("", _NOTE, "", f"{equal} of {len(rows)} phases equal.", "")
    heads = "module | phase | way | formula | >derived | >torch's counter | difference | >seconds"
    yield from table(heads, map(_line, rows))


def _line(row: Row) -> tuple[str, ...]:
    if row.refused:
        return row.case, row.phase, f"refused: {row.refused}", "", "", "", "", ""
    off = row.derived - row.counted
    return (
        row.case, row.phase, row.method, f"`{row.formula}`" if row.formula else "–",
        f"{row.derived:,}", f"{row.counted:,}", f"{off:+,}" if off else "equal",
        f"{row.seconds:.1f}",
    )  # fmt: skip
