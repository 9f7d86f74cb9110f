"""A comparison's answer in a sentence: who, by how much, from which length on."""

import pytest


def answer(attnprof, words):
    ended = attnprof(f"{words} -f json")
    assert ended.code == 0
    return ended.json["summary"]["answer"]


@pytest.mark.parametrize(("words", "said"), [
    ("compare -a standard,taylorshift --seq 1024,8192",
     "At 8,192 tokens taylorshift needs 0.56× the FLOPs and 0.28× the memory of standard."),
    ("compare -a sdpa,standard --seq 1024 --quantity parameters",
     "At 1,024 tokens sdpa needs 1.0× the parameters of standard."),
    ("compare -a standard,sdpa,linear --seq 1024",
     ("At 1,024 tokens linear needs the fewest FLOPs (0.53× those of standard) and sdpa needs the "
     "least memory (0.11× that of standard).")),
    ("compare -a standard --seq 1024", ""),
    ("crossover --d 64",
     ("For head width 64, taylor-efficient needs fewer FLOPs than taylor-direct from 4,194 tokens "
     "on, and less memory from 2,237 tokens on.")),
    ("crossover --d 8,64 --metric flops",
     ("For head widths 8 and 64, taylor-efficient needs fewer FLOPs than taylor-direct from 78 "
     "tokens (head width 8) to 4,194 (head width 64) on.")),
    ("crossover standard linear --metric memory --kind formula",
     "For head width 64, linear needs less memory than standard from 129 tokens on."),
    ("heads --d-model 512 --seq 1024",
     ("At 1,024 tokens and d_model 512, taylor-direct needs the fewest FLOPs with 1 head of width "
     "512 and taylor-efficient with 512 heads of width 1.")),
    ("heatmap standard efficient",
     ("On average over all sizes, standard needs 30 % more FLOPs than efficient with 1 head and "
     "16 % more with 8 heads.")),
])  # fmt: skip
def test_the_answer_is_a_sentence(attnprof, words, said):
    assert answer(attnprof, words) == said


def test_the_answer_stands_first(attnprof):
    assert attnprof("crossover --d 64").out.startswith("For head width 64, taylor-efficient needs")
