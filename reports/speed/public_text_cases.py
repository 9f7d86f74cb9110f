"""What ``public_texts.py`` compares: recent mechanisms and the texts that their authors publish.

Layers of transformers without turns of queries and keys, where ours has none either; fla's naive
functions by the paths of their files, since the package itself imports kernels.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from speed.implementation_cases import BATCH, HEAD, HEADS, WIDTH, Case, Pair, layer, side, tokens

#: Tokens that sparse attention picks, and those of a window.
TOP, WINDOW = 256, 128
#: Most tokens of texts that loop over them.
LOOPED = 512
SIZES = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": HEADS}
ROPE = 32
LATENT = {"kv_rank": 256, "q_rank": 128, "rope_dim": ROPE, "nope_dim": HEAD, "value_dim": HEAD}
HF_LATENT = {
    "kv_lora_rank": 256, "q_lora_rank": 128, "qk_rope_head_dim": ROPE, "qk_nope_head_dim": HEAD,
    "v_head_dim": HEAD,
}  # fmt: skip
INDEX = {"index_heads": 8, "index_dim": 64}


def cases() -> list[Case]:
    """Return what is compared with what, at the same sizes."""
    hf, fla, layers = "transformers", "fla", "layer, attention"
    of_rule = partial(Case, target=1.0)
    return [
        of_rule("gqa", hf, f"{layers} sdpa", grouped("sdpa")),
        of_rule("gqa written", hf, f"{layers} eager", grouped("eager")),
        of_rule("mla", hf, f"{layers} eager", latent("eager")),
        of_rule("mla sdpa", hf, f"{layers} sdpa", latent("sdpa")),
        of_rule("sliding-window", hf, f"{layers} sdpa", windowed),
        of_rule("sliding-window sink", hf, f"{layers} eager", sinks),
        of_rule("gated-deltanet", fla, "core, naive chunks", rule(
            "gated_delta_rule:naive_chunk_gated_delta_rule", "q k v g beta", "token")),
        of_rule("gated-deltanet recurrent", fla, "core, naive recurrence", rule(
            "gated_delta_rule:naive_recurrent_gated_delta_rule", "q k v beta g", "token",
            form="recurrent"), longest=LOOPED),
        of_rule("gated-deltanet core", hf, "core, torch chunks", rule(
            "qwen3_next:torch_chunk_gated_delta_rule", "q k v g beta", "token")),
        of_rule("gated-deltanet layer", hf, "layer", qwen),
        of_rule("kimi-delta", fla, "core, naive chunks", rule(
            "kda:naive_chunk_kda", "q k v g beta", "channel")),
        of_rule("kimi-delta recurrent", fla, "core, naive recurrence", rule(
            "kda:naive_recurrent_kda", "q k v g beta", "channel", form="recurrent"),
            longest=LOOPED),
        of_rule("kimi-delta core", hf, "core, torch chunks", rule(
            "kimi_linear:chunk_kimi_delta_attention", "q k v g beta", "channel")),
        of_rule("kimi-delta layer", hf, "layer", kimi),
        of_rule("mamba2", hf, "layer", mamba),
        of_rule("mamba2 core", fla, "core, naive chunks of simple_gla", rule(
            "simple_gla:naive_chunk_simple_gla", "q k v g", "token")),
        of_rule("retnet", fla, "core, naive, parallel", retention),
        of_rule("lightning", hf, "layer", lightning),
        of_rule("gla", fla, "core, naive recurrence", rule(
            "gla:naive_recurrent_gla", "q k v g", "channel"), longest=LOOPED),
        of_rule("dsa", hf, f"{layers} eager", indexed("eager")),
        of_rule("dsa sdpa", hf, f"{layers} sdpa", indexed("sdpa")),
        of_rule("topk", fla, "core, naive", picked(gathered=True)),
        of_rule("topk dense-mask", fla, "core, naive", picked(gathered=False)),
        of_rule("differential", hf, f"{layers} eager", differential("eager")),
        of_rule("differential sdpa", hf, f"{layers} sdpa", differential("sdpa")),
    ]  # fmt: skip


# -- the texts ------------------------------------------------------------------------------
def naive(place: str) -> Any:
    """Return a function of fla, ``kda:naive_chunk_kda`` of ``fla/ops/kda/naive.py``."""
    folder, name = place.split(":")
    package = importlib.util.find_spec("fla")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("fla is not installed: see the head of speed/public_texts.py")
    path = Path(package.submodule_search_locations[0], "ops", folder, "naive.py")
    spec = importlib.util.spec_from_file_location(f"naive_{folder}", path)
    assert spec is not None and spec.loader is not None  # noqa: PT018 - a path of a file
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def modeling(name: str, *, still: bool = False) -> Any:
    """Return a module of transformers; ``still``: queries and keys are not turned in it."""
    source = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    if still:
        source.apply_rotary_pos_emb = lambda q, k, *_, **__: (q, k)
    return source


def started(module: Any) -> Any:
    """Return a module with weights that no result overflows by, in place of memory as it was."""
    import torch

    with torch.no_grad():
        for weight in module.parameters():
            weight.uniform_(-0.05, 0.05)
    return module


def hidden(n: int, window: int | None = None) -> Any:
    """Return a mask (1, 1, n, n) of floats, minus infinity where a row must not look."""
    import torch

    mask = torch.ones(n, n).triu(1)
    if window is not None:
        mask += torch.ones(n, n).tril(-window)
    return torch.zeros(n, n).masked_fill(mask.bool(), -torch.inf)[None, None]


def turns(n: int) -> tuple[Any, Any]:
    """Return cosines and sines (1, n, ROPE) of positions."""
    import torch

    rates = 10_000 ** (-torch.arange(ROPE // 2) / (ROPE // 2))
    angles = torch.outer(torch.arange(n), rates).repeat(1, 2)[None]
    return angles.cos(), angles.sin()


def subject(name: str, n: int, **params: Any) -> Any:
    """Return our layer as a call of the tokens alone, causal."""
    module = layer(name, n, **params)
    return side(module, lambda x: module(x, causal=True))


def theirs(module: Any, *arguments: Any) -> Any:
    """Return a layer of transformers as a call of the tokens alone."""
    started(module)

    def call(x: Any) -> Any:
        out = module(x, *arguments)
        return out[0] if isinstance(out, tuple) else out

    return side(module, call)


# -- softmax attention ------------------------------------------------------------------------
def grouped(way: str) -> Callable[[int], Pair]:
    """Two heads of keys for four of queries."""

    def make(n: int) -> Pair:
        from transformers import LlamaConfig

        config = LlamaConfig(**{**SIZES, "num_key_value_heads": 2}, attn_implementation=way)
        module = modeling("llama", still=True).LlamaAttention(config, 0)
        impl = "fused" if way == "sdpa" else "written"
        mask = None if way == "sdpa" else hidden(n)
        ours = subject("gqa", n, num_kv_heads=2, impl=impl)
        return ours, theirs(module, (None, None), mask), tokens(n)

    return make


def latent(way: str) -> Callable[[int], Pair]:
    """Both turn the shared part of queries and keys."""

    def make(n: int) -> Pair:
        from transformers import DeepseekV3Config

        config = DeepseekV3Config(
            **SIZES, **HF_LATENT, rope_interleave=False, attn_implementation=way
        )
        module = modeling("deepseek_v3").DeepseekV3Attention(config, 0)
        mask = None if way == "sdpa" else hidden(n)
        return subject("mla", n, **LATENT), theirs(module, turns(n), mask), tokens(n)

    return make


def windowed(n: int) -> Pair:
    """A mask of the window on their side."""
    from transformers import MistralConfig

    config = MistralConfig(**SIZES, sliding_window=WINDOW, attn_implementation="sdpa")
    module = modeling("mistral", still=True).MistralAttention(config, 0)
    mask = hidden(n, WINDOW) == 0
    ours = subject("sliding-window", n, window=WINDOW)
    return ours, theirs(module, (None, None), mask), tokens(n)


def sinks(n: int) -> Pair:
    """A learned logit a head; theirs is the eager path, the only one that has them on a CPU."""
    from transformers import GptOssConfig

    config = GptOssConfig(
        **SIZES, head_dim=HEAD, sliding_window=WINDOW, attention_bias=False,
        attn_implementation="eager",
    )  # fmt: skip
    module = modeling("gpt_oss", still=True).GptOssAttention(config, 0)
    ours = subject("sliding-window", n, window=WINDOW, sink=True)
    return ours, theirs(module, (None, None), hidden(n, WINDOW)), tokens(n)


def differential(way: str) -> Callable[[int], Pair]:
    """Four heads of halves are two of theirs: their pairs of heads."""

    def make(n: int) -> Pair:
        from transformers import DiffLlamaConfig

        sizes = {**SIZES, "num_attention_heads": 2 * HEADS, "num_key_value_heads": 2 * HEADS}
        config = DiffLlamaConfig(**sizes, attn_implementation=way)
        module = modeling("diffllama", still=True).DiffLlamaAttention(config, 0)
        mask = None if way == "sdpa" else hidden(n)
        impl = "fused" if way == "sdpa" else "subtracted"
        return subject("differential", n, impl=impl), theirs(module, (None, None), mask), tokens(n)

    return make


def indexed(way: str) -> Callable[[int], Pair]:
    """Theirs masks all products, ours multiplies the picked latents."""

    def make(n: int) -> Pair:
        from transformers import DeepseekV32Config

        config = DeepseekV32Config(
            **SIZES, **HF_LATENT, index_n_heads=INDEX["index_heads"], index_topk=TOP,
            index_head_dim=INDEX["index_dim"], num_hidden_layers=1, attn_implementation=way,
        )  # fmt: skip
        module = modeling("deepseek_v32").DeepseekV32Attention(config, 0)
        ours = subject("dsa", n, top=TOP, **INDEX, **LATENT)
        mask = hidden(n).expand(BATCH, 1, n, n)
        return ours, theirs(module, turns(n), mask), tokens(n)

    return make


def picked(*, gathered: bool) -> Callable[[int], Pair]:
    """The indexer and attention over what it picks, of given queries, keys, values, shares.

    Theirs masks all products. Ours multiplies the picked keys only, or masks as theirs does.
    """

    def make(n: int) -> Pair:
        import torch
        from torch import nn

        from attnprof.blocks.picked import over_picks, picks

        text = naive("dsa:naive_dsa")

        def ours(q: Any, k: Any, v: Any, *index: Any) -> Any:
            indices = picks(*(x.detach() for x in index), top=TOP, causal=True)
            heads = (x.transpose(1, 2).contiguous() for x in (q, k, v))
            mixed = over_picks(*heads, indices, gathered=gathered, top=TOP, causal=True)
            return mixed.transpose(1, 2)

        heads = [torch.randn(BATCH, n, HEADS, HEAD) for _ in "qkv"]
        count, width = INDEX.values()
        index = [torch.randn(BATCH, n, *shape) for shape in ((count, width), (width,), (count,))]
        call = side(nn.Module(), lambda *inputs: text(*inputs, topk=TOP))
        return side(nn.Module(), ours), call, [*heads, *index]

    return make


# -- recurrences --------------------------------------------------------------------------------
def rule(place: str, order: str, gate: str, form: str = "chunkwise") -> Callable[[int], Pair]:
    """A recurrence of fla or transformers, which takes its operands in an ``order``, and ours.

    Chunks are those of each by default.
    """

    def make(n: int) -> Pair:
        import torch
        from torch import nn

        from attnprof.blocks.recurrence import recurrence

        name, function = place.split(":")
        hf = name in ("qwen3_next", "kimi_linear")
        text = getattr(modeling(name), function) if hf else naive(place)
        by_channel, letters = gate == "channel", order.split()

        def ours(**inputs: Any) -> Any:
            q, k, v, g = (inputs[x].transpose(1, 2).flatten(0, 1) for x in "qkvg")
            beta = inputs["beta"].transpose(1, 2).reshape(-1, n, 1) if "beta" in inputs else None
            out = recurrence(
                q * HEAD**-0.5, k, v, g if by_channel else g.unsqueeze(-1), beta,
                rows=16 if by_channel else 64, form=form, by_channel=by_channel,
            )  # fmt: skip
            return out.view(BATCH, HEADS, n, HEAD).transpose(1, 2)

        shape = BATCH, n, HEADS
        q, k, v = (torch.nn.functional.normalize(torch.randn(*shape, HEAD), dim=-1) for _ in "qkv")
        g = -0.1 * torch.rand(*shape, HEAD) if by_channel else -0.1 * torch.rand(shape)
        operands = {"q": q, "k": k, "v": v, "g": g, "beta": torch.rand(shape)}
        return (
            side(nn.Module(), lambda *inputs: ours(**dict(zip(letters, inputs, strict=True)))),
            side(nn.Module(), lambda *inputs: text(*inputs)[0]),
            [operands[letter] for letter in letters],
        )

    return make


def retention(n: int) -> Pair:
    """Theirs writes out all pairs."""
    from speed.implementation_cases import rows_of
    from torch import nn

    core = layer("retnet", n).core
    text = naive("retention:naive_retention")
    return core, side(nn.Module(), text), rows_of(n)


def qwen(n: int) -> Pair:
    """Projections, convolutions, gates and norms on both sides."""
    from transformers import Qwen3NextConfig

    config = Qwen3NextConfig(
        **SIZES, linear_num_value_heads=HEADS, linear_num_key_heads=HEADS,
        linear_key_head_dim=HEAD, linear_value_head_dim=HEAD,
    )  # fmt: skip
    module = modeling("qwen3_next").Qwen3NextGatedDeltaNet(config, 0)
    return subject("gated-deltanet", n), theirs(module), tokens(n)


def kimi(n: int) -> Pair:
    """The same with a gate by channel."""
    from transformers import KimiLinearConfig

    config = KimiLinearConfig(
        **SIZES, linear_num_heads=HEADS, linear_head_dim=HEAD, num_hidden_layers=4
    )
    module = modeling("kimi_linear").KimiLinearDeltaAttention(config, 0)
    return subject("kimi-delta", n), theirs(module), tokens(n)


def mamba(n: int) -> Pair:
    """A state of 64 a channel, one group of B and C, twice the width inside."""
    from transformers import Mamba2Config

    import attnprof

    config = Mamba2Config(
        hidden_size=WIDTH, num_heads=2 * HEADS, head_dim=HEAD, state_size=HEAD, n_groups=1,
        num_hidden_layers=1,
    )  # fmt: skip
    module = modeling("mamba2").Mamba2Mixer(config, 0)
    ours = attnprof.build("mamba2", WIDTH, 2 * HEADS, n, head_dim=HEAD)
    return ours, theirs(module), tokens(n)


def lightning(n: int) -> Pair:
    """Theirs in blocks of 256 tokens."""
    from transformers import MiniMaxConfig

    config = MiniMaxConfig(**SIZES, num_hidden_layers=2)
    module = modeling("minimax").MiniMaxLightningAttention(config, 0)
    return subject("lightning", n), theirs(module, None, None), tokens(n)
