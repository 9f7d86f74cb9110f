"""``tradeoff``: tables, figures, somebody's tensors, and rows that say why they are empty."""

import dataclasses

import pytest
import torch
from safetensors.torch import save_file

from attnprof import registry
from attnprof.errors import RequestError
from attnprof.measure.tradeoff_inputs import supplied
from attnprof.papers.approximation import distillation

SMALL = "--seq 16 --d 4 --no-time"


def tensors(**shapes):
    made = torch.Generator().manual_seed(0)
    whole = {"q": (1, 2, 6, 4), "k": (1, 2, 6, 4), "v": (1, 2, 6, 4), **shapes}
    return {name: torch.randn(shape, generator=made) for name, shape in whole.items()}


def test_every_mechanism_has_a_row_on_every_input(attnprof):
    report = attnprof(f"tradeoff {SMALL} --seeds 1 -f json").json
    rows = report["records"]
    assert {row["mechanism"] for row in rows} == set(registry.names())
    assert {row["input"] for row in rows} == {"random", "peaked", "local", "low-rank"}
    for row in rows:
        compared = registry.get(row["mechanism"]).abilities.attend
        assert compared is (row["skipped"] is None) is (row["error_relative"] is not None)
        assert compared or "no queries and keys" in row["skipped"]
        assert row["error_relative"] is None or row["relation"]
    assert report["summary"]["answer"]


def test_what_cannot_do_the_request_is_a_row_with_its_reason(attnprof):
    ended = attnprof("tradeoff -a standard -a linformer,performer --built-for 8 --input random "
                     f"{SMALL} -f json")  # fmt: skip
    assert ended.code == 0
    skipped = {row["mechanism"]: row["skipped"] for row in ended.json["records"]}
    assert "at most 8 tokens and got 16" in skipped.pop("linformer")
    assert set(skipped.values()) == {None}
    causal = attnprof(f"tradeoff -a standard,low-rank --causal --input local {SMALL}")
    assert "not compared: low-rank: normalises its key factor" in causal.out
    alone = attnprof(f"tradeoff -a he {SMALL}")
    assert (alone.code, alone.out) == (2, "")
    assert "he has no queries and keys" in alone.err


def test_a_file_gives_its_tensors_and_sizes(attnprof):
    qkv = tensors()
    save_file(qkv, "mine.safetensors")
    torch.save({**qkv, "step": 3}, "mine.pt")
    one, other = (
        attnprof(f"tradeoff -a longformer --set window=1,6 --input {name} --no-time -f json").json
        for name in ("mine.safetensors", "mine.pt")
    )
    assert [row["seq_len"] for row in one["records"]] == [6, 6]
    errors = [row["error_relative"] for row in one["records"]]
    assert errors[0] > 0.1
    assert errors[1] < 1e-9
    assert errors == [row["error_relative"] for row in other["records"]]


WRONG = {
    "no k": ({"q": torch.ones(1, 1, 2, 2)}, "has no 'k': it holds q"),
    "three axes": (tensors(q=(2, 6, 4)), "q has the shape (2, 6, 4)"),
    "widths": (tensors(k=(1, 2, 6, 8)), "the head width of q, k and v"),
    "tokens": (tensors(v=(1, 2, 5, 4)), "the number of tokens"),
    "heads": (tensors(k=(1, 3, 6, 4), v=(1, 3, 6, 4)), "the number of heads"),
    "batches": (tensors(q=(2, 2, 6, 4)), "the batch"),
    "whole numbers": ({**tensors(), "v": torch.ones(1, 2, 6, 4).long()}, "v is"),
    "NaN": ({**tensors(), "q": torch.full((1, 2, 6, 4), torch.nan)}, "48 of 48 numbers that are"),
    "no names": (torch.ones(3), "not tensors by name"),
    "code": ({"q": print}, "could run code"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_file_is_refused_with_what_is_wrong(tmp_path, what):
    given, message = WRONG[what]
    torch.save(given, tmp_path / "mine.pt")
    with pytest.raises(RequestError) as refusal:
        supplied(str(tmp_path / "mine.pt"))
    assert message in str(refusal.value)


def test_a_damaged_file_is_no_traceback(attnprof, tmp_path):
    for name in ("mine.pt", "mine.safetensors"):
        (tmp_path / name).write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}")
        ended = attnprof(f"tradeoff -a linear --input {name} --no-time")
        assert ended.code == 2
        assert f"{name} is no" in ended.err
    far = attnprof("tradeoff -a linear --input random --seq 200000 --d 1 --no-time")
    assert (far.code, far.out) == (3, "")
    assert "ask for fewer tokens" in far.err
    assert "its own sizes" in attnprof("tradeoff --input mine.pt --seq 8").err


def test_times_are_measured_in_turns_and_a_figure_is_drawn(attnprof, tmp_path):
    words = "tradeoff -a standard,longformer --input local,random --seq 16 --d 4 --samples 3"
    ended = attnprof(f"{words} --max-time 0.01 --over time --plot pareto.svg -f csv")
    assert all(float(row["median_s"]) > 0 for row in ended.csv)
    assert "<svg" in (tmp_path / "pareto.svg").read_text(encoding="utf-8")


def test_a_mechanism_that_the_first_input_does_not_allow_is_timed_on_the_next(attnprof):
    for name, tokens in (("long.pt", 12), ("short.pt", 6)):
        torch.save(tensors(**dict.fromkeys("qkv", (1, 2, tokens, 4))), name)
    words = "tradeoff -a linformer --set proj_len=2 --built-for 8 --input long.pt,short.pt"
    first, second = attnprof(f"{words} --samples 3 --max-time 0.01 -f json").json["records"]
    assert "at most 8 tokens" in first["skipped"]
    assert second["median_s"] > 0


def test_the_experiment_runs_and_says_what_it_answers(attnprof, tmp_path, monkeypatch):
    tiny = {"tokens": 8, "width": 8, "steps": 2, "printed_steps": 2, "tested": 2}
    monkeypatch.setattr(distillation, "QUICK", dataclasses.replace(distillation.QUICK, **tiny))
    ended = attnprof("tradeoff --distill --quick --plot distilled.svg")
    assert ended.code == 0
    assert "003-LIN-GEN" in ended.out
    assert "not run: fair, linformer at 16 tokens: linformer was built for at most 8" in ended.out
    assert "fair, seed 0: performer after 2 steps" in ended.err
    assert "<svg" in (tmp_path / "distilled.svg").read_text(encoding="utf-8")
    assert "leave out --seq" in attnprof("tradeoff --distill --seq 8").err
    assert "leave out --norms" in attnprof("tradeoff --distill --norms spread").err
    assert "--distill --quick" in attnprof("tradeoff --quick").err
