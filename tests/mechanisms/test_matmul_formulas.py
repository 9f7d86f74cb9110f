"""FLOPs of products as integers: the known formula, torch's own counter on meta tensors, and ours.

The formulas are of all heads beside the layer's linear maps. Torch's counter sees matrix products
alone; what it overlooks of these layers, the solve of a chunk's triangular system and the filters
of short convolutions, is counted by ours as multiplications and additions.
"""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import attnprof
from attnprof import Workload, registry
from attnprof.blocks.cache import positioned

B, H, D, DV, C = 2, 4, 16, 24, 32
TOP, HEADS, WIDTH = 20, 3, 6
LATENT = {"kv_rank": 24, "rope_dim": 4, "nope_dim": 10, "value_dim": 12}
INDEX = {"top": TOP, "index_heads": HEADS, "index_dim": WIDTH}
KEY, VALUE, ABSORBED = 10 + 4, 12, 2 * 24 + 4
AGAIN = 24 * (10 + 12)  # a cached row's keys and values, of a head


def prompt(pair, token=0):
    """``pair`` products of every row, key and head, ``token`` of every row and head."""
    return lambda n: 2 * B * H * (n * n * pair + n * token)


def step(pair, token=0):
    return lambda n: 2 * B * H * (n * pair + token)


def indexer(of):
    return lambda n: of(n) + 2 * B * n * n * HEADS * (WIDTH + 1)


def indexed(of):
    return lambda n: of(n) + 2 * B * n * HEADS * (WIDTH + 1)


def windows(n):
    """Whole windows of 32 tokens, one every 16."""
    return (n - 32) // 16 + 1


def blocks(n):
    """Tokens of three blocks of 64, of fewer where there are no three."""
    return min(3, -(-n // 64)) * 64


def banded(n):
    """Products of 64 rows at once with all keys that one of them sees of its latest 48."""
    seen = sum(min(64, n - i) * (min(64, n - i) + min(i, 47)) for i in range(0, n, 64))
    return 2 * B * H * seen * (D + DV)


DECAY = C * (D + DV) + 2 * D * DV, 2 * D * DV
DELTA = C * (3 * D + 2 * DV) + 3 * D * DV, 3 * D * DV
SOLVED = C * (2 * D + DV) + 3 * D * DV
#: Name and parameters, and products of a prompt and of a step beside the linear maps.
FORMULAS = {
    "gqa num_kv_heads=2": (prompt(2 * D), step(2 * D)),
    "gqa num_kv_heads=1": (prompt(2 * D), step(2 * D)),
    "gqa impl=written": (prompt(2 * D), step(2 * D)),
    "gqa gate=elementwise": (prompt(2 * D), step(2 * D)),
    "gqa gate=headwise": (prompt(2 * D), step(2 * D)),
    "mla impl=expanded": (prompt(KEY + VALUE, AGAIN), step(KEY + VALUE, AGAIN)),
    "mla impl=absorbed": (prompt(ABSORBED, AGAIN), step(ABSORBED, AGAIN)),
    "mla impl=reexpanded": (prompt(KEY + VALUE, AGAIN), step(KEY + VALUE + AGAIN)),
    "sliding-window impl=dense-mask": (prompt(D + DV), lambda n: step(D + DV)(min(n, 128))),
    "differential impl=subtracted": (prompt(D + DV), step(D + DV)),
    "differential impl=separate": (prompt(D + 2 * DV), step(D + 2 * DV)),
    "nsa impl=dense-mask": (
        lambda n: prompt(0, (D + DV) * windows(n))(n) + prompt(2 * (D + DV))(n),
        lambda n: step(D + DV, (D + DV) * (windows(n) + min(n, 512)))(n),
    ),
    "nsa impl=gathered top=3 window=48": (
        lambda n: prompt(0, (D + DV) * (windows(n) + blocks(n)))(n) + banded(n),
        lambda n: step(0, (D + DV) * (windows(n) + blocks(n) + 48))(n),
    ),
    "topk impl=gathered": (
        indexer(prompt(0, TOP * 2 * D)), indexed(step(0, TOP * 2 * D)),
    ),
    "topk impl=dense-mask": (indexer(prompt(2 * D)), indexed(step(2 * D))),
    "dsa impl=gathered": (
        indexer(prompt(0, TOP * ABSORBED + AGAIN)), indexed(step(0, TOP * ABSORBED + AGAIN)),
    ),
    "dsa impl=dense-mask": (indexer(prompt(ABSORBED, AGAIN)), indexed(step(ABSORBED, AGAIN))),
    **{
        f"{name} chunk={C}": (prompt(0, DECAY[0]), step(0, DECAY[1]))
        for name in ("retnet", "lightning", "gla", "mamba2")
    },
    **{
        f"{name} impl={'quadratic' if name == 'mamba2' else 'parallel'}":
            (prompt(D + DV), step(0, DECAY[1]))
        for name in ("retnet", "lightning", "gla", "mamba2")
    },
    **{
        f"{name} impl=recurrent": (prompt(0, of[1]), step(0, of[1]))
        for name, of in (
            *((name, DECAY) for name in ("retnet", "lightning", "gla", "mamba2")),
            ("gated-deltanet", DELTA), ("kimi-delta", DELTA),
        )
    },
    **{
        f"{name} impl=inverse chunk={C}": (prompt(0, DELTA[0]), step(0, DELTA[1]))
        for name in ("gated-deltanet", "gated-deltanet gate=none", "kimi-delta")
    },
    **{
        f"{name} impl=chunkwise chunk={C}": (prompt(0, SOLVED), step(0, DELTA[1]))
        for name in ("gated-deltanet", "kimi-delta")
    },
}  # fmt: skip
ONE_WIDTH = ("gqa", "mla", "topk", "dsa")


def built(text):
    """The layer on meta, its parameters, and its workload's sizes beside the length."""
    name, *settings = text.split()
    params = dict(setting.split("=") for setting in settings)
    params |= LATENT if name in ("mla", "dsa") else {}
    params |= INDEX if name in ("topk", "dsa") else {}
    sizes = {} if name in ONE_WIDTH else {"value_head_dim": DV}
    spec = registry.get(name, **params)
    kv = {"num_kv_heads": spec.num_kv_heads} if getattr(spec, "num_kv_heads", None) else {}
    with torch.device("meta"):
        layer = attnprof.build(name, H * D, H, **{**params, **sizes, **kv})
    return layer, spec, {**sizes, **kv}


def linear(layer, tokens):
    return 2 * tokens * sum(
        x.weight.numel() for x in layer.modules() if isinstance(x, torch.nn.Linear)
    )  # fmt: skip


@pytest.mark.parametrize("n", [64, 96])
@pytest.mark.parametrize("text", FORMULAS)
def test_products_of_a_prompt(text, n):
    layer, spec, sizes = built(text)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        layer(torch.empty(B, n, H * D, device="meta"), causal=True)
    whole = FORMULAS[text][0](n) + linear(layer, B * n)
    work = Workload(n, H, D, B, causal=True, **sizes)
    ours = spec.cost(work).matmul_flops
    if text.startswith("gqa") and spec.impl == "fused":  # ours are those of the mask's pairs
        ours += 2 * B * H * 2 * D * n * (n - 1) // 2
    assert (ours, counter.get_total_flops()) == (whole, whole)


@pytest.mark.parametrize("n", [64, 200])
@pytest.mark.parametrize("text", FORMULAS)
def test_products_of_a_step(text, n):
    layer, spec, sizes = built(text)
    with torch.device("meta"), torch.no_grad():
        state = positioned(layer, layer.init_state(B), n - 1, lambda: ())
        with FlopCounterMode(display=False) as counter:
            layer.step(torch.empty(B, 1, H * D), state)
    whole = FORMULAS[text][1](n) + linear(layer, B)
    ours = spec.cost(Workload(n, H, D, B, phase="decode", **sizes)).matmul_flops
    assert (ours, counter.get_total_flops()) == (whole, whole)


def test_a_hybrids_step_from_a_state_filled_at_once_has_the_products_of_its_layers():
    def products(text):
        with torch.device("meta"), torch.no_grad():
            layer = attnprof.build(text, H * D, H)
            state = positioned(layer, layer.init_state(B), 199, lambda: ())  # no rows: no steps
            with FlopCounterMode(display=False) as counter:
                layer.step(torch.empty(B, 1, H * D), state)
        return counter.get_total_flops()

    each = 3 * products("gated-deltanet") + products("gqa")
    assert products("gated-deltanet@3+gqa@1") == each


def test_what_torchs_counter_overlooks_is_counted_and_named():
    work = Workload(C, H, D, B, value_head_dim=DV)
    table = attnprof.cost("gated-deltanet", work, chunk=C)
    (solve,) = (s.cost for s in table if "triangular solve" in s.name)
    assert (solve.multiplications, solve.matmul_flops) == (B * H * DV * C * (C - 1) // 2, 0)
    assert any("triangular system" in note for note in table.notes)
    layer = attnprof.build("gated-deltanet", H * D, H, value_head_dim=DV)
    bare = attnprof.build("gated-deltanet", H * D, H, value_head_dim=DV, conv=None)
    filters = sum(w.numel() for name, w in layer.named_parameters() if "taps" in name)
    without = attnprof.cost("gated-deltanet", work, chunk=C, conv=None)
    assert table.matmul_flops == without.matmul_flops
    assert table.parameters - without.parameters == filters
    assert sum(p.numel() for p in bare.parameters()) == without.parameters
