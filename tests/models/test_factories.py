"""Whole models of somebody's code, by a function that makes one."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from attnprof.errors import RequestError
from attnprof.models.factories import factory_subject
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

def sized(width):
    return Net(width)

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


def test_a_model_of_transformers_keeps_its_cache(place):
    assert factory_subject(f"{place}:public").caches


@pytest.mark.parametrize(("name", "told"), [("sized", "size h"), ("number", "no nn.Module")])
def test_what_makes_no_whole_model_is_refused(place, name, told):
    with pytest.raises(RequestError, match=told):
        factory_subject(f"{place}:{name}")
