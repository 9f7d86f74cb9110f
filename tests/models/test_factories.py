"""Whole models of somebody's code, by a function that makes one."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from attnprof.errors import RequestError
from attnprof.models.report import model_report
from attnprof.models.sources import factory_subject
from attnprof.trace.events import totals
from attnprof.trace.solve.count import count

CODE = """
from torch import nn
import transformers as hf

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed = nn.Embedding(97, width)
        self.layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(3)))
        self.head = nn.Linear(width, 97)
    def forward(self, tokens):
        rows = self.layers(self.embed(tokens))
        return self.head((rows @ rows.mT).softmax(-1) @ rows)

def own():
    return Net(16)

def public():
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
    return hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, vocab_size=97))

class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.Conv2d(3, 8, 4, 4)
        self.head = nn.Linear(8, 5)
    def forward(self, x):
        return self.head(self.rows(x).flatten(2).transpose(1, 2).mean(1))

def fast():
    layer = nn.TransformerEncoderLayer(16, 2, 40, batch_first=True)
    return nn.Sequential(nn.Embedding(97, 16), nn.TransformerEncoder(layer, 3))

def sized(width):
    return Net(width)

class Odd(Pictures):
    def forward(self, thing):
        return super().forward(thing.payload)

def number():
    return 3
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    path = tmp_path_factory.mktemp("code") / "mine.py"
    path.write_text(CODE)
    return path


def test_products_are_those_of_the_model_that_the_function_makes(place):
    made = factory_subject(f"{place}:own")
    model = made.build()
    for n in (9, 14):
        with FlopCounterMode(display=False) as counter:
            model(torch.randint(97, (2, n)))
        ours = totals(count(made.target(), {"B": 2, "N": n}, "forward"), "forward")
        assert ours["matmul_flops"] == counter.get_total_flops()


def test_inputs_that_cannot_be_guessed_are_given(place):
    made = factory_subject(f"{place}:Pictures", ["x: B, 3, 8, 16"])
    with FlopCounterMode(display=False) as counter:
        made.build()(torch.randn(2, 3, 8, 16))
    ours = totals(count(made.target(), {"B": 2}, "forward"), "forward")
    assert ours["matmul_flops"] == counter.get_total_flops()
    assert made.notes == ()


def test_what_one_kernel_does_for_a_whole_layer_is_told_apart(place):
    made = factory_subject(f"{place}:fast", ["input: B, N int64"])
    rows = model_report(made, ["forward"], {"B": 2, "N": 9}, limit_s=0.0).records
    products = {row.part: row.value for row in rows if row.quantity == "matmul_flops"}
    b, n, d = 2, 9, 16
    assert products["mlp"] == 3 * 2 * (2 * b * n * d * 40)
    assert products["attention"] == 3 * (4 * (2 * b * n * d * d) + 2 * (2 * b * n * n * d))
    assert products["total"] == products["mlp"] + products["attention"]
    assert any(row.part == "norm" and row.quantity == "flops" and row.value for row in rows)


def test_a_model_of_transformers_keeps_its_cache(place):
    assert factory_subject(f"{place}:public").caches


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("sized", "needs width: write a function"),
        ("number", "returns no nn.Module but 3"),
        ("Odd", '--input "thing: B, 3, 224, 224"'),
    ],
)
def test_what_makes_no_whole_model_is_refused(place, name, told):
    with pytest.raises(RequestError, match=told):
        factory_subject(f"{place}:{name}")
