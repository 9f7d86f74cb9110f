"""Checks of claims of recent papers (`recent`): caches, decoding steps, sparsity.

Each number comes from the closed forms of the layers at the sizes that the paper names.
"""

from collections.abc import Mapping
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


def deepseek(seq_len: int) -> dict[str, float]:
    """Return :func:`step_of_layers` of DeepSeek-V3."""
    return step_of_layers("mla@61", decoding(seq_len, 128, width=7168), **LATENT)


def kimi_k2(seq_len: int) -> dict[str, float]:
    """Return :func:`step_of_layers` of Kimi K2."""
    return step_of_layers("mla@61", decoding(seq_len, 64, width=7168), **LATENT)


def qwen(seq_len: int) -> dict[str, float]:
    """Return :func:`step_of_layers` of Qwen3 MoE."""
    return step_of_layers("gqa@94", decoding(seq_len, 64, num_kv_heads=4, width=4096))


def latent_products() -> dict[str, float]:
    """Return the GFLOPs of latent attention in a step, by model and length."""
    return {
        "DSv3, 8K": deepseek(8192)["attention"], "DSv3, 32K": deepseek(32768)["attention"],
        "Kimi K2, 32K": kimi_k2(32768)["attention"],
    }  # fmt: skip


def other_rows() -> dict[str, float]:
    """Return the other numbers of Step-3's tables, by model, quantity and length."""
    windows = "gqa@12+sliding-window@window=8192@36"
    llama = step_of_layers(windows, decoding(32768, 40, num_kv_heads=8))
    dense = step_of_layers("gqa@64", decoding(8192, 64, num_kv_heads=8))
    step_3 = [step_of_layers("gqa@61", decoding(n, 64, 256, num_kv_heads=1)) for n in (8192, 32768)]
    return {
        "DSv3, cache, 8K": deepseek(8192)["bytes"],
        "DSv3, linear": deepseek(8192)["linear"],
        "Kimi K2, linear": kimi_k2(8192)["linear"],
        "Qwen3 MoE, cache, 32K": qwen(32768)["bytes"],
        "Qwen3 MoE, attention, 8K": qwen(8192)["attention"],
        "Qwen3 MoE, linear": qwen(8192)["linear"],
        "Qwen3 32B, cache, 8K": dense["bytes"],
        "Llama 4, attention, 32K": llama["attention"],
        "Step-3, cache, 32K": step_3[1]["bytes"],
        "Step-3, attention, 8K": step_3[0]["attention"],
    }


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


def in_a_model(layer: float) -> float:
    """Return the ratio of 29 layers of block attention and 3 full ones to 32 full ones."""
    return 32 / (29 / layer + 3)


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
    "recent-STEP3-LATENT": latent_products,
    "recent-STEP3-OTHERS": other_rows,
    "recent-NSA-T4": loaded_tokens,
    "recent-MOBA-SPARSITY": lambda: 100 * (1 - tokens_of_blocks(32768, 3, 512) / 32768),
    "recent-MOBA-1M": lambda: in_a_model(_layer_bound()["layer"]),
    "recent-MOBA-10M": lambda: fewer_operations(10 * 2**20, 10 * 2**20 // 64, 3),
    "recent-KIMI-CACHE": kimi_cache,
    "recent-KIMI-STEP": kimi_bytes,
}
FACTS: Facts = {
    "recent-V2-CACHE": lambda *_: {"equal": 100 * (1 - V2 / V1)},
    "recent-STEP3-LATENT": lambda *_: {"percent": 100 * (2 * 576 / (576 + 512) - 1)},
    "recent-MOBA-1M": _layer_bound,
}
