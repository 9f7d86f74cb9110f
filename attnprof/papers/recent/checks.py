"""Checks of claims of recent papers (`recent`): caches, decoding steps, sparsity.

Each number comes from the closed forms of the layers at the sizes that the paper names.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from attnprof import registry
from attnprof.blocks.picked import tokens_of_blocks
from attnprof.closed_form.quantities import step_bytes
from attnprof.papers.checks import Facts, Ours
from attnprof.workload import Workload

#: Sizes of DeepSeek's latent attention; its norms are no products.
LATENT = {"kv_rank": 512, "q_rank": 1536}
NORMS = 512 + 1536


def decoding(seq_len: int, heads: int, head_dim: int = 128, **more: Any) -> Workload:
    """Return the workload of a decoding step."""
    return Workload(seq_len, heads, head_dim, phase="decode", **more)


def entries_a_token(layers: str, work: Workload, **params: Any) -> int:
    """Return the entries by which a cache of layers grows with a token."""
    spec = registry.get(layers, **params)
    longer = work.with_(seq_len=work.seq_len + 1)
    return int(spec.state_entries(longer) - spec.state_entries(work))


# -- DeepSeek-V2 ------------------------------------------------------------------------------
V2 = entries_a_token("mla@60", decoding(1, 128, width=5120), **LATENT)
V1 = entries_a_token("gqa@95", decoding(1, 64, num_kv_heads=8))  # DeepSeek 67B


# -- Step-3's Tables 2 and 3 --------------------------------------------------------------------
def step_of_layers(layers: str, work: Workload, **params: Any) -> dict[str, float]:
    """Return GB of an 8-bit cache, GFLOPs of linear maps and of attention; three digits."""
    spec = registry.get(layers, **params)
    table = spec.cost(work)
    norms = 61 * NORMS if layers.startswith("mla") else 0
    linear = 2 * (table.parameters - norms)
    values = {
        "bytes": table.state_entries, "linear": linear, "attention": table.matmul_flops - linear,
    }  # fmt: skip
    return {name: float(f"{value / 1e9:.3g}") for name, value in values.items()}


#: Layers of the models of the tables, a decoding step's sizes, and parameters of the layers.
MODELS: dict[str, tuple[str, Workload, dict[str, int]]] = {
    "DSv3": ("mla@61", decoding(1, 128, width=7168), LATENT),
    "Kimi K2": ("mla@61", decoding(1, 64, width=7168), LATENT),
    "Qwen3 MoE": ("gqa@94", decoding(1, 64, num_kv_heads=4, width=4096), {}),
    "Qwen3 32B": ("gqa@64", decoding(1, 64, num_kv_heads=8), {}),
    "Llama 4": ("gqa@12+sliding-window@window=8192@36", decoding(1, 40, num_kv_heads=8), {}),
    "Step-3": ("gqa@61", decoding(1, 64, 256, num_kv_heads=1), {}),
}
OTHER_ROWS = (
    "DSv3, cache, 8K", "DSv3, linear", "Kimi K2, linear", "Qwen3 MoE, cache, 32K",
    "Qwen3 MoE, attention, 8K", "Qwen3 MoE, linear", "Qwen3 32B, cache, 8K",
    "Llama 4, attention, 32K", "Step-3, cache, 32K", "Step-3, attention, 8K",
)  # fmt: skip


def numbers(rows: Sequence[str]) -> dict[str, float]:
    """Return numbers of the tables by model, quantity (attention by default) and length (8K)."""
    values = {}
    for row in rows:
        model, *more = row.split(", ")
        layers, work, params = MODELS[model]
        longer = work.with_(seq_len=32768 if "32K" in more else 8192)
        quantity = {"cache": "bytes", "linear": "linear"}.get(more[0], "attention")
        values[row] = step_of_layers(layers, longer, **params)[quantity]
    return values


# -- sparse attention ---------------------------------------------------------------------------
def loaded_tokens() -> dict[str, list[float]]:
    """Return tokens that a decoding step of NSA loads, and how many times fewer they are."""
    nsa, full = registry.get("nsa"), registry.get("standard")
    lengths = (8192, 16384, 32768, 65536)
    steps = [decoding(n, 4, 192, value_head_dim=128) for n in lengths]
    ratios = [step_bytes(full, work, "core") / step_bytes(nsa, work, "core") for work in steps]
    return {"tokens": [n / x for n, x in zip(lengths, ratios, strict=True)], "speedup": ratios}


def fewer_operations(seq_len: int, block: int, top: int) -> float:
    """Return how many times fewer operations block attention has than causal attention."""
    work = Workload(seq_len, 32, 128, causal=True)
    both = registry.get("sdpa"), registry.get("moba", block=block, top=top)
    full, blocks = (one.definition(work, "core").operations for one in both)
    return float(full / blocks)


# -- Kimi Linear --------------------------------------------------------------------------------
KIMI = decoding(2**20, 32, width=2304, batch_size=4096, dtype="bfloat16")
STACKS = "kimi-delta@20+mla@7", "mla@27"


def kimi_cache() -> float:
    """Return the percentage that Kimi Linear saves of the cache's growth by a token."""
    hybrid, full = (entries_a_token(layers, KIMI, kv_rank=512) for layers in STACKS)
    return 100 * (1 - hybrid / full)


def kimi_bytes() -> float:
    """Return how many times fewer bytes a step of Kimi Linear moves than full attention."""
    hybrid, full = (step_bytes(registry.get(x, kv_rank=512), KIMI, "layer") for x in STACKS)
    return float(full / hybrid)


def _layer_bound(*_: Any) -> Mapping[str, float]:
    return {"layer": fewer_operations(2**20, 4096, 12)}


OURS: Ours = {
    "recent-V2-CACHE": lambda: 100 * (1 - V2 * 6 / (V1 * 16)),
    "recent-V2-GROUPS": lambda: V2 / 60 / (2 * 128),
    "recent-STEP3-LATENT": lambda: numbers(["DSv3, 8K", "DSv3, 32K", "Kimi K2, 32K"]),
    "recent-STEP3-OTHERS": lambda: numbers(OTHER_ROWS),
    "recent-NSA-T4": loaded_tokens,
    "recent-MOBA-SPARSITY": lambda: 100 * (1 - tokens_of_blocks(32768, 3, 512) / 32768),
    # of 32 layers 3 have full attention
    "recent-MOBA-1M": lambda: 32 / (29 / _layer_bound()["layer"] + 3),
    "recent-MOBA-10M": lambda: fewer_operations(10 * 2**20, 10 * 2**20 // 64, 3),
    "recent-KIMI-CACHE": kimi_cache,
    "recent-KIMI-STEP": kimi_bytes,
}
FACTS: Facts = {
    "recent-V2-CACHE": lambda *_: {"equal": 100 * (1 - V2 / V1)},
    "recent-STEP3-LATENT": lambda *_: {"percent": 100 * (2 * 576 / (576 + 512) - 1)},
    "recent-MOBA-1M": _layer_bound,
}
