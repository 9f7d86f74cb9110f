"""What a model holds, against the allocator: prompts, and training steps with their optimizer."""

from dataclasses import replace

import pytest
import torch

from attnprof.measure.memory import measure_peak
from attnprof.measure.subject import Subject
from attnprof.models.fits import with_memory
from attnprof.models.memory import training_memory
from attnprof.models.report import model_report
from attnprof.trace.events import peak
from attnprof.trace.solve.count import count
from tests.models.test_hub import subject

SIZES = {"B": 3, "N": 40}
#: Bytes of single numbers that operations wrap for themselves.
SCALARS = 128
OPTIMIZERS = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
PROMPTS = [
    ("bert", "sdpa"), ("t5", "eager"), ("llama", "eager"), ("llama", "sdpa"), ("gemma3", "sdpa"),
    ("gemma3", "eager"), ("mixtral", "sdpa"),
]  # fmt: skip
STEPS = [("bert", "sgd"), ("gpt2", "adamw"), ("t5", "sgd"), ("gemma3", "adamw"), ("mixtral", "sgd")]


def nothing():
    pass


def inputs(model, phase):
    torch.manual_seed(0)
    _, named = model.target(phase).call_inputs(SIZES, "cpu")
    return {name: torch.randint(97, values.shape) for name, values in named.items()}


def held(tensors):
    return sum(x.nbytes for x in tensors if isinstance(x, torch.Tensor))


@pytest.mark.parametrize(("name", "kernel"), PROMPTS)
def test_a_prompt_holds_what_the_allocator_sees(name, kernel):
    model = subject(name, kernel)
    ours = peak(count(model.target(), SIZES, "forward"), "forward")
    module, named = model.build().eval(), inputs(model, "forward")

    def call():
        with torch.no_grad():
            return module(**named)

    found = measure_peak(Subject(module, nothing, nothing, call), "cpu", torch)
    assert ours == pytest.approx(found.bytes, abs=SCALARS)


@pytest.mark.parametrize(("name", "optimizer"), STEPS)
def test_a_training_step_holds_what_the_allocator_sees(name, optimizer):
    model = subject(name)
    memory = training_memory(model, model, count(model.target("train"), SIZES, "train"), optimizer)
    module, named = model.build().train(), inputs(model, "train")
    steps = OPTIMIZERS[optimizer](module.parameters(), lr=1e-3)

    def step():
        result = module(**named)  # held until the end, as in a loop that keeps it
        result.loss.backward()
        steps.step()

    step()
    before = held((*module.parameters(), *module.buffers()))
    before += held(x for state in steps.state.values() for x in state.values())
    found = measure_peak(Subject(module, steps.zero_grad, nothing, step), "cpu", torch)
    assert memory["peak"] == pytest.approx(before + found.bytes, abs=SCALARS)


@pytest.fixture(scope="module")
def reported():
    model = subject("llama", "eager")
    phases = ("forward", "train", "decode")
    return model_report(model, phases, SIZES, optimizer="adamw", limit_s=0)


def test_what_a_phase_needs_is_the_parameters_and_all_that_it_adds(reported):
    total = {
        (row.phase, row.quantity): row.value for row in reported.records if row.part == "total"
    }
    weights = reported.summary["memory"]["parameters"]
    needs = {
        "forward": weights + total["forward", "peak_bytes"],
        "train": reported.summary["memory"]["peak"],
        "decode": weights + total["decode", "cache_bytes"] + total["decode", "peak_bytes"],
    }
    for memory in (needs["forward"] - 1, needs["forward"], needs["train"]):
        found = with_memory(reported, memory).summary
        assert found["needed_bytes"] == needs
        fits = {phase: one["fits"] for phase, one in found["phase_memory"].items()}
        assert fits == {phase: needed <= memory for phase, needed in needs.items()}
        assert found["fits"] == all(fits.values())


def test_an_answer_names_the_phase_that_does_not_fit(reported):
    answer = with_memory(reported, 10).summary["answer"]
    assert answer.startswith("forward does not fit: needs ")
    assert answer.count("there are 10 B") == 3


def test_without_a_size_of_the_cache_a_step_needs_at_least(reported):
    rows = [row for row in reported.records if row.quantity != "cache_bytes"]
    found = with_memory(replace(reported, records=rows), 2**40).summary
    assert "decode fits: needs at least" in found["answer"]
