"""003's experiment: its language, its losses, and what comes out of a tiny run."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from attnprof.papers.approximation import distillation
from attnprof.papers.approximation.distillation import (
    BEGIN,
    END,
    FIRST,
    FULL,
    PAD,
    QUICK,
    Corpus,
    Examples,
    answers,
)
from attnprof.papers.approximation.distilled import distill_report, stretched

TINY = replace(QUICK, tokens=8, width=8, steps=2, printed_steps=2, tested=2)


def silent(*_):
    pass


def translated(source, one, other):
    """A sentence by the rules, a word at a time."""
    words = [word - FIRST for word in source]
    half = len(one) // 2
    placed = list(words)
    for left in range(0, len(words) - 1, 2):
        if words[left] < half <= words[left + 1]:
            placed[left : left + 2] = words[left + 1], words[left]
    book = one if words[0] % 2 == 0 else other
    return [book[word] + FIRST for word in placed]


def test_translations_follow_the_rules_word_by_word():
    vocabulary, tokens = 13, 12
    made = torch.Generator().manual_seed(3)
    sources, targets = Corpus(vocabulary, 5).pairs(40, tokens, made)
    own = torch.Generator().manual_seed(5)
    books = [torch.randperm(vocabulary - FIRST, generator=own).tolist() for _ in range(2)]
    lengths = set()
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        length = source.index(END)
        lengths.add(length)
        assert source[length + 1 :] == [PAD] * (tokens - length - 1)
        expected = translated(source[:length], *books)
        said = target[1 : 1 + length]
        assert target[0] == BEGIN
        # a pair that the end of the sentence cuts may have its other word beyond it
        whole = length - length % 2
        assert said[:whole] == expected[:whole]
    assert len(lengths) > 2


def test_the_loss_is_the_document_s_by_loops():
    made = torch.Generator().manual_seed(0)
    own, goal = torch.randn(2, 6, 5, generator=made).double()
    target = torch.tensor([[1, 3, 4, 2, PAD, 4, 1]])
    examples = Examples(torch.zeros(1, 7), target)
    soft = hard = 0.0
    for row, wanted in enumerate(target[0, 1:].tolist()):
        p = [math.exp(x / 3) for x in goal[row].tolist()]
        q = [math.exp(x / 3) for x in own[row].tolist()]
        p, q = [x / sum(p) for x in p], [x / sum(q) for x in q]
        soft += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)) / 6
        if wanted != PAD:
            z = [math.exp(x) for x in own[row].tolist()]
            hard -= math.log(z[wanted] / sum(z)) / 5
    loss = distillation._distilled_to(goal, own, examples)
    assert float(loss) == pytest.approx(0.5 * hard + 0.5 * 9 * soft)


@pytest.fixture(scope="module")
def found():
    said = []
    report = distill_report(TINY, 0, 1, {}, silent, said.append, timed=False)
    return report, said


def test_every_model_has_a_record_a_length_and_linformer_its_reason(found):
    report, said = found
    rows = {(r.setting, r.model, r.seq_len): r for r in report.records}
    assert len(rows) == len(report.records) == 2 * (5 + 4)
    for (_, model, tokens), row in rows.items():
        if (model, tokens) == ("linformer", 16):
            assert row.skipped.startswith("linformer was built for at most 8 tokens and got 16")
            continue
        assert row.skipped is None
        assert row.cross_entropy > 0
        assert row.matmul_flops > 0
        assert (row.mse_teacher == 0) == (model == "teacher")
        assert row.steps == 2
    assert len(said) == 9
    one = {claim["claim"]: claim for claim in report.summary["claims"]}
    assert one["003-BEST"]["suffices"] is False  # two steps teach nothing
    assert one["003-LIN-GEN"]["suffices"] is True


def test_the_same_seed_gives_the_same_numbers_and_leaves_torch_s_generator(found):
    before = torch.get_rng_state()
    again = distill_report(TINY, 0, 1, {}, silent, silent, timed=False)
    assert again.records == found[0].records
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("setting", distillation.SETTING_NAMES)
def test_a_stretched_model_computes_the_same(setting):
    with torch.random.fork_rng(devices=[]):
        trained, short, _ = distillation.experiment(setting, TINY, 1, silent)
    for one in trained:
        assert torch.equal(answers(one.model, short), answers(stretched(one, 16), short))


def test_the_teacher_as_printed_is_held_to_its_own_first_answers():
    with torch.random.fork_rng(devices=[]):
        trained, short, _ = distillation.experiment("printed", replace(TINY, printed_steps=1), 0,
                                                    silent)  # fmt: skip
        teacher = trained[0]
        torch.default_generator.manual_seed(teacher.seed)
        fresh = distillation.build(teacher.config)
        goal = answers(fresh, short)
        fresh.train()  # its loss is what dropout changes, nothing else
        loss = F.mse_loss(fresh(*short.called_with).flatten(0, 1), goal)
    assert teacher.losses[0] > 0
    assert float(loss.detach()) == pytest.approx(teacher.losses[0], rel=1.0)


def test_sizes_are_the_document_s_shares():
    for setting in distillation.SETTING_NAMES:
        params = {
            name: dict(FULL.config(name, setting).attention[0].params)
            for name in ("linformer", "performer", "longformer")
        }
        assert params["linformer"]["proj_len"] * 16 == FULL.tokens
        assert params["longformer"]["window"] * 16 == FULL.tokens
        assert params["performer"]["num_features"] * 2 == FULL.width
