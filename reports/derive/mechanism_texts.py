"""Public texts of recent mechanisms, derived, and run for real at other sizes.

fla's naive functions and transformers' layers, as ``speed/public_texts.py`` times them; both sides
of a branch on the length, where there is one; forward, and forward and backward. Into an
environment that has attnprof and torch::

    pip install --no-deps fla-core==0.6.0 einops==0.8.2 transformers==5.23
    python reports/run.py derive/mechanism_texts
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from derive.foreign import Row, row_of_thing, version
from rows import table

__all__ = ["Row"]
PACKAGES = ("torch", "transformers", "fla-core")
LIMIT_S = 600
#: The end of a case's name that is of a forward and a backward pass.
TRAINING = ", training"
#: Letters of inputs, and their shapes.
HEADS = dict.fromkeys("qkv", "B, N, h, d")
FIRST = dict.fromkeys("qkv", "B, h, N, d")
TOKENS, CHANNELS = {"g": "B, N, h"}, {"g": "B, N, h, d"}
BETA = {"beta": "B, N, h"}
INDEXER = {"q_idx": "B, N, i, e", "k_idx": "B, N, e", "w_idx": "B, N, i"}
SIZES = {"B": 2, "h": 2, "d": 16}
#: Functions of fla, their inputs, arguments, and sizes that are asked for.
FUNCTIONS: dict[str, tuple[dict[str, str], dict[str, int], dict[str, int]]] = {
    "kda:naive_chunk_kda": ({**HEADS, **CHANNELS, **BETA}, {}, {}),
    "kda:naive_recurrent_kda": ({**HEADS, **CHANNELS, **BETA}, {}, {}),
    "kda:naive_recurrent_kda at 200 tokens": (
        {**HEADS, **CHANNELS, **BETA}, {}, {**SIZES, "N": 200}),
    "gated_delta_rule:naive_chunk_gated_delta_rule": ({**HEADS, **TOKENS, **BETA}, {}, {}),
    "gated_delta_rule:naive_recurrent_gated_delta_rule": ({**HEADS, **TOKENS, **BETA}, {}, {}),
    "delta_rule:delta_rule_chunkwise": ({**FIRST, "beta": "B, h, N"}, {}, {}),
    "simple_gla:naive_chunk_simple_gla": ({**HEADS, **TOKENS}, {}, {}),
    "gla:naive_recurrent_gla": ({**HEADS, "gk": "B, N, h, d"}, {}, {}),
    "retention:naive_retention": (FIRST, {}, {}),
    "dsa:naive_dsa, 512 of 300 tokens": (
        {**HEADS, **INDEXER}, {"topk": 512}, {**SIZES, "N": 300, "i": 4, "e": 8}),
    "dsa:naive_dsa, 512 of 1024 tokens": (
        {**HEADS, **INDEXER}, {"topk": 512}, {**SIZES, "N": 1024, "i": 4, "e": 8}),
}  # fmt: skip
#: Layers of transformers, and a length that is asked for. Indexers of layers with lengths beyond
#: what they pick have few heads, so that their scores fit a memory.
FEW_HEADS = {"config.index_n_heads": 4}
LAYERS = {
    "DeepseekV3Attention": 0, "DeepseekV32Attention": 0, "DeepseekV32Attention beyond": 4096,
    "GlmMoeDsaAttention": 0, "GlmMoeDsaAttention beyond": 4096, "GptOssAttention": 0,
    "DiffLlamaAttention": 0, "Qwen3NextGatedDeltaNet": 0, "KimiLinearDeltaAttention": 0,
    "MiniMaxLightningAttention": 0, "Mamba2Mixer": 0,
}  # fmt: skip


def name_of(row: Row) -> str:
    """Return the case of a row."""
    return row.target


def cases() -> dict[str, Any]:
    """Return what is derived, by name."""
    functions = {f"fla.{name}": case for name, case in FUNCTIONS.items()}
    texts = {**functions, **{f"transformers:{name}": size for name, size in LAYERS.items()}}
    return {f"{name}{more}": case for more in ("", TRAINING) for name, case in texts.items()}


def phase_of(name: str) -> str:
    """Return the phase of a case."""
    return "train" if name.endswith(TRAINING) else "forward"


def rows(name: str, case: Any) -> Iterator[Row]:
    """Yield the row of a text."""
    phase, thing = phase_of(name), re.split("[ ,]", name)[0]
    if isinstance(case, int):
        long = ({"N": case}, FEW_HEADS) if case else ({}, None)
        yield row_of_thing(name, thing, phase, None, long[1], long[0])
        return
    from speed.public_text_cases import naive

    inputs, arguments, at = case
    yield row_of_thing(
        name, naive(thing.removeprefix("fla.")), phase, inputs, arguments or None, at
    )


def stopped(name: str) -> list[Row]:
    """Return the row of a case that took too long."""
    return [Row(name, version(name), phase_of(name), refused=f"stopped after {LIMIT_S} s")]


def page(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the page."""
    done = [row for row in rows if not row.refused]
    yield "# Public texts of recent mechanisms, derived"
    yield (
        "*Products*: at how many of two further shapes the FLOPs of products are those of torch's "
        "`FlopCounterMode`; *peak* against the CPU allocator's at one. *s*: processor seconds, "
        "imports and these runs' own included."
    )
    yield ""
    yield (
        f"{len(done)} of {len(rows)} have formulas; products equal at "
        f"{sum(int(row.products[0]) for row in done)} of "
        f"{sum(int(row.products[-1]) for row in done)} shapes."
    )
    yield ""
    yield from table(
        "text | method | FLOPs | domain | >s | products | peak",
        (
            (f"`{row.target}`", row.refused[:200] or row.method, f"`{row.flops}`", row.domain,
             f"{row.seconds:g}", row.products, row.peak)
            for row in rows
        ),
    )  # fmt: skip
