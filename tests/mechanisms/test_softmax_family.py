"""Standard, Optimised, Efficient, Super and the fused kernel against document 000."""

import math

import pytest
import sympy
import torch

import attnprof
from attnprof import Workload, registry
from attnprof.errors import RequestError
from tests.mechanisms.cases import SHAPES, built, inputs
from tests.mechanisms.checks import close, drawn

FAMILY = ("standard", "optimised", "efficient", "super")


def affine(layer, letter, x):
    """Rows of x through one of the layer's maps, or x itself; lists of floats."""
    projection = getattr(layer, f"{letter}_proj", None)
    if projection is None:
        return x
    weight, bias = projection.weight.tolist(), projection.bias.tolist()
    return [
        [sum(w * c for w, c in zip(row, token, strict=True)) + b for row, b in zip(weight, bias)]  # noqa: B905 - equal by construction
        for token in x
    ]


def defined(layer, x, causal):
    """000, Definitions 1 to 4 for one sequence, number by number."""
    n, heads, d = len(x), layer.sizes.num_heads, layer.sizes.head_dim
    q, k, v = (affine(layer, letter, x) for letter in "qkv")
    mixing = getattr(layer.core, "mixing", None)
    mixed = []
    for h in range(heads):
        columns = range(h * d, (h + 1) * d)
        values = [[v[i][c] for c in columns] for i in range(n)]
        if mixing is not None:
            w, b = mixing.tolist(), layer.core.mixing_bias.tolist()
            w, b = (w[h], b[h]) if layer.spec.per_head else (w, b)
            values = [
                [sum(w[i][j] * values[j][c] for j in range(i + 1 if causal else n)) + b[i]
                 for c in range(d)]
                for i in range(n)
            ]  # fmt: skip
        rows = []
        for i in range(n):
            visible = range(i + 1 if causal else n)
            scores = [
                math.exp(sum(q[i][c] * k[j][c] for c in columns) / math.sqrt(d)) for j in visible
            ]
            rows.append([
                sum(s * values[j][c] for s, j in zip(scores, visible, strict=True)) / sum(scores)
                for c in range(d)
            ])  # fmt: skip
        mixed.append(rows)
    merged = [[value for rows in mixed for value in rows[i]] for i in range(n)]
    return affine(layer, "o", merged)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("name", "params"),
    [*((name, {}) for name in (*FAMILY, "sdpa")), ("super", {"per_head": True})],
)
def test_a_layer_is_its_definition(name, params, shape, causal):
    layer, x = built(name, shape, torch.float64, **params), inputs(shape, torch.float64)
    expected = torch.tensor([defined(layer, rows, causal) for rows in x.tolist()], dtype=x.dtype)
    close(layer(x, causal=causal), expected, 1e-10)


# -- parameters: every row of tables 5, 6, 8, 9 and 10 prints one of these ------------------------
PRINTED = (
    ("table 5", 128, 64, (1, 2, 4), (66_048, 49_536, 33_024, 37_184)),
    ("table 6", 256, 257, (1, 2, 4, 8), (263_168, 197_376, 131_584, 197_890)),
    ("table 8", 32, 32, (1, 2, 4), (4_224, 3_168, 2_112, 3_168)),
    ("table 9", 64, 64, (1, 2, 4), (16_640, 12_480, 8_320, 12_480)),
    ("table 10", 1024, None, (1, 2, 4), (4_198_400, 3_148_800, 2_099_200, None)),
    ("ViT-B/16", 768, 197, (12,), (2_362_368, 1_771_776, 1_181_184, 1_220_190)),
    ("ViT-B/16", 768, 196, (12,), (2_362_368, 1_771_776, 1_181_184, 1_219_796)),
)
ROWS = [
    (name, d_model, length, heads, printed)
    for _, d_model, length, counts, numbers in PRINTED
    for name, printed in zip(FAMILY, numbers, strict=True)
    for heads in counts
    if printed is not None
]


@pytest.mark.parametrize(("name", "d_model", "length", "heads", "printed"), ROWS)
def test_parameter_counts_are_the_printed_ones(name, d_model, length, heads, printed):
    with torch.device("meta"):
        layer = attnprof.build(name, d_model, heads, length)
    assert sum(p.numel() for p in layer.parameters()) == printed
    work = Workload(length or 50, heads, d_model // heads)
    assert attnprof.cost(name, work).parameters == printed


# -- closed forms -------------------------------------------------------------------------------
L, M, H = sympy.symbols("l m h", positive=True)


@pytest.mark.parametrize(
    ("name", "products"),
    [
        ("standard", 24 * L * M**2 + 12 * L**2 * M),
        ("optimised", 18 * L * M**2 + 12 * L**2 * M),
        ("efficient", 12 * L * M**2 + 12 * L**2 * M),
        ("super", 12 * L * M**2 + 18 * L**2 * M),
    ],
)
def test_products_of_a_training_step_have_their_closed_form(name, products):
    symbolic = Workload(L, H, M / H, phase="train")
    assert sympy.expand(attnprof.cost(name, symbolic).matmul_flops - products) == 0


@pytest.mark.parametrize(
    ("name", "constant"), [("standard", 15), ("optimised", 12), ("efficient", 9), ("super", 12)]
)
def test_equation_24_is_published_as_printed(name, constant):
    form, *_ = registry.get(name).published()
    assert (form.source, form.quantity, form.phase) == ("000-EQ24", "flops", "train")
    printed = form.formula(Workload(L, H, M / H))
    assert sympy.expand(printed - constant * L * M - 15 * H * L**2) == 0


@pytest.mark.parametrize(("heads", "total"), [(1, 20_947_008), (32, 21_710_848)])
def test_operations_of_standard_attention_are_those_of_document_002(heads, total):
    spec = registry.get("standard", bias=False)
    sizes = {"num_heads": heads, "head_dim": 128 // heads}
    assert spec.definition(Workload(128, **sizes, causal=True)).operations == total


# -- the fused kernel ---------------------------------------------------------------------------
@pytest.mark.parametrize("kv_heads", [None, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
def test_sdpa_and_its_gradients_are_those_of_standard(causal, kv_heads):
    shape, dtype = (3, 33, 4, 8), torch.float64
    written = built("standard", shape, dtype, num_kv_heads=kv_heads)
    fused = built("sdpa", shape, dtype, num_kv_heads=kv_heads)
    fused.load_state_dict(written.state_dict())
    x = inputs(shape, dtype).requires_grad_()
    outputs = [layer(x, causal=causal) for layer in (written, fused)]
    close(*outputs, 1e-10)
    close(*(torch.autograd.grad(y.square().sum(), x)[0] for y in outputs), 2e-9)


def test_causal_sdpa_counts_the_pairs_it_sees_and_five_products_backward():
    d = sympy.Symbol("d", positive=True)
    seen = H * L * (L + 1) / 2
    for phase, each in (("forward", 2), ("backward", 5)):
        work = Workload(L, H, d, causal=True, phase=phase)
        products = attnprof.cost("sdpa", work, "core").matmul_flops
        assert sympy.expand(products - each * 2 * d * seen) == 0


# -- slices and mixing --------------------------------------------------------------------------
def test_for_one_head_the_slices_are_standard_with_identity_maps():
    shape = (2, 7, 1, 6)
    standard, efficient = (built(n, shape, torch.float64) for n in ("standard", "efficient"))
    with torch.no_grad():
        for projection in (standard.k_proj, standard.v_proj):
            projection.weight.copy_(torch.eye(6))
            projection.bias.zero_()
    standard.load_state_dict(efficient.state_dict(), strict=False)
    x = inputs(shape, torch.float64)
    close(standard(x), efficient(x))


@pytest.mark.parametrize("causal", [False, True])
def test_attend_takes_the_mixing_map_by_name(causal):
    q, k, v = drawn((2, 3, 5, 4))
    mixing = torch.randn(5, 5, dtype=torch.float64, requires_grad=True)
    got = attnprof.attend("super", q, k, v, causal, weights={"mixing": mixing})
    mixed = (mixing.tril() if causal else mixing) @ v
    close(got, attnprof.attend("standard", q, k, mixed, causal))
    (gradient,) = torch.autograd.grad(got.sum(), mixing)
    above = gradient.triu(1).abs().sum()
    assert (above == 0) == causal


def test_super_refuses_a_length_it_was_not_built_for():
    layer = attnprof.build("super", 8, 2, 6)
    with pytest.raises(RequestError, match=r"built for 6 tokens and got 5.*seq_len=5"):
        layer(torch.randn(1, 5, 8))
    with pytest.raises(RequestError, match="give seq_len"):
        attnprof.build("super", 8, 2)
    state = layer.init_state(1)
    for token in torch.randn(6, 1, 8):
        layer.step(token, state)
    with pytest.raises(RequestError, match="built for 6 tokens and got 7"):
        layer.step(torch.randn(1, 8), state)


@pytest.mark.parametrize("name", ["optimised", "efficient"])
@torch.no_grad()
def test_columns_of_another_sequence_are_attended_where_keys_or_values_have_no_map(name):
    layer = attnprof.build(name, 6, 2)
    x, other = torch.randn(2, 4, 6), torch.randn(2, 7, 6)
    heads = []
    for columns in (slice(0, 3), slice(3, 6)):
        keys = layer.k_proj(other) if name == "optimised" else other
        scores = layer.q_proj(x)[..., columns] @ keys[..., columns].mT / 3**0.5
        heads.append(scores.softmax(-1) @ other[..., columns])
    expected = layer.o_proj(torch.cat(heads, -1))
    assert torch.allclose(layer(x, context=other), expected, atol=1e-5)
