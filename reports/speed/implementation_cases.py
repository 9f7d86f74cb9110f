"""What ``implementations.py`` compares: ours and the public implementation, equal parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

BATCH, WIDTH, HEADS = 2, 256, 4
HEAD = WIDTH // HEADS
#: Settings of both sides of the hashed cases.
LSH = "8 rounds, buckets of 64"
Pair = tuple[Callable[..., Any], Callable[..., Any], list[Any]]


@dataclass(frozen=True)
class Case:
    """A mechanism and its reference; ``make(n)`` builds both and their inputs."""

    mechanism: str
    reference: str
    settings: str
    make: Callable[[int], Pair]
    target: float
    longest: int = 1 << 30


def cases() -> list[Case]:
    """What is compared with what: the same parameters on both sides."""
    return [
        Case("performer", "performer-pytorch", "core, 266 features", performer(False), 1.05),
        Case("performer causal", "performer-pytorch", "core, 266 features", performer(True), 0.15,
             1024),
        Case("linformer", "linformer", "layer, proj_len 256, own maps", linformer, 1.05),
        Case("nystromformer", "nystrom-attention", "layer, 256 landmarks, no convolution",
             nystrom(None), 1.05),
        Case("nystromformer conv", "nystrom-attention", "layer, 256 landmarks, kernel 33",
             nystrom(33), 1.05),
        Case("nystromformer m=64", "transformers", "layer, 64 landmarks, no convolution",
             hf_nystrom(None), 1.05),
        Case("nystromformer m=64 conv", "transformers", "layer, 64 landmarks, kernel 65",
             hf_nystrom(65), 1.05),
        Case("longformer", "local-attention", "core, window 256 a side", local(False), 0.6),
        Case("longformer causal", "local-attention", "core, window 256 back", local(True), 0.6),
        Case("longformer layer", "transformers", "layer, window 256 a side", hf_longformer, 0.6),
        Case("reformer", "reformer-pytorch", f"core, {LSH}", reformer(False), 0.7),
        Case("reformer causal", "reformer-pytorch", f"core, {LSH}", reformer(True), 0.7),
        Case("reformer layer", "reformer-pytorch", f"layer, {LSH}", reformer_layer, 0.7),
        Case("reformer layer HF", "transformers", f"layer, {LSH}", hf_reformer, 0.7),
        Case("linear", "performer-pytorch", "core, elu + 1, its linear_attention", linear(False),
             1.05),
        Case("linear causal", "performer-pytorch", "core, elu + 1, its pure torch form",
             linear(True), 0.7, 512),
        Case("sdpa", "nn.MultiheadAttention", "layer, no weights asked", multihead(False), 1.05),
        Case("standard", "nn.MultiheadAttention", "layer, weights asked", multihead(True), 1.05,
             2048),
    ]  # fmt: skip


def side(module: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """A call that knows whose parameters it uses."""

    def run(*inputs: Any) -> Any:
        return call(*inputs)

    run.module = module  # type: ignore[attr-defined]  # an attribute of a function
    return run


def layer(name: str, n: int, **params: Any) -> Any:
    """Our layer at the report's sizes."""
    import attnprof

    return attnprof.build(name, d_model=WIDTH, num_heads=HEADS, seq_len=n, **params)


def tokens(n: int) -> list[Any]:
    """The input of a layer."""
    import torch

    return [torch.randn(BATCH, n, WIDTH)]


def rows_of(n: int) -> list[Any]:
    """Queries, keys and values."""
    import torch

    return [torch.randn(BATCH, HEADS, n, HEAD) for _ in range(3)]


def performer(causal: bool) -> Callable[[int], Pair]:
    """FAVOR+ with the features of the reference's default: head_dim · ln(head_dim)."""

    def make(n: int) -> Pair:
        from performer_pytorch import FastAttention

        core = layer("performer", n, num_features=266).core
        theirs = FastAttention(HEAD, nb_features=266, causal=causal)
        return side(core, lambda q, k, v: core(q, k, v, causal)), theirs, rows_of(n)

    return make


def linformer(n: int) -> Pair:
    """Separate maps for keys and values on both sides."""
    from linformer import LinformerSelfAttention

    ours = layer("linformer", n, proj_len=256, shared=False)
    return ours, LinformerSelfAttention(WIDTH, n, k=256, heads=HEADS), tokens(n)


def nystrom(kernel: int | None) -> Callable[[int], Pair]:
    """Six iterations on both sides; lengths divide into the landmarks."""

    def make(n: int) -> Pair:
        from nystrom_attention import NystromAttention

        ours = layer("nystromformer", n, num_landmarks=256, iterations=6, conv_kernel=kernel)
        theirs = NystromAttention(
            WIDTH, HEAD, HEADS, num_landmarks=256, residual=kernel is not None,
            residual_conv_kernel=kernel or 33,
        )  # fmt: skip
        return ours, theirs, tokens(n)

    return make


def hf_nystrom(kernel: int | None) -> Callable[[int], Pair]:
    """The model's self-attention with an output map behind it, as ours has one."""

    def make(n: int) -> Pair:
        from torch import nn
        from transformers.models.nystromformer import modeling_nystromformer as source

        config = SimpleNamespace(
            hidden_size=WIDTH, num_attention_heads=HEADS, num_landmarks=64, conv_kernel_size=kernel,
            segment_means_seq_len=n, attention_probs_dropout_prob=0.0, inv_coeff_init_option=False,
        )  # fmt: skip
        theirs = nn.ModuleList([source.NystromformerSelfAttention(config), nn.Linear(WIDTH, WIDTH)])
        ours = layer(
            "nystromformer", n, num_landmarks=64, iterations=6, conv_kernel=kernel, bias=True
        )
        return ours, side(theirs, lambda x: theirs[1](theirs[0](x)[0])), tokens(n)

    return make


def local(causal: bool) -> Callable[[int], Pair]:
    """The exact window on both sides, no rotary embedding."""

    def make(n: int) -> Pair:
        from local_attention import LocalAttention

        theirs = LocalAttention(
            256, causal=causal, exact_windowsize=True, use_rotary_pos_emb=False, dim=HEAD
        )
        core = layer("longformer", n, window=256).core
        return side(core, lambda q, k, v: core(q, k, v, causal)), theirs, rows_of(n)

    return make


def hf_longformer(n: int) -> Pair:
    """The model's self-attention without global tokens, and an output map behind it."""
    import torch
    from torch import nn
    from transformers.models.longformer import modeling_longformer as source

    config = SimpleNamespace(
        hidden_size=WIDTH, num_attention_heads=HEADS, attention_window=[512],
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    attention = source.LongformerSelfAttention(config, 0)
    for name in ("query_global", "key_global", "value_global"):
        delattr(attention, name)  # unused without global tokens
    theirs = nn.ModuleList([attention, nn.Linear(WIDTH, WIDTH)])
    mask = torch.zeros(BATCH, n)

    def run(x: Any) -> Any:
        result = attention(
            x, attention_mask=mask, is_index_masked=mask < 0, is_index_global_attn=mask > 0,
            is_global_attn=False,
        )  # fmt: skip
        return theirs[1](result[0])

    return layer("longformer", n, window=256, bias=True), side(theirs, run), tokens(n)


def reformer(causal: bool) -> Callable[[int], Pair]:
    """Equal rounds and bucket sizes; theirs looks a chunk of 64 back, in mixed buckets."""

    def make(n: int) -> Pair:
        from reformer_pytorch import LSHAttention

        theirs = LSHAttention(bucket_size=64, n_hashes=8, causal=causal)
        core = layer("reformer", n, num_hashes=8, bucket_size=64).core
        ours = side(core, lambda q, v: core(q, q, v, causal))
        call = side(theirs, lambda q, v: theirs(q.flatten(0, 1), v.flatten(0, 1))[0])
        return ours, call, rows_of(n)[:2]

    return make


def reformer_layer(n: int) -> Pair:
    """With projections; theirs has a bias in the output map."""
    from reformer_pytorch import LSHSelfAttention

    theirs = LSHSelfAttention(WIDTH, heads=HEADS, bucket_size=64, n_hashes=8)
    return layer("reformer", n, num_hashes=8, bucket_size=64), theirs, tokens(n)


def hf_reformer(n: int) -> Pair:
    """The model's self-attention with an output map behind it, as its layer has."""
    from torch import nn
    from transformers.models.reformer import modeling_reformer as source

    config = SimpleNamespace(
        lsh_attn_chunk_length=64, num_hashes=8, num_buckets=None, lsh_num_chunks_before=1,
        lsh_num_chunks_after=0, hash_seed=None, is_decoder=False, max_position_embeddings=n,
        lsh_attention_probs_dropout_prob=0.0, num_attention_heads=HEADS, attention_head_size=HEAD,
        hidden_size=WIDTH,
    )  # fmt: skip
    attention = source.LSHSelfAttention(config)
    out = nn.Linear(WIDTH, WIDTH, bias=False)
    theirs = nn.ModuleList([attention, out])
    ours = layer("reformer", n, num_hashes=8, bucket_size=64)
    return ours, side(theirs, lambda x: out(attention(x)[0])), tokens(n)


def linear(causal: bool) -> Callable[[int], Pair]:
    """The functions inside the package, on the same features."""

    def make(n: int) -> Pair:
        from performer_pytorch import performer_pytorch as source
        from torch import nn
        from torch.nn import functional as F

        attend = source.causal_linear_attention_noncuda if causal else source.linear_attention
        core = layer("linear", n).core
        ours = side(core, lambda q, k, v: core(q, k, v, causal))
        call = side(nn.Module(), lambda q, k, v: attend(F.elu(q) + 1, F.elu(k) + 1, v))
        return ours, call, rows_of(n)

    return make


def multihead(weights: bool) -> Callable[[int], Pair]:
    """Training mode: no fast path, which fuses whole layers in eval only."""

    def make(n: int) -> Pair:
        from torch import nn

        theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).train()

        def run(x: Any) -> Any:
            return theirs(x, x, x, need_weights=weights, average_attn_weights=False)[0]

        ours = layer("standard" if weights else "sdpa", n, bias=True)
        return ours, side(theirs, run), tokens(n)

    return make
