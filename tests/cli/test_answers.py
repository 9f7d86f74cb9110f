"""A comparison's answer in a sentence: who, by how much, from which length on."""

import pytest

FORMULA = "--no-plot --kind formula"


def answer(attnprof, words):
    ended = attnprof(f"{words} -f json")
    assert ended.code == 0
    return ended.json["summary"]["answer"]


@pytest.mark.parametrize(("words", "said"), [
    ("compare -a standard,taylorshift --seq 1024,8192",
     "At 8,192 tokens taylorshift needs 0.56× the FLOPs and 0.28× the memory of standard."),
    ("compare -a sdpa,standard --seq 1024 --quantity parameters",
     "At 1,024 tokens sdpa needs the same parameters as standard."),
    ("compare -a standard,sdpa,linear --seq 1024",
     ("At 1,024 tokens linear needs the fewest FLOPs (0.53× those of standard) and sdpa needs the "
     "least memory (0.11× that of standard).")),
    ("compare -a standard --seq 1024", ""),
    ("compare -a taylorshift,taylor-direct --seq 100,1 --scope core",  # the longest, not the last
     "At 100 tokens taylor-direct needs the same FLOPs and memory as taylorshift."),
    ("compare -a low-rank,efficient,taylor-efficient --seq 65536 --scope core",
     "At 65,536 tokens low-rank needs the fewest FLOPs and the least memory."),
    ("crossover --d 64",
     ("For head width 64, taylor-efficient needs fewer FLOPs than taylor-direct from 4,194 tokens "
     "on, and less memory from 2,237 tokens on.")),
    ("crossover --d 8,64 --metric flops",
     ("For head widths 8 and 64, taylor-efficient needs fewer FLOPs than taylor-direct from 78 "
     "tokens (head width 8) to 4,194 (head width 64) on.")),
    ("crossover standard low-rank --d 1,32,64 --metric flops",
     ("For head widths 1 to 64, low-rank needs fewer FLOPs than standard from 129 tokens (head "
      "widths 32 and 64) to 143 (head width 1) on.")),
    ("crossover standard linear --metric memory --kind formula",
     "For head width 64, linear needs less memory than standard from 129 tokens on."),
    ("crossover nystromformer linear --metric memory --kind formula",
     ("For head width 64, nystromformer needs less memory than linear from 170 tokens on "
      "(below that they change places, too).")),
    ("heads we --scope layer --d-model 64 --seq 16",
     "At 16 tokens and d_model 64, we needs the same FLOPs with any number of heads."),
    ("heads standard linear --heads 2,8 --d-model 64 --seq 16",
     ("At 16 tokens and d_model 64, among these numbers of heads, standard needs the fewest FLOPs "
      "with 2 heads of width 32 and linear with 8 heads of width 8.")),
    ("heads linear --quantity peak_entries",
     ("At 1,024 tokens and d_model 512, linear needs the least memory with 32 heads of width 16 or "
      "64 heads of width 8.")),
    ("heads --heads 2", ""),
    (f"heatmap sparse neural {FORMULA} --seq 64 --d-model 64 --heads 1,4 --quantity state_entries",
     ("On average over all sizes, sparse needs the same state entries as neural with 1 head and "
      "the same with 4 heads.")),
    (f"heatmap taylorshift standard {FORMULA} --phase prefill --heads 1 --seq 16,100 --d-model 7,8",
     "On average over all sizes, taylorshift needs 0.0564 % more FLOPs than standard with 1 head."),
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
