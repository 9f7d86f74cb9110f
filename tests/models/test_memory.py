"""What a model holds, against the allocator: prompts, training steps, tensors at a peak."""

from dataclasses import replace

import pytest
import torch

from attnprof.measure.memory import measure_peak
from attnprof.measure.subject import Subject
from attnprof.models.comparison import with_memory
from attnprof.models.few_layers import run_by_few
from attnprof.models.memory import largest_at_peak, peak_fields, training_memory
from attnprof.models.phases import run_of
from attnprof.models.report import model_report
from attnprof.models.sources import hub_subject
from attnprof.models.whole import WholeModel, cache_in
from attnprof.render.formats import render
from attnprof.trace.events import bound, peak
from attnprof.trace.solve.count import count
from tests.models.test_hub import subject
from tests.models.tiny import SIZES as SMALL
from tests.models.tiny import small
from tests.oracles.memory import allocator_peak

SIZES = {"B": 3, "N": 40}
#: Bytes of single numbers that operations wrap for themselves.
SCALARS = 128
OPTIMIZERS = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
PROMPTS = [
    ("bert", "sdpa"), ("t5", "eager"), ("llama", "eager"), ("llama", "sdpa"),
    ("gemma3_text", "sdpa"), ("gemma3_text", "eager"), ("mixtral", "sdpa"),
]  # fmt: skip
STEPS = [
    ("bert", "sgd"), ("gpt2", "adamw"), ("t5", "sgd"), ("gemma3_text", "adamw"), ("mixtral", "sgd"),
]  # fmt: skip
#: Gemma 3 has windows of fewer tokens than the prompt has.
TOKENS = ["gpt2", "llama", "gemma3_text", "t5"]


def nothing():
    pass


def inputs(model, phase):
    torch.manual_seed(0)
    _, named = model.target(phase).call_inputs(SIZES, "cpu")
    return {name: torch.randint(96, values.shape) for name, values in named.items()}


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

    measured = measure_peak(Subject(module, nothing, nothing, call), "cpu", torch)
    assert ours == pytest.approx(measured.bytes, abs=SCALARS)


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
    measured = measure_peak(Subject(module, steps.zero_grad, nothing, step), "cpu", torch)
    assert memory["peak"] == pytest.approx(before + measured.bytes, abs=SCALARS)


@pytest.mark.parametrize("name", TOKENS)
def test_a_decoded_token_frees_the_keys_and_values_that_it_replaces(name):
    model = subject(name, "sdpa")
    ours = peak(count(model.target("decode"), SIZES, "decode"), "decode")
    module, named = model.build().eval(), inputs(model, "forward")
    tokens = next(key for key in ("decoder_input_ids", "input_ids") if key in named)
    one = {tokens: named[tokens][:, :1]}
    named[tokens] = named[tokens][:, 1:]

    def prompt():
        result = module(**named)
        encoded = getattr(result, "encoder_last_hidden_state", None)
        more = {} if encoded is None else {"encoder_outputs": (encoded,)}
        return {**dict([cache_in(result, name)]), **more}

    with torch.no_grad():
        measured = allocator_peak(lambda kept: module(**one, **kept, use_cache=True), prompt)
    assert ours == pytest.approx(measured, abs=SCALARS)


def vit(patch):
    sizes = {"num_hidden_layers": 1, "image_size": 6 * patch, "patch_size": patch}
    return hub_subject({"model_type": "vit", **SMALL, **sizes}, "vit")


@pytest.mark.parametrize(("patch", "known"), [(16, True), (4, False)])
def test_a_step_on_images_holds_what_the_allocator_sees_or_is_at_least_that(patch, known):
    model, sizes = vit(patch), {"B": 3, "N": 1}
    target = model.target("train")
    trace = count(target, sizes, "train")
    module, (_, named) = model.build().train(), target.call_inputs(sizes, "cpu")
    torch.nn.init.normal_(named["pixel_values"])

    def step():
        module(**named).loss.backward()

    measured = measure_peak(Subject(module, module.zero_grad, nothing, step), "cpu", torch).bytes
    assert bound(trace, "train", "peak_bytes") == ("exact" if known else "at least")
    assert peak(trace, "train") <= measured + SCALARS
    assert not known or peak(trace, "train") == pytest.approx(measured, abs=SCALARS)


@pytest.mark.parametrize("limit_s", [0, 60])
def test_a_peak_with_unknown_scratch_is_at_least_that_wherever_it_is_shown(limit_s):
    report = model_report(vit(4), ["train"], {"B": 3, "N": 1}, limit_s=limit_s)
    bounds = {row.quantity: row.bound for row in report.records if row.part == "total"}
    assert (bounds["peak_bytes"], bounds["flops"]) == ("at least", "exact")
    assert report.summary["memory_bound"] == "at least"
    assert "convolution_backward" in " ".join(report.summary["phases"]["train"]["notes"])
    shown = {fmt: render(report, fmt) for fmt in ("table", "csv", "markdown", "json")}
    lines = [line for line in shown["table"].splitlines() if "peak " in line]
    assert all("at least" in line for line in lines[-2:])
    for fmt in ("csv", "markdown", "json"):
        rows = [row for row in shown[fmt].splitlines() if "peak" in row or "at least" in row]
        assert any("at least" in row for row in rows), fmt


def test_flops_without_those_of_an_operation_are_at_least_those_without_formulas_too():
    class Singular(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.svdvals(x)

    whole = WholeModel("singular", Singular, {"x": "B, 5, 5"})
    report = model_report(whole, ["forward"], {"B": 2, "N": 1}, limit_s=0)
    assert {row.bound for row in report.records if row.quantity == "flops"} == {"at least"}
    assert report.summary["phases"]["forward"]["uncounted"]
    table = render(report, "table")
    assert "FLOPs are at least these: not counted are aten._linalg_svd" in table


_SEES = {**SMALL, "image_size": 28, "patch_size": 14}
PARTLY = {
    "llava": {
        "model_type": "llava", "image_token_index": 5,
        "text_config": {"model_type": "llama", **SMALL},
        "vision_config": {"model_type": "clip_vision_model", **_SEES},
    },
    "gemma3": {
        "model_type": "gemma3", "image_token_id": 5, "mm_tokens_per_image": 4,
        "text_config": SMALL,
        "vision_config": {"model_type": "siglip_vision_model", **_SEES},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PARTLY)
def test_what_a_step_of_text_leaves_out_has_no_gradient_and_no_state(name):
    made = hub_subject(PARTLY[name], name)
    report = model_report(made, ["train"], SIZES, limit_s=0.0)
    module, named = made.build().train(), inputs(made, "train")
    steps = torch.optim.AdamW(module.parameters())
    module(**named).loss.backward()
    steps.step()
    graded = [x.grad for x in module.parameters() if x.grad is not None]
    assert len(graded) < len(list(module.parameters()))
    assert report.summary["memory"]["gradients"] == held(graded)
    states = [x for state in steps.state.values() for x in state.values()]
    assert report.summary["memory"]["optimizer"] == held(states)
    left_out = sum(x.numel() for x in module.parameters() if x.grad is None)
    assert any(note.startswith(f"{left_out:,} parameters") for note in report.summary["notes"])
    assert any("vision_tower" in note for note in report.summary["notes"])


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
        summary = with_memory(reported, memory).summary
        assert summary["needed_bytes"] == needs
        fits = {phase: one["fits"] for phase, one in summary["phase_memory"].items()}
        assert fits == {phase: needed <= memory for phase, needed in needs.items()}
        assert summary["fits"] == all(fits.values())


def test_an_answer_names_the_phase_that_does_not_fit(reported):
    answer = with_memory(reported, 10).summary["answer"]
    assert answer.startswith("forward does not fit: needs ")
    assert answer.count("there are 10 B") == 3


def test_without_a_size_of_the_cache_a_step_needs_at_least(reported):
    rows = [row for row in reported.records if row.quantity != "cache_bytes"]
    summary = with_memory(replace(reported, records=rows), 2**40).summary
    assert "decode fits: needs at least" in summary["answer"]


@pytest.fixture
def six():
    return small("llama", num_hidden_layers=6, vocab_size=5000)


def test_logits_of_all_tokens_are_most_of_a_forward_pass(six):
    run = run_of(six, "forward", {"B": 3, "N": 70})
    first = largest_at_peak(run.trace, "forward")[0]
    assert (first.module, first.count, first.bytes) == ("lm_head", 1, 4 * 3 * 70 * 5000)


def test_tensors_of_alike_layers_are_one_entry():
    few_words = small("llama", num_hidden_layers=6, vocab_size=16)
    trace = run_of(few_words, "train", {"B": 2, "N": 128}).trace
    held = largest_at_peak(trace, "train")
    assert held[0].count % 6 == 0  # of all layers
    assert held[0].module.startswith("model.layers.*.")
    assert sum(one.bytes for one in held) <= peak(trace, "train")


@pytest.mark.parametrize("phase", ["forward", "train"])
def test_a_run_of_few_layers_holds_what_a_run_of_all_does(six, phase):
    sizes = {"B": 2, "N": 64}
    whole = run_of(six, phase, sizes).trace
    few, _ = run_by_few(six, phase, sizes)
    assert largest_at_peak(few, phase) == largest_at_peak(whole, phase)


def test_the_formula_of_a_shape_is_the_value_there(six):
    report = model_report(six, ["forward", "decode"], {"B": 2, "N": 96})
    rows = {r.phase: r for r in report.records if (r.part, r.quantity) == ("total", "peak_bytes")}
    for phase in ("forward", "decode"):
        formula = report.summary["phases"][phase]["peak"]["formula"]
        assert "Max" not in formula
        assert eval(formula, {"B": 2, "N": 96, "L": 6, "Min": min}) == rows[phase].value


def test_without_formulas_there_are_tensors_alone(six):
    run = run_of(six, "forward", {"B": 1, "N": 16})
    fields = peak_fields(run.trace, "forward", None, {"B": 1, "N": 16})
    assert fields["formula"] is None
    assert fields["tensors"]
