"""FLOPs a token: pairs against loops over masks, conventions by hand, torch's counter, Python."""

import subprocess
import sys

import pytest
import sympy
import torch

import attnprof
from attnprof.algebra.values import evaluate
from attnprof.errors import RequestError
from attnprof.models.conventions import (
    NAMES_OF_CONVENTIONS,
    PHASES,
    TOKEN,
    Mask,
    count,
    dropped,
    expression,
    per_token,
    sequence_flops,
    terms,
)
from attnprof.models.mfu import flops_of, mfu_report, python_file
from attnprof.models.mfu_sizes import sizes_of
from tests.models.tiny import LATENT, SIZES, TOKENS, dispatched, fields_of, real

TWELVE = (
    "llama", "qwen3", "mistral", "gemma3_text", "gpt2", "bert", "modernbert", "t5", "bloom",
    "codegen", "gemma4_text", "deepseek_v3",
)  # fmt: skip
TYPES = (
    *TWELVE, "olmo2", "granite", "opt", "phi3", "mixtral", "qwen2_moe", "gpt_oss", "llama4_text",
    "fuyu",  # its map of images stands beside its table, and text does not read it
)  # fmt: skip
SEES = {
    "token": lambda i, j, _: i == j,
    "once": lambda i, j, _: i == j == 0,
    "full": lambda *_: True,
    "causal": lambda i, j, _: j <= i,
    "window": lambda i, j, size: i - size < j <= i,
    "chunk": lambda i, j, size: j <= i and i // size == j // size,
    "around": lambda i, j, size: abs(i - j) <= size,
    "rows": lambda i, j, size: j < (i + 1) // size,
}
DENSE = {**SIZES, "model_type": "llama", "tie_word_embeddings": False}
#: Layers, width, heads, key heads, head width, network, vocabulary of DENSE.
L, H, A, G, D, F, V = 3, 32, 4, 2, 8, 48, 96
MATRICES = L * (H * D * (2 * A + 2 * G) + 3 * H * F) + V * H
NORMS = (2 * L + 1) * H


@pytest.mark.parametrize("kind", SEES)
@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_pairs_of_a_mask_are_those_of_a_loop_over_it(kind, size):
    mask = Mask(kind, size)
    for n in (1, 2, 4, 5, 6, 9, 16, 23):
        pairs = sum(SEES[kind](i, j, size) for i in range(n) for j in range(n))
        assert mask.pairs(n) == pairs
        assert evaluate(mask.mean(), {"N": n}) * n == pairs
        assert eval(mask.python(), {"n": n, "min": min}) == pairs


@pytest.mark.parametrize(("size", "most"), [(1, 3), (4, 2), (3, 1), (2, 5)])
def test_no_more_rows_than_an_indexer_chooses_are_seen(size, most):
    mask = Mask("rows", size, most)
    for n in (1, 3, 4, 7, 8, 23, 64):
        pairs = sum(min((i + 1) // size, most) for i in range(n))
        assert mask.pairs(n) == pairs
        assert evaluate(mask.mean(), {"N": n}) * n == pairs
        assert eval(mask.python(), {"n": n, "min": min}) == pairs


def by_hand(n):
    """FLOPs of a training step of DENSE, a sequence of n tokens, by convention."""
    tables = V * H
    return {
        "palm": 6 * (MATRICES + tables + NORMS) * n + 12 * L * A * D * n * n,
        "6n": 6 * (MATRICES + tables + NORMS) * n,
        "megatron": 6 * MATRICES * n + 6 * L * A * D * n * n,
        "torchtitan": 6 * (MATRICES + NORMS) * n + 12 * L * A * D * n * n,
        "verl": 6 * (MATRICES + tables) * n + 6 * L * A * D * n * n,
        "executed": 6 * MATRICES * n + 7 * 2 * L * A * D * n * (n + 1) // 2,
    }


@pytest.mark.parametrize("convention", NAMES_OF_CONVENTIONS)
def test_a_dense_model_is_counted_as_the_conventions_formula_says(convention):
    for n in (1, 7, 100, 4096):
        expected = by_hand(n)[convention]
        assert flops_of(sizes_of(DENSE), [n], convention, "train") == expected
        assert attnprof.flops_per_token(DENSE, n, convention) == per_token(expected, n)


@pytest.mark.parametrize("convention", ["palm", "megatron", "torchtitan", "verl", "6n"])
def test_a_forward_pass_is_a_third_of_training_but_for_what_is_executed(convention):
    sizes = sizes_of(DENSE)
    forward, train = (flops_of(sizes, [100], convention, phase) for phase in PHASES)
    assert 3 * forward == train


def test_packed_sequences_attend_within_themselves():
    sizes, lengths = sizes_of(DENSE), [512, 1024, 2048, 512]
    for convention in NAMES_OF_CONVENTIONS:
        total = sum(by_hand(n)[convention] for n in lengths)
        assert flops_of(sizes, lengths, convention, "train") == total


@pytest.mark.parametrize("model_type", TYPES)
def test_every_record_has_a_formula_that_gives_its_number(model_type):
    for n in (1, 5, 6, 77):
        for row in mfu_report(sizes_of(fields_of(model_type)), NAMES_OF_CONVENTIONS, [n]).records:
            formula = sympy.sympify(row.expression, {"N": sympy.Integer(n)})
            assert formula * n == row.flops
            assert row.flops_per_token == per_token(row.flops, n)
            assert bool(row.dropped) == (row.convention != "executed")


def test_tied_tables_are_the_head_and_counted_once_but_by_verl():
    sizes = sizes_of({**DENSE, "tie_word_embeddings": True})
    assert sizes.symbols["P"] == MATRICES + NORMS
    assert (
        count(sizes, "palm")[TOKEN] == 6 * (MATRICES + NORMS) == count(sizes, "torchtitan")[TOKEN]
    )
    assert count(sizes, "verl")[TOKEN] == 6 * (MATRICES + V * H)


def test_experts_are_those_that_a_token_meets_and_routers_are_megatrons_to_leave_out():
    sizes = sizes_of(fields_of("qwen2_moe"))
    by_convention = {name: terms(sizes, name) for name in NAMES_OF_CONVENTIONS}
    for name, counts in by_convention.items():
        assert counts["expert"] == {TOKEN: 6 * 2 * 3 * 32 * 20 * 3}
        assert ("router" in counts) == (name != "megatron")
    assert "routers left out" in "; ".join(dropped(sizes, "megatron"))


EXPERTS_ELSEWHERE = {
    "dbrx": {"d_model": 32, "n_heads": 4, "n_layers": 3,
             "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8},
             "ffn_config": {"ffn_hidden_size": 20, "moe_num_experts": 4, "moe_top_k": 2}},
    "hunyuan_v1_moe": {"num_experts": 4, "moe_topk": [2, 2, 2], "head_dim": 8},
    "aria_text": {"moe_num_experts": 4, "moe_topk": 2, "head_dim": 8},
    "switch_transformers": {"d_model": 32, "d_kv": 8, "d_ff": 40, "num_heads": 4, "num_layers": 2,
                            "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1,
                            "num_experts": 2},
    "nllb-moe": {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_sparse_step": 2,
                 "decoder_sparse_step": 2, "num_experts": 4},
}  # fmt: skip


@pytest.mark.parametrize("model_type", EXPERTS_ELSEWHERE)
def test_experts_that_a_token_meets_are_found_in_parts_lists_and_by_type(model_type):
    weights = sizes_of(
        {**SIZES, **TOKENS, "model_type": model_type, **EXPERTS_ELSEWHERE[model_type]}
    ).weights["expert"]
    assert 2 * weights.active == weights.entries > 0


def test_experts_of_nothing_take_their_share_of_choices():
    """Of 8 experts and 4 of nothing a token chooses 3: two of the 8 on average."""
    fields = {**SIZES, **TOKENS, **LATENT, "model_type": "longcat_flash", "num_layers": 2,
              "ffn_hidden_size": 48, "expert_ffn_hidden_size": 20, "n_routed_experts": 8,
              "zero_expert_num": 4, "moe_topk": 3}  # fmt: skip
    weights = sizes_of(fields).weights["expert"]
    assert weights.active * 8 == weights.entries * 2 > 0


def test_layers_that_predict_further_tokens_are_counted_by_megatron_where_a_file_names_them():
    fields = fields_of("deepseek_v3")
    without, named = sizes_of(fields), sizes_of({**fields, "num_nextn_predict_layers": 1})
    assert count(without, "executed") == count(named, "executed")
    attention = 32 * 12 + 12 * 4 * 10 + 32 * 14 + 10 * 4 * 11 + 4 * 5 * 32
    experts = 3 * 32 * 20 * (2 + 1)
    more = 6 * (attention + experts + 3 * 32 + 2 * 32**2 + 32 * 96)
    apart = count(named, "megatron")[TOKEN] - count(without, "megatron")[TOKEN]
    assert apart == more
    assert "multi-token prediction" in "; ".join(dropped(named, "executed"))


def test_windows_are_exact_where_executed_and_dense_to_palm():
    sizes = sizes_of(fields_of("mistral"))
    n, widths = 100, 3 * 4 * 16
    pairs = 5 * 6 // 2 + 95 * 5
    assert flops_of(sizes, [n], "executed", "forward") == 2 * (MATRICES * n + widths * pairs)
    assert flops_of(sizes, [n], "palm", "train") == by_hand(n)["palm"]
    assert "windows counted dense" in "; ".join(dropped(sizes, "palm"))


@pytest.mark.parametrize(("model_type", "more", "scoring"), [
    ("deepseek_v32", {}, 3),
    ("glm_moe_dsa", {"indexer_types": ["full", "shared", "shared"]}, 1),
])  # fmt: skip
def test_an_indexer_scores_all_pairs_and_attention_the_chosen_ones(model_type, more, scoring):
    """Layers without an indexer share the choice of another one's."""
    counts = terms(sizes_of(fields_of(model_type, **more)), "executed", "forward")
    assert counts["scores"] == {Mask("window", 6): 2 * 3 * 4 * (10 + 5)}
    assert counts["index scores"] == {Mask("causal"): 2 * scoring * 2 * 8}


def test_an_indexer_of_blocks_chooses_as_many_keys_as_they_have():
    counts = terms(sizes_of(fields_of("minimax_m3_vl_text")), "executed", "forward")
    each = 2 * 4 * (8 + 8)
    assert counts["scores"] == {Mask("causal"): each, Mask("window", 12): 2 * each}
    assert counts["index scores"] == {Mask("causal"): 2 * 2 * 2 * 8}


@pytest.mark.parametrize("tokens", [4, 23])
def test_rows_that_stand_for_several_tokens_are_scored_as_torch_counts(tokens):
    """Layers of DeepSeek-V4: of windows, of rows for 4 tokens and two chosen, of rows for 8."""
    rates = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8}
    fields = fields_of("deepseek_v4", index_topk=2, compress_rates=rates)
    total, result = torchs(fields, tokens, output_attentions=True)
    masked = sum(int((x == 0).sum()) for x in result.attentions)
    ahead = tokens * (tokens // 4) - sum(t // 4 for t in range(1, tokens + 1))
    mixed = 2 * 3 * tokens * 2 * 4 * 4 * 32  # streams of the residual, without weights
    expected = total - mixed - 2 * (8 + 8) * masked - 2 * 2 * 8 * ahead
    assert flops_of(sizes_of(fields), [tokens], "executed", "forward") == expected


@pytest.mark.parametrize("model_type", TWELVE)
def test_the_written_file_runs_by_itself_and_agrees_at_fifty_shapes(tmp_path, model_type):
    sizes = sizes_of(fields_of(model_type))
    file = tmp_path / "flops.py"
    file.write_text(python_file(sizes, NAMES_OF_CONVENTIONS, model_type, "0"), encoding="utf-8")
    shapes = [1 + 37 * i**2 for i in range(50)]
    probe = (
        "import flops; print([[[flops.flops_per_token(n, c, p) for n in "
        f"{shapes}] for p in {PHASES}] for c in {list(NAMES_OF_CONVENTIONS)}])"
    )
    alone = [sys.executable, "-I", "-S"]  # no site-packages: plain Python
    tested = subprocess.run([*alone, str(file)], capture_output=True, text=True, check=True)
    assert "agree with attnprof" in tested.stdout
    setup = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
    run = subprocess.run([*alone, "-c", setup + probe], capture_output=True, text=True, check=True)
    expected = [
        [[per_token(sequence_flops(count(sizes, name, phase), n), n) for n in shapes]
         for phase in PHASES]
        for name in NAMES_OF_CONVENTIONS
    ]  # fmt: skip
    assert run.stdout.strip() == str(expected)


def test_the_written_file_says_its_source_and_refuses_other_requests():
    text = python_file(sizes_of(DENSE), ["executed"], 'a "quoted" file', "1.2")
    scope: dict = {}
    exec(compile(text, "flops.py", "exec"), scope)
    assert "a 'quoted' file" in scope["__doc__"]
    assert "executed" in scope["__doc__"]
    for request in ((0,), (5, "palm"), (5, "executed", "decode")):
        with pytest.raises(ValueError, match=r"possible are|1 or more"):
            scope["flops_per_token"](*request)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ((DENSE, 0), "seq_len"),
        ((DENSE, 10, "plam"), "did you mean palm"),
        ((DENSE, 10, "palm", "decode"), "possible: forward, train"),
        (({"model_type": "vit"}, 10), "models of tokens"),
        (({"model_type": "clip"}, 10), "type attnprof model"),
        (("no-such-model", 10), "no model is called"),
        (("my.py:factory", 10), "config.json"),
    ],
)
def test_wrong_requests_say_what_is_possible(request_, message):
    with pytest.raises(RequestError, match=message):
        attnprof.flops_per_token(*request_)


def test_a_formula_of_a_mask_is_one_text_in_n():
    assert str(expression({TOKEN: 5, Mask("causal"): 4})) == "2*N + 7"
    assert "Min(" in str(expression({Mask("window", 128): 6}))


def test_a_block_that_layers_share_counts_as_often_as_they_run_it():
    """Zamba2's two hybrid layers share attention, whose input is twice as wide, and a network."""
    fields = {
        **SIZES, "model_type": "zamba2", "num_hidden_layers": 4, "hybrid_layer_ids": [1, 3],
        "layer_types": ["linear_attention", "hybrid"] * 2, "mamba_ngroups": 1, "n_mamba_heads": 8,
        "num_key_value_heads": 4, "num_mem_blocks": 1,
    }  # fmt: skip
    sizes, roles = sizes_of(fields), ("attention", "mlp")
    again = 3 * 2 * H * A * D + A * D * H + 3 * H * F
    assert sizes.active(*roles) - sizes.entries(*roles) == again
    assert not any("does not run" in note for note in sizes.notes)


def torchs(fields, tokens, **how):
    """Torch's count of a forward pass of the real model, and what it returned."""
    model, rows = real(fields), torch.randint(3, 90, (1, tokens))
    more = {"decoder_input_ids": rows} if model.config.is_encoder_decoder else {}
    return dispatched(model, input_ids=rows, **more, **how)


@pytest.mark.parametrize("model_type", TYPES)
def test_executed_is_what_torch_counts_less_masked_pairs(model_type):
    fields, widths = fields_of(model_type), 15 if model_type == "deepseek_v3" else 16
    for tokens in (4, 23):
        total, result = torchs(fields, tokens, output_attentions=True)
        names = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
        probabilities = [x for name in names for x in getattr(result, name, None) or ()]
        masked = sum(int((x == 0).sum()) for x in probabilities)
        assert len(probabilities) >= fields["num_hidden_layers"]
        executed = flops_of(sizes_of(fields), [tokens], "executed", "forward")
        assert executed == total - 2 * widths * masked  # of a key and a value


@pytest.mark.parametrize("tokens", [4, 23])
def test_a_head_of_one_row_a_sequence_is_counted_once(tokens):
    fields = {**SIZES, **TOKENS, "model_type": "clip_text_model", "projection_dim": 12,
              "architectures": ["CLIPTextModelWithProjection"]}  # fmt: skip
    masked = 3 * 4 * tokens * (tokens - 1) // 2
    executed = flops_of(sizes_of(fields), [tokens], "executed", "forward")
    assert executed == torchs(fields, tokens)[0] - 2 * 16 * masked
    assert "heads of one row a sequence counted for every token: + 2,304" in "; ".join(
        dropped(sizes_of(fields), "palm")
    )


def test_mamba_2_is_its_chunked_form_where_heads_of_a_group_share_keys():
    heads, width, state, groups, chunk, tokens, kernel = 8, 8, 6, 2, 8, 24, 4
    total, _ = torchs(fields_of("mamba2"), tokens)
    channels = heads * width + 2 * groups * state
    padding = 2 * channels * kernel * (kernel - 1)  # torch counts outputs that are cut off
    unshared = 2 * tokens * (heads - groups) * chunk * state  # the file repeats keys
    between_chunks = 2 * heads * (tokens // chunk + 1) ** 2 * width * state
    beyond = padding + unshared + between_chunks
    sizes = sizes_of(fields_of("mamba2"))
    assert flops_of(sizes, [tokens], "executed", "forward") == total - 3 * beyond


def test_gated_delta_layers_have_the_products_that_their_file_solves_for():
    keys, values, dk, dv, chunk, kernel = 2, 4, 6, 8, 64, 4
    fields = fields_of("qwen3_next")
    total, _ = torchs(fields, chunk)
    channels = 2 * keys * dk + values * dv
    padding = 2 * channels * kernel * (kernel - 1)
    solved = 2 * chunk * chunk * values * (dk + dv)  # by triangular solves, 0 to torch
    masked = 4 * 16 * chunk * (chunk - 1)  # 4 heads of one layer, widths 8 + 8, half the pairs
    executed = flops_of(sizes_of(fields), [chunk], "executed", "forward")
    assert executed == total - masked + 2 * (solved - padding)


def test_attention_that_sees_blocks_is_said_to_be_left_out():
    sizes = {"d_model": 32, "d_kv": 8, "num_heads": 4, "num_layers": 2, "d_ff": 48}
    notes = sizes_of({"model_type": "longt5", "vocab_size": 50, **sizes}).notes
    assert "attention of 2 layers is left out: it does not say its mask" in notes


def test_attention_with_wide_keys_recomputes_the_wide_products():
    sizes = sizes_of(fields_of("deepseek_v3"))
    n, pairs = 100, 3 * 4 * 100 * 101 // 2
    forward, train = (flops_of(sizes, [n], "executed", phase) for phase in ("forward", "train"))
    products = forward - 2 * pairs * (10 + 5)
    assert train == 3 * products + 2 * pairs * (4 * 10 + 3 * 5)
