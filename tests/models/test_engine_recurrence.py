"""Recurrent mixers as kernels: transformers' own results; counts of what their text executes."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from attnprof.blocks.mixers import MIXERS
from attnprof.errors import RequestError
from attnprof.models.engine import engine_subject
from attnprof.models.engine_kernels import mixer, mixer_backward, mixer_step
from attnprof.models.phases import run_of
from attnprof.trace.rules.engine import played
from attnprof.trace.rules.units import flops_in
from tests.models.tiny import counted, small
from tests.oracles.aten import OperationCounter, count

TYPES = (
    "qwen3_next", "qwen3_5_text", "olmo_hybrid", "kimi_linear", "mamba2", "bamba",
    "granitemoehybrid", "falcon_h1", "nemotron_h", "zamba2", "mamba", "falcon_mamba", "jamba",
    "minimax",
)  # fmt: skip
TOKENS = 21


def both(model_type):
    """A tiny model as transformers runs it and, with the same weights, as engines do."""
    subject = small(model_type, "eager")
    engine = engine_subject(subject)
    assert engine.view == "engine"
    models = []
    for one in (subject, engine):
        torch.manual_seed(0)
        model = one.build().eval()
        model.set_experts_implementation("eager")
        for weights in model.parameters():
            torch.nn.init.normal_(weights, std=0.3)
        models.append(model)
    return subject, engine, models


def logits_of(model, rows):
    """Logits of a prompt, and of two tokens after it."""
    with torch.no_grad():
        prompt = model(rows[:, :-2], use_cache=True)
        name = "past_key_values" if hasattr(prompt, "past_key_values") else "cache_params"
        kept = {name: getattr(prompt, name), "use_cache": True}
        return [prompt.logits, *(model(rows[:, n, None], **kept).logits for n in (-2, -1))]


@pytest.mark.parametrize("model_type", TYPES)
def test_kernels_compute_and_keep_what_transformers_fallbacks_do(model_type):
    """Logits of a prompt and of two tokens, the cache's bytes and, of some, gradients."""
    *subjects, (usual, engine) = both(model_type)
    rows = torch.randint(3, 90, (2, TOKENS))
    for ours, theirs in zip(logits_of(engine, rows), logits_of(usual, rows), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max()))
    if model_type in ("qwen3_next", "jamba", "falcon_h1", "minimax"):
        held = [
            sum(call.takes for call in counted(one, {"B": 2, "N": TOKENS}, "cache").calls
                if call.dtype == "float32")
            for one in subjects
        ]  # fmt: skip
        assert held[0] == held[1] > 0
    if model_type not in ("qwen3_next", "kimi_linear", "mamba2", "mamba", "minimax"):
        return
    for model in (usual, engine):
        model(rows, use_cache=False).logits.square().mean().backward()
    for (name, ours), theirs in zip(engine.named_parameters(), usual.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None), name
        if theirs.grad is not None:
            most = float(theirs.grad.abs().max())
            torch.testing.assert_close(
                ours.grad, theirs.grad, rtol=1e-3, atol=1e-4 * most, msg=name
            )


B, N, H, G, D, V = 2, 24, 4, 2, 6, 8
#: Shapes of operands by kernel.
OPERANDS = {
    "delta": [(B, N, H, D), (B, N, H, D), (B, N, H, V), (B, N, H, D), (B, N, H)],
    "unit delta": [(B, N, G, D), (B, N, G, D), (B, N, H, V), (B, N, H), (B, N, H)],
    "mamba2": [(B, N, H, V), (B, N, H), (H,), (B, N, G, D), (B, N, G, D), (H,)],
    "lightning": [(B, N, H, D), (B, N, H, D), (B, N, H, V), (H,)],
    "mamba": [(B, V, N), (B, V, N), (V, D), (B, D, N), (B, D, N), (V,), (V,), (B, V, N)],
}  # fmt: skip
ROWS = 8


def operands_of(kind):
    torch.manual_seed(0)
    return [-torch.rand(shape) for shape in OPERANDS[kind]]


def executed(kind, form):
    """FLOPs that ATen dispatches for a kernel's text, forward, and backward for all operands."""
    mixer, operands, rows = MIXERS[kind], operands_of(kind), ROWS if form == "chunkwise" else 1
    with torch.no_grad():
        state = torch.zeros(mixer.state(operands))
        forward = count(lambda: mixer.text(*operands, state, rows=rows, form=form))
    leaves = [x.requires_grad_() for x in operands]
    counter = OperationCounter()
    with counter:
        out = mixer.text(*leaves, torch.zeros(mixer.state(leaves)), rows=rows, form=form)
    counter.part = "backward"
    with counter:
        out.backward(torch.ones_like(out))
    backward = type(forward)(tuple(counter.trace.part("backward")))
    assert not forward.unknown | backward.unknown
    return forward.flops, backward.flops


@pytest.mark.parametrize("form", ["chunkwise", "recurrent"])
@pytest.mark.parametrize("kind", OPERANDS)
def test_a_kernel_counts_what_its_text_dispatches(kind, form):
    shapes = tuple(OPERANDS[kind])
    forward = flops_in(played(kind, shapes, ROWS, form))
    backward = flops_in(played(kind, shapes, ROWS, form, (True,) * len(shapes)))
    assert (forward, backward) == executed(kind, form)


def test_heads_of_a_group_multiply_their_queries_and_keys_once():
    """As Mamba-2's kernels do: in a chunk, and of heads with the state before and after it."""
    counts = played("mamba2", tuple(OPERANDS["mamba2"]), ROWS, "chunkwise")
    assert counts["matmul_flops"] == 2 * B * N * (G * ROWS * D + H * (ROWS * V + 2 * D * V))


def test_a_last_chunk_counts_as_a_whole_one():
    """As kernels compute it, padded; a scan goes token by token."""
    for kind in ("unit delta", "mamba2", "lightning", "mamba"):
        axis = MIXERS[kind].tokens
        flops = []
        for tokens in (17, N):
            shapes = tuple(
                (*x[:axis], tokens, *x[axis + 1 :]) if len(x) > 2 else x for x in OPERANDS[kind]
            )
            flops.append(flops_in(played(kind, shapes, ROWS, "chunkwise")))
        assert (flops[0] == flops[1]) == (kind != "mamba")


@pytest.mark.parametrize("kind", OPERANDS)
def test_a_prompt_in_two_parts_leaves_the_state_of_the_whole(kind):
    mixer, operands = MIXERS[kind], operands_of(kind)
    axis, cut = mixer.tokens, 13
    states = [torch.zeros(mixer.state(operands)) for _ in range(2)]
    whole = mixer.text(*operands, states[0], rows=ROWS, form="chunkwise")
    parts = []
    for start, stop in ((0, cut), (cut, N)):
        given = [
            x.narrow(axis, start, stop - start) if x.dim() > axis and x.shape[axis] == N else x
            for x in operands
        ]
        parts.append(mixer.text(*given, states[1], rows=ROWS, form="chunkwise"))
    torch.testing.assert_close(torch.cat(parts, axis), whole)
    torch.testing.assert_close(*states)


def test_a_decoded_token_reads_the_state_once_and_writes_it_once():
    run = run_of(engine_subject(small("mamba2")), "decode", {"B": 2, "N": 40}).trace
    steps = [call for call in run.calls if call.op.endswith("mixer_step")]
    state, rows = 8 * 8 * 6, 8 * 8 + 8 + 8 * 8 + 2 * 2 * 6  # values, steps, results, b and c
    assert [call.bytes_moved for call in steps] == [4 * (2 * (2 * state + rows) + 2 * 8)] * 3
    held = {call.dtype for call in steps}
    assert held == {"float32"}


@pytest.mark.parametrize("kind", OPERANDS)
def test_shapes_and_formats_without_values_are_those_of_real_results(kind):
    operands = [x.to(torch.bfloat16) if x.dim() > 2 else x for x in operands_of(kind)]

    def made(operands, state):
        forward = mixer(kind, operands, state, ROWS, "chunkwise", True)
        needs = [True] * len(operands)
        states, grad = forward[2], torch.ones_like(forward[0])
        backward = mixer_backward(grad, kind, operands, states, ROWS, "chunkwise", needs)
        axis = MIXERS[kind].tokens
        token = [x.narrow(axis, 0, 1) if x.dim() > 2 else x for x in operands]
        return [*forward, mixer_step(kind, token, forward[1]), *backward]

    real = made(operands, None)
    with FakeTensorMode() as mode:
        fake = made([mode.from_tensor(x) for x in operands], None)
    assert [(x.shape, x.dtype) for x in real] == [(x.shape, x.dtype) for x in fake]


def test_layers_that_are_all_recurrent_are_refused_with_what_to_type():
    subject = engine_subject(small("bamba", attn_layer_indices=None))
    with pytest.raises(RequestError, match=r"no attention among its layers.*attn_layer_indices"):
        run_of(subject, "forward", {"B": 1, "N": 8})
