"""Model classes of transformers, derived and run for real.

Each class is built from a tiny configuration with random weights; nothing is downloaded. Its cost
is derived over batch and tokens; then, at random shapes of the domain that the derivation states,
the real module runs on real tensors: products are counted by torch's ``FlopCounterMode``, the peak
is the CPU allocator's, from torch's profiler. Neither goes through attnprof's own recorder::

    python reports/run.py derive/transformers_models             # everything: half an hour
    python reports/run.py derive/transformers_models Llama Bert  # these again
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from rows import table
from subjects import subject_of
from torch.utils.flop_counter import FlopCounterMode

from attnprof.errors import AttnprofError
from attnprof.measure.memory import measure_peak
from attnprof.trace.report.derivation import Derivation
from attnprof.trace.request.lookup import target_of
from attnprof.trace.solve.derive import derived

DECODERS = (
    "Llama", "Mistral", "Qwen2", "Qwen3", "Phi", "Phi3", "GPT2", "GPTNeo", "GPTNeoX", "GPTJ",
    "OPT", "Bloom", "Falcon", "Gemma", "Gemma2", "Granite", "Glm", "Glm4", "Olmo", "Olmo2",
    "Cohere", "Cohere2", "StableLm", "Starcoder2", "CodeGen", "Mpt", "Persimmon", "Nemotron",
    "Helium", "BioGpt", "XGLM", "SmolLM3", "Arcee", "Apertus", "GPTBigCode", "CTRL", "Mixtral",
    "OpenAIGPT",
)  # fmt: skip
ENCODERS = (
    "Bert", "Roberta", "DistilBert", "Electra", "Albert", "MPNet", "Deberta", "DebertaV2",
    "Camembert", "XLMRoberta", "RoFormer", "ConvBert", "SqueezeBert", "MegatronBert", "FNet",
    "Ernie", "ModernBert", "Nystromformer", "Yoso",
)  # fmt: skip
#: What a configuration is told, under the names that it knows.
TINY = {
    "vocab_size": 64, "hidden_size": 32, "embedding_size": 32, "d_model": 32, "n_embd": 32,
    "dim": 32, "word_embed_proj_dim": 32, "intermediate_size": 64, "ffn_dim": 64, "n_inner": 64,
    "hidden_dim": 64, "d_ff": 64, "dff": 64, "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2,
    "num_layers": 2, "num_attention_heads": 4, "attention_heads": 4, "n_head": 4, "n_heads": 4,
    "num_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 1024,
    "n_positions": 1024, "n_ctx": 1024, "max_seq_len": 1024, "rotary_dim": 4, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "num_local_experts": 4,
}  # fmt: skip
#: What single configurations need besides.
OWN: dict[str, dict[str, Any]] = {
    "GPTNeo": {"attention_types": [[["global", "local"], 1]], "window_size": 16},
    "Mistral": {"sliding_window": None},
    "Phi3": {"original_max_position_embeddings": 1024},
    "Gemma2": {"query_pre_attn_scalar": 8},
}
PACKAGES, PHASES = ("torch", "transformers"), ("forward", "train")
#: Shapes for each class and phase, and the longest ones.
SHAPES, MOST_B, MOST_N = 12, 6, 640
#: Python numbers that torch wraps as tensors while it runs, 4 or 8 bytes each.
SCALARS = 128


@dataclass(frozen=True)
class Row:
    """One phase of one class: what was derived, and how many of the real runs it gave."""

    model: str
    kind: str
    phase: str
    method: str
    domain: str
    shapes: int
    products_right: int
    peaks: str
    peaks_right: int
    worst_peak: float
    derive_s: float
    notes: str
    refused: str


def cases() -> dict[str, str]:
    """Return the kind of each class, by name."""
    return {**dict.fromkeys(DECODERS, "decoder"), **dict.fromkeys(ENCODERS, "encoder")}


def rows(model: str, kind: str) -> Iterator[Row]:
    """Yield both phases of a class."""
    for phase in PHASES:
        yield _row(model, kind, phase)


def _row(model: str, kind: str, phase: str) -> Row:
    def build() -> Any:
        return build_model(model)

    start = time.perf_counter()
    try:
        target = target_of(build, name=model, inputs=["input_ids: B, N int64"])
        derivation = derived(target, (phase,), {})
    except AttnprofError as error:
        seconds = time.perf_counter() - start
        return Row(model, kind, phase, "", "", 0, 0, "", 0, 0.0, round(seconds, 1), "", str(error))
    seconds = time.perf_counter() - start
    forms = derivation.phases[phase]
    runs = [_compared(build(), derivation, phase, sizes) for sizes in _shapes(derivation, phase)]
    bound = forms.bound("peak_bytes")
    if forms.formulas["peak_bytes"].expression is None:
        bound = "no formula"
    right = sum(peak <= SCALARS and (bound != "exact" or peak >= -SCALARS) for _, peak in runs)
    return Row(
        model, kind, phase, forms.method, "; ".join(forms.domain), len(runs),
        sum(products for products, _ in runs), bound, right,
        max((abs(peak) for _, peak in runs), default=0), round(seconds, 1),
        "; ".join(forms.notes), "",
    )  # fmt: skip


def build_model(model: str) -> Any:
    """A model of a tiny configuration."""
    kind = getattr(transformers, f"{model}Config")
    known = kind()
    tiny = {name: value for name, value in TINY.items() if is_settable(known, name)}
    config = kind(**{**tiny, **OWN.get(model, {})})
    return getattr(transformers, f"{model}Model")(config)


def is_settable(config: Any, name: str) -> bool:
    """Return whether a configuration takes a value under a name."""
    return hasattr(config, name) and not isinstance(getattr(type(config), name, None), property)


def _shapes(derivation: Derivation, phase: str) -> list[dict[str, int]]:
    """Random shapes of the domain; lengths evenly by their logarithm."""
    chance = random.Random(derivation.name)  # noqa: S311 - no secret
    shapes: list[dict[str, int]] = []
    for _ in range(4000):
        length = round(2 * (MOST_N / 2) ** chance.random())
        shape = {"B": chance.randint(1, MOST_B), "N": length}
        if derivation.phases[phase].holds(shape) and shape not in shapes:
            shapes.append(shape)
        if len(shapes) == SHAPES:
            break
    return shapes


def _compared(
    module: Any, derivation: Derivation, phase: str, sizes: dict[str, int]
) -> tuple[bool, float]:
    """Whether the products are those that ran, and how far the peak is off, in bytes.

    A peak without a formula is compared as a run on fake tensors has it.
    """
    ids = torch.randint(3, 64, (sizes["B"], sizes["N"]))
    subject = subject_of(module, (ids,), {}, phase)
    peak = measure_peak(subject, "cpu", torch).bytes
    subject.reset()
    with FlopCounterMode(display=False, custom_mapping=OWN_RULES) as counter:
        subject.call()
    products = derivation.at("matmul_flops", phase, **sizes) == counter.get_total_flops()
    return products, derivation.at("peak_bytes", phase, **sizes) - peak


def _pairs(query: Any, key: Any, causal: bool) -> int:
    b, h, n, _ = query
    m = key[-2]
    short = min(n, m)
    return b * h * ((short * (short + 1)) // 2 + max(n - m, 0) * m if causal else n * m)


def _fused(query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> int:
    causal = named.get("is_causal", rest[1] if len(rest) > 1 else False)
    return 2 * _pairs(query, key, causal) * (query[-1] + value[-1])


def _fused_backward(
    _grad: Any, query: Any, key: Any, value: Any, _out: Any, _sums: Any, _drop: Any, causal: bool,
    *_rest: Any, **_named: Any,
) -> int:  # fmt: skip
    """Scores again, and two products for each of the two forward ones."""
    return 2 * _pairs(query, key, causal) * (3 * query[-1] + 2 * value[-1])


def _convolved_backward(grad: Any, x: Any, weight: Any, *settings: Any, **_named: Any) -> int:
    """For each gradient that is asked for, every tap of every result once."""
    transposed, wanted = settings[4], settings[7]
    taps = math.prod(x if transposed else grad) * math.prod(weight[1:])
    return 2 * taps * sum(wanted[:2])


def _grouped(a: Any, b: Any, *_rest: Any, **_named: Any) -> int:
    """A row, or a column, is in one group."""
    return 2 * (math.prod(b) * a[-2] if len(b) < len(a) else math.prod(a) * b[-1])


_ATEN = torch.ops.aten
#: Torch's counter does not know products of groups of rows, nor the CPU's fused attention, where
#: causal weights are a triangle; the gradient of a convolution's kernel it counts once a group too
#: often.
OWN_RULES = {
    _ATEN._scaled_dot_product_flash_attention_for_cpu: _fused,  # noqa: SLF001
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: _fused_backward,  # noqa: SLF001
    _ATEN.convolution_backward: _convolved_backward,
    _ATEN._grouped_mm: _grouped,  # noqa: SLF001
}


def page(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# Models of transformers: derived, and run for real"
    yield (
        "Tiny configurations with random weights. "
        f"Each phase is compared at {SHAPES} random shapes of its stated domain (batch up to "
        f"{MOST_B}, tokens up to {MOST_N}): FLOPs of products with torch's `FlopCounterMode`, the "
        f"peak with the CPU allocator's own account, equal but for {SCALARS} bytes of Python "
        'numbers that torch wraps as tensors; where it is told as "at least", not above it. '
        "Torch's counter has rules of the script's own for the CPU's fused attention and products "
        "of groups of rows, which it counts as 0, and for the backward pass of convolutions in "
        "groups, whose kernel's gradient it counts once a group too often."
    )
    yield ""
    for kind in ("decoder", "encoder"):
        mine = [row for row in rows if row.kind == kind]
        done = [row for row in mine if not row.refused]
        classes = {row.model for row in done}
        shapes = sum(row.shapes for row in done)
        yield (
            f"- {kind}s: {len(classes)} classes derived; at {shapes} shapes, "
            f"{shapes - sum(row.products_right for row in done)} wrong products and "
            f"{shapes - sum(row.peaks_right for row in done)} wrong peaks; "
            f"{len(mine) - len(done)} of {len(mine)} phases refused"
        )
    yield ""
    yield from table(
        "class | phase | method | >shapes | >products equal | peak told | >peaks right "
        "| >worst, bytes | >s",
        (
            (f"{row.model}Model", row.phase, row.method, row.shapes, row.products_right, row.peaks,
             row.peaks_right, f"{row.worst_peak:g}", f"{row.derive_s:g}")
            for row in rows if not row.refused
        ),
    )  # fmt: skip
    refused = [row for row in rows if row.refused]
    if refused:
        yield ""
        yield "Refused, with the reason that was given:"
        yield ""
    for row in refused:
        yield f"- {row.model}Model, {row.phase}: {row.refused}"
