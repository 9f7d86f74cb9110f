"""Model classes of transformers, derived and run for real: writes ``transformers_models.md``.

Each class is built from a tiny configuration with random weights; nothing is downloaded. Its cost
is derived over batch and tokens; then, at random shapes of the domain that the derivation states,
the real module runs on real tensors: products are counted by torch's ``FlopCounterMode``, the peak
is the CPU allocator's, from torch's profiler. Neither goes through attnprof's own recorder::

    OMP_NUM_THREADS=1 python reports/transformers_models.py             # everything: half an hour
    OMP_NUM_THREADS=1 python reports/transformers_models.py Llama Bert  # these again
"""

from __future__ import annotations

import math
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from row_files import earlier, save

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

from attnprof.errors import AttnprofError
from attnprof.measure.memory import measure_peak
from attnprof.measure.subject import Subject
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
PHASES = ("forward", "train")
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


def rows(names: list[str], before: list[Row]) -> Iterator[Row]:
    """Every class in both phases; of names only, others as they were."""
    for kind, models in (("decoder", DECODERS), ("encoder", ENCODERS)):
        for model in models:
            told = [row for row in before if row.model == model]
            if told and names and model not in names:
                yield from told
                continue
            if names and model not in names:
                continue
            for phase in PHASES:
                row = _row(model, kind, phase)
                print(row, file=sys.stderr)  # noqa: T201 - progress
                yield row


def _row(model: str, kind: str, phase: str) -> Row:
    def build() -> Any:
        return made(model)

    start = time.perf_counter()
    try:
        target = target_of(build, name=model, inputs=["input_ids: B, N int64"])
        found = derived(target, (phase,), {})
    except AttnprofError as error:
        told = time.perf_counter() - start
        return Row(model, kind, phase, "", "", 0, 0, "", 0, 0.0, round(told, 1), "", str(error))
    seconds = time.perf_counter() - start
    forms = found.phases[phase]
    runs = [_compared(build(), found, phase, sizes) for sizes in _shapes(found, phase)]
    told = forms.bound("peak_bytes")
    if forms.formulas["peak_bytes"].expression is None:
        told = "no formula"
    right = sum(peak <= SCALARS and (told != "exact" or peak >= -SCALARS) for _, peak in runs)
    return Row(
        model, kind, phase, forms.method, "; ".join(forms.domain), len(runs),
        sum(products for products, _ in runs), told, right,
        max((abs(peak) for _, peak in runs), default=0), round(seconds, 1),
        "; ".join(forms.notes), "",
    )  # fmt: skip


def made(model: str) -> Any:
    """A model of a tiny configuration."""
    kind = getattr(transformers, f"{model}Config")
    known = kind()
    tiny = {name: value for name, value in TINY.items() if _settable(known, name)}
    config = kind(**{**tiny, **OWN.get(model, {})})
    return getattr(transformers, f"{model}Model")(config)


def _settable(config: Any, name: str) -> bool:
    return hasattr(config, name) and not isinstance(getattr(type(config), name, None), property)


def _shapes(found: Derivation, phase: str) -> list[dict[str, int]]:
    """Random shapes of the domain; lengths evenly by their logarithm."""
    chance = random.Random(found.name)  # noqa: S311 - no secret
    shapes: list[dict[str, int]] = []
    for _ in range(4000):
        length = round(2 * (MOST_N / 2) ** chance.random())
        shape = {"B": chance.randint(1, MOST_B), "N": length}
        if found.phases[phase].holds(shape) and shape not in shapes:
            shapes.append(shape)
        if len(shapes) == SHAPES:
            break
    return shapes


def _compared(
    module: Any, found: Derivation, phase: str, sizes: dict[str, int]
) -> tuple[bool, float]:
    """Whether the products are those that ran, and how far the peak is off, in bytes.

    A peak without a formula is compared as a run on fake tensors has it.
    """
    ids = torch.randint(3, 64, (sizes["B"], sizes["N"]))
    subject = _subject(module, ids, phase)
    peak = measure_peak(subject, "cpu", torch).bytes
    subject.reset()
    with FlopCounterMode(display=False, custom_mapping=OWN_RULES) as counter:
        subject.call()
    products = found.at("matmul_flops", phase, **sizes) == counter.get_total_flops()
    return products, found.at("peak_bytes", phase, **sizes) - peak


def _subject(module: Any, ids: torch.Tensor, phase: str) -> Subject:
    module.train(phase != "forward")

    def forward() -> object:
        with torch.no_grad():
            return module(ids)

    if phase == "forward":
        return Subject(module, _nothing, _nothing, forward)
    with torch.no_grad():
        ones = torch.ones_like(module(ids)[0])

    def clear() -> None:
        for leaf in module.parameters():
            leaf.grad = None

    def train() -> None:
        result = module(ids)  # held for as long as the backward pass takes, as in the derivation
        result[0].backward(ones)

    return Subject(module, clear, clear, train)


def _nothing() -> None:
    """Nothing to prepare."""


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
    transposed, asked = settings[4], settings[7]
    taps = math.prod(x if transposed else grad) * math.prod(weight[1:])
    return 2 * taps * sum(asked[:2])


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


def _page(found: list[Row]) -> Iterator[str]:
    yield "# Models of transformers: derived, and run for real"
    yield ""
    yield "Written by `python reports/transformers_models.py`; all columns in the CSV beside it."
    yield (
        f"torch {torch.__version__}, transformers {transformers.__version__}, "
        f"{torch.get_num_threads()} thread. Tiny configurations with random weights."
    )
    yield (
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
        mine = [row for row in found if row.kind == kind]
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
    yield (
        "| class | phase | method | shapes | products equal | peak told | peaks right "
        "| worst, bytes | s |"
    )
    yield "|---|---|---|--:|--:|---|--:|--:|--:|"
    for row in found:
        if not row.refused:
            yield (
                f"| {row.model}Model | {row.phase} | {row.method} | {row.shapes} | "
                f"{row.products_right} | {row.peaks} | {row.peaks_right} | {row.worst_peak:g} | "
                f"{row.derive_s:g} |"
            )
    refused = [row for row in found if row.refused]
    if refused:
        yield ""
        yield "Refused, with the reason that was given:"
        yield ""
    for row in refused:
        yield f"- {row.model}Model, {row.phase}: {row.refused}"


def main() -> None:
    """Write the table and the page."""
    table = Path(__file__).with_suffix(".csv")
    before = earlier(table, Row)
    found: list[Row] = []
    for row in rows(sys.argv[1:], before):
        found.append(row)
        rest = [old for old in before if (old.model, old.phase) not in _seen(found)]
        save(table, Row, found + rest)  # a run that is broken off keeps what it had
    page = "\n".join(_page(found))
    table.with_suffix(".md").write_text(f"{page}\n", encoding="utf-8")


def _seen(found: list[Row]) -> set[tuple[str, str]]:
    return {(row.model, row.phase) for row in found}


if __name__ == "__main__":
    main()
