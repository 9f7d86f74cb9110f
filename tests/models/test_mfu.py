"""FLOPs a token: pairs against loops over masks, conventions by hand, the written Python file."""

import subprocess
import sys

import pytest
import sympy

import attnprof
from attnprof.errors import RequestError
from attnprof.models.conventions import NAMES_OF_CONVENTIONS, PHASES, count, dropped, terms
from attnprof.models.flops_terms import TOKEN, Mask, expression, per_token, sequence_flops
from attnprof.models.mfu import flops_of, mfu_report, python_file
from attnprof.models.mfu_sizes import sizes_of
from attnprof.trace.sizes import evaluate
from tests.models.test_mfu_counted import CASES, TINY

pytest.importorskip("transformers")

SEES = {
    "token": lambda i, j, _: i == j,
    "full": lambda *_: True,
    "causal": lambda i, j, _: j <= i,
    "window": lambda i, j, size: i - size < j <= i,
    "chunk": lambda i, j, size: j <= i and i // size == j // size,
    "around": lambda i, j, size: abs(i - j) <= size,
}
DENSE = {**TINY, "model_type": "llama", "tie_word_embeddings": False}
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


@pytest.mark.parametrize("model_type", CASES)
def test_every_record_has_a_formula_that_gives_its_number(model_type):
    fields = {**TINY, **CASES[model_type][0], "model_type": model_type}
    for n in (1, 5, 6, 77):
        for row in mfu_report(sizes_of(fields), NAMES_OF_CONVENTIONS, [n]).records:
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
    fields = {**TINY, **CASES["qwen2_moe"][0], "model_type": "qwen2_moe"}
    sizes = sizes_of(fields)
    found = {name: terms(sizes, name) for name in NAMES_OF_CONVENTIONS}
    for name, own in found.items():
        assert own["expert"] == {TOKEN: 6 * 2 * 3 * 32 * 20 * 3}
        assert ("router" in own) == (name != "megatron")
    assert "routers left out" in "; ".join(dropped(sizes, "megatron"))


def test_layers_that_predict_further_tokens_are_counted_by_megatron_where_a_file_names_them():
    fields = {**TINY, **CASES["deepseek_v3"][0], "model_type": "deepseek_v3"}
    without, named = sizes_of(fields), sizes_of({**fields, "num_nextn_predict_layers": 1})
    assert count(without, "executed") == count(named, "executed")
    attention = 32 * 12 + 12 * 4 * 10 + 32 * 14 + 10 * 4 * 11 + 4 * 5 * 32
    experts = 3 * 32 * 20 * (2 + 1)
    more = 6 * (attention + experts + 3 * 32 + 2 * 32**2 + 32 * 96)
    apart = count(named, "megatron")[TOKEN] - count(without, "megatron")[TOKEN]
    assert apart == more
    assert "multi-token prediction" in "; ".join(dropped(named, "executed"))


def test_windows_are_exact_where_executed_and_dense_to_palm():
    sizes = sizes_of({**TINY, "model_type": "mistral", "sliding_window": 5})
    n, widths = 100, 3 * 4 * 16
    pairs = 5 * 6 // 2 + 95 * 5
    assert flops_of(sizes, [n], "executed", "forward") == 2 * (MATRICES * n + widths * pairs)
    assert flops_of(sizes, [n], "palm", "train") == by_hand(n)["palm"]
    assert "windows counted dense" in "; ".join(dropped(sizes, "palm"))


def test_an_indexer_scores_all_pairs_and_attention_the_chosen_ones():
    fields = {
        "model_type": "deepseek_v32", **TINY, **CASES["deepseek_v3"][0], "index_topk": 6,
        "index_n_heads": 2, "index_head_dim": 8,
    }  # fmt: skip
    found = terms(sizes_of(fields), "executed", "forward")
    assert found["scores"] == {Mask("window", 6): 2 * 3 * 4 * (10 + 5)}
    assert found["index scores"] == {Mask("causal"): 2 * 3 * 2 * 8}


TWELVE = [*[*CASES][:11], "deepseek_v3"]


@pytest.mark.parametrize("model_type", TWELVE)
def test_the_written_file_runs_by_itself_and_agrees_at_fifty_shapes(tmp_path, model_type):
    sizes = sizes_of({**TINY, **CASES[model_type][0], "model_type": model_type})
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
    told = subprocess.run([*alone, "-c", setup + probe], capture_output=True, text=True, check=True)
    expected = [
        [[per_token(sequence_flops(count(sizes, name, phase), n), n) for n in shapes]
         for phase in PHASES]
        for name in NAMES_OF_CONVENTIONS
    ]  # fmt: skip
    assert told.stdout.strip() == str(expected)


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
