"""Peaks of whole models against the allocator of a fresh process.

Each model is built from a tiny configuration with random weights. A prompt, a training step and a
decoded token are counted as ``attnprof model`` counts them, and run in a process of their own whose
profiler records from the first call on, so that it sees what a token frees of its prompt's cache.
Sizes are none of those at which the tool holds itself against real tensors::

    python reports/run.py memory/models             # everything: ten minutes
    python reports/run.py memory/models llama bert  # these again
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from derive.transformers_models import TINY, is_settable
from rows import fresh, table

from attnprof.errors import AttnprofError
from attnprof.measure.memory import quiet_stderr
from attnprof.models.sources import hub_subject
from attnprof.models.whole import WholeModel, cache_in
from attnprof.trace.events import at_least, bound, peak
from attnprof.trace.solve.count import count

#: The class of each type of model.
MODELS = {
    **{name: f"{kind}ForCausalLM" for name, kind in {
        "llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "mistral": "Mistral",
        "gemma": "Gemma", "gemma2": "Gemma2", "gemma3_text": "Gemma3", "gpt_neo": "GPTNeo",
        "gpt_neox": "GPTNeoX", "gptj": "GPTJ", "opt": "OPT", "phi": "Phi", "phi3": "Phi3",
        "falcon": "Falcon", "mixtral": "Mixtral", "qwen3_moe": "Qwen3Moe", "olmo2": "Olmo2",
        "cohere": "Cohere", "bloom": "Bloom", "starcoder2": "Starcoder2", "stablelm": "StableLm",
        "granite": "Granite", "deepseek_v2": "DeepseekV2", "deepseek_v3": "DeepseekV3",
        "gpt_oss": "GptOss", "mamba": "Mamba", "mamba2": "Mamba2",
    }.items()},
    "gpt2": "GPT2LMHeadModel", "bert": "BertForMaskedLM", "roberta": "RobertaForMaskedLM",
    "electra": "ElectraForMaskedLM", "distilbert": "DistilBertForMaskedLM",
    "albert": "AlbertForMaskedLM", "vit": "ViTForImageClassification",
    "deit": "DeiTForImageClassification", "t5": "T5ForConditionalGeneration",
    "bart": "BartForConditionalGeneration",
}  # fmt: skip
#: What single configurations need besides.
OWN: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 16},
    "mistral": {"sliding_window": 24}, "gemma2": {"query_pre_attn_scalar": 8, "sliding_window": 16},
    "gemma3_text": {"num_hidden_layers": 3, "sliding_window": 16,
                    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "phi3": {"original_max_position_embeddings": 1024}, "t5": {"d_kv": 8},
    "bart": {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
             "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    "deepseek_v2": {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "v_head_dim": 8,
                    "qk_nope_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2,
                    "n_shared_experts": 1, "moe_intermediate_size": 24, "first_k_dense_replace": 1,
                    "n_group": 1, "topk_group": 1, "num_key_value_heads": 4},
    "deepseek_v3": {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "v_head_dim": 8,
                    "qk_nope_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2,
                    "n_shared_experts": 1, "moe_intermediate_size": 24, "first_k_dense_replace": 1,
                    "n_group": 1, "topk_group": 1, "num_key_value_heads": 4},
    "gpt_oss": {"num_experts_per_tok": 2, "sliding_window": 16},
    "mamba": {"state_size": 4}, "mamba2": {"state_size": 4, "num_heads": 8, "head_dim": 8,
                                           "n_groups": 1, "chunk_size": 16},
    "vit": {"image_size": 32, "patch_size": 4}, "deit": {"image_size": 64, "patch_size": 16},
}  # fmt: skip
PACKAGES = ("torch", "transformers")
PHASES = {"forward": "prompt", "train": "training", "decode": "token"}
SHAPES = ({"B": 3, "N": 45}, {"B": 1, "N": 150})
#: Python numbers that torch wraps as tensors while it runs, 4 or 8 bytes each.
SCALARS = 128
_MARK = "attnprof.measured"


@dataclass(frozen=True)
class Row:
    """One comparison, in bytes; ``share`` is told over the allocator's, less one."""

    model: str
    phase: str
    batch_size: int
    tokens: int
    predicted: int
    allocator: int
    share: float
    bound: str
    cause: str
    skipped: str = ""

    @property
    def is_equal(self) -> bool:
        """Whether the two are the same but for numbers that torch wraps."""
        return not self.skipped and abs(self.predicted - self.allocator) <= SCALARS


def subject_of(name: str) -> WholeModel:
    """Return a model of a tiny configuration."""
    usual = transformers.AutoConfig.for_model(name)
    tiny = {key: value for key, value in TINY.items() if is_settable(usual, key)}
    config = transformers.AutoConfig.for_model(name, **{**tiny, **OWN.get(name, {})})
    return hub_subject({**config.to_dict(), "architectures": [MODELS[name]]}, name)


def cases() -> dict[str, str]:
    """Return the class of each type of model."""
    return MODELS


def rows(name: str, _: str) -> Iterator[Row]:
    """Yield every comparison of a model."""
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    subject, peaks = subject_of(name), fresh(peaks_seen, name, OMP_NUM_THREADS="1")
    for phase, called in PHASES.items():
        for shape in SHAPES:
            allocator = peaks.get(f"{phase} {shape}", "it was not measured")
            yield _row(subject, phase, called, shape, allocator)


def _row(
    subject: WholeModel, phase: str, called: str, shape: dict[str, int], allocator: Any
) -> Row:
    about = (subject.name, called, shape["B"], shape["N"])
    try:
        target = subject.target(phase)
        trace = count(target, {name: shape[name] for name in target.symbols}, phase)
    except AttnprofError as error:
        return Row(*about, 0, 0, 0.0, "", "", str(error))
    if isinstance(allocator, str):
        return Row(*about, 0, 0, 0.0, "", "", allocator)
    predicted = peak(trace, phase)
    cause = ""
    if abs(predicted - allocator) > SCALARS:
        cause = "unexplained"
        if trace.routes:
            cause = "experts that were not chosen evenly"
        if (reasons := at_least(trace, phase)) and predicted <= allocator:
            cause = reasons[0]
    is_bound = bound(trace, phase, "peak_bytes")
    return Row(*about, predicted, allocator, predicted / allocator - 1, is_bound, cause)


# -- in a process of its own --------------------------------------------------------------


def peaks_seen(name: str) -> dict[str, Any]:
    """Return the allocator's peaks of every phase and shape, or why there is none."""
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    subject = subject_of(name)
    module = subject.build()
    called, peaks = list[str](), dict[str, Any]()
    with quiet_stderr(), torch.autograd.profiler.profile(use_kineto=True, profile_memory=True) as p:
        for phase in PHASES:
            for shape in SHAPES:
                try:
                    _called_twice(subject, module, phase, shape)
                    called.append(f"{phase} {shape}")
                except Exception as error:  # noqa: BLE001 - a model may raise anything
                    peaks[f"{phase} {shape}"] = f"{type(error).__name__}: {error}"
    return peaks | dict(zip(called, _peaks(p.kineto_results.events()), strict=True))


def _peaks(events: Any) -> Iterator[int]:
    """Yield the most bytes that each marked call held above what was held before it."""
    ordered = sorted(events, key=lambda event: (event.start_ns(), -event.duration_ns()))
    now = 0
    for number, event in enumerate(ordered):
        if event.name() == "[memory]":
            now += event.nbytes()
        elif event.name() == _MARK:
            end, live, most = event.start_ns() + event.duration_ns(), now, now
            for later in ordered[number + 1 :]:
                if later.start_ns() > end:
                    break
                live += later.nbytes() if later.name() == "[memory]" else 0
                most = max(most, live)
            yield most - now


def _called_twice(subject: WholeModel, module: Any, phase: str, shape: dict[str, int]) -> None:
    """Call it once to warm up, and then marked."""
    module.train(phase == "train")
    call = {"forward": _prompt, "train": _step, "decode": _token}[phase]
    mark = torch.autograd.profiler.record_function
    call(subject, module, shape, mark("warming"))
    module.zero_grad()
    call(subject, module, shape, mark(_MARK))
    module.zero_grad()


def _inputs(subject: WholeModel, phase: str, shape: dict[str, int]) -> dict[str, Any]:
    """Return inputs of a pass over the whole text: random tokens, normal pixels, classes of 0."""
    _, named = subject.target(phase).call_inputs(shape, "cpu")

    def filled(x: Any) -> Any:
        if x.is_floating_point():
            return torch.randn_like(x)
        return torch.randint(3, 60, x.shape) if x.dim() > 1 else torch.zeros_like(x)

    return {name: filled(x) for name, x in named.items()}


def _prompt(subject: WholeModel, module: Any, shape: dict[str, int], mark: Any) -> None:
    named = _inputs(subject, "forward", shape)
    with torch.no_grad(), mark:
        kept = module(**named)
    del kept


def _step(subject: WholeModel, module: Any, shape: dict[str, int], mark: Any) -> None:
    named = _inputs(subject, "train", shape)
    with mark:
        result = module(**named)  # held until the end, as in a loop that keeps it
        result.loss.backward()


def _token(subject: WholeModel, module: Any, shape: dict[str, int], mark: Any) -> None:
    named = _inputs(subject, "forward", shape)
    tokens = next(name for name in ("decoder_input_ids", "input_ids") if name in named)
    token, named[tokens] = named[tokens][:, :1], named[tokens][:, 1:]
    with torch.no_grad():
        result = module(**named, use_cache=True)
        kept = {**dict([cache_in(result, subject.name)]), "use_cache": True}
        if (encoded := getattr(result, "encoder_last_hidden_state", None)) is not None:
            kept["encoder_outputs"] = (encoded,)
        del result
        with mark:
            output = module(**{tokens: token}, **kept)
    del output


# -- the page -----------------------------------------------------------------------------


def page(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the page."""
    complete = [row for row in rows if not row.skipped]
    yield "# Peaks of whole models: told, and those of a fresh process"
    yield "One thread. Tiny configurations with random weights, in float32."
    sizes = " and ".join(f"{shape['B']} x {shape['N']}" for shape in SHAPES)
    yield (
        f"A prompt, a training step and a decoded token at {sizes} (sequences x tokens; the token "
        "is the last of these) in a process whose profiler sees the prompt, too. Equal is equal "
        f"but for {SCALARS} bytes of numbers that torch wraps as tensors."
    )
    yield ""
    for phase in PHASES.values():
        yield _summary(phase, [row for row in complete if row.phase == phase])
    others = [row for row in complete if not row.is_equal]
    if others:
        yield ""
        heads = "model | phase | >sequences | >tokens | >bytes told | >allocator | >apart | why"
        yield from table(heads, map(_line, others))
    yield ""
    equal = {row.model for row in complete} - {row.model for row in others}
    yield f"Equal in all that they have: {', '.join(name for name in MODELS if name in equal)}."
    for bound_text in ("at least", "even routing"):
        models = dict.fromkeys(f"{x.model} ({x.phase})" for x in complete if x.bound == bound_text)
        if models:
            yield ""
            yield f'Told as "{bound_text}": {", ".join(models)}.'
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.skipped:
            why = row.skipped.replace(row.model, "it", 1)
            reasons.setdefault(f"{row.phase}, {why}", []).append(row.model)
    for why, names in reasons.items():
        yield ""
        yield f"Not compared, {why}: {', '.join(dict.fromkeys(names))}."


def _line(row: Row) -> tuple[Any, ...]:
    return (
        row.model, row.phase, row.batch_size, row.tokens, f"{row.predicted:,}",
        f"{row.allocator:,}", f"{row.share:+.2%}", row.cause,
    )  # fmt: skip


def _summary(phase: str, complete: list[Row]) -> str:
    floors = [row for row in complete if row.bound == "at least"]
    exact = [row for row in complete if row.bound != "at least"]
    equal = sum(row.is_equal for row in exact)
    near = sum(abs(row.share) <= 0.01 or row.is_equal for row in exact)
    above = sum(row.predicted > row.allocator + SCALARS for row in floors)
    least = min((row.share for row in floors), default=0.0)
    text = (
        f"- {phase}: {len({row.model for row in complete})} models; of {len(exact)} peaks {equal} "
        f"equal, {near} within 1 %"
    )
    if floors:
        text += f'; {len(floors)} told as "at least", {above} above, down to {least:+.1%}'
    return text
