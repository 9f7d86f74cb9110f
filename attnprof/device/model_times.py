"""Times of a whole model's prompt, training step and decoded token, predicted or measured.

``fit`` bounds a model's speed by ceilings; a time needs the model's own operations. The call of a
phase is built from transformers' code, once for both uses: on fake tensors its operations are
listed and priced by a calibration, on real tensors with random weights it is timed. Entry points:
:func:`predicted_time` and :func:`measured_time`; :func:`with_speeds` adds both to ``fit``'s report.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from attnprof.blocks.cache import tensors_within
from attnprof.device.calibration import load, load_by_words
from attnprof.device.ceilings import THIS_MACHINE, device_named, local_name, stated_ceilings
from attnprof.device.machine_reading import MachineReading, read_machine
from attnprof.device.operations import Demand, list_operations
from attnprof.device.prediction import Predictor
from attnprof.errors import AttnprofError, CannotRunError
from attnprof.measure.clocks import Clock, cuda_clock, on_device, sample
from attnprof.measure.environment import conditions_now
from attnprof.measure.request import Budget
from attnprof.measure.statistics import estimate_median
from attnprof.measure.subject import Subject, default_dtype
from attnprof.models.fit_layout import FitModel
from attnprof.models.fit_options import FitOptions
from attnprof.models.fit_parts import weight_format
from attnprof.models.fit_speed import with_checks, with_speed
from attnprof.models.names import released
from attnprof.models.sources import hub_subject
from attnprof.models.whole import WholeModel, cache_in
from attnprof.record import Report
from attnprof.trace.run.worlds import quiet_hub
from attnprof.workload import DTYPES

PHASES = ("prefill", "train", "decode")
#: Names of inputs that are a decoder's tokens; tokens are drawn below the second number.
_TOKEN_INPUTS, _VOCABULARY = ("decoder_input_ids", "input_ids"), 60


@dataclass(frozen=True)
class PhaseTime:
    """Seconds of a call, with the low and high end of a 95 % interval."""

    seconds: float
    low_s: float
    high_s: float


def predicted_time(
    predictor: Predictor, whole: WholeModel, phase: str, sizes: Mapping[str, int], dtype: str
) -> PhaseTime:
    """Return the predicted time of a phase at sizes ``B`` (texts) and ``N`` (tokens).

    Raises :class:`CannotRunError` for a model whose code depends on values.
    """
    layers = "forward" if phase == "prefill" else phase  # phases of checked layers
    return PhaseTime(*predictor.interval(phase_demand(whole, phase, sizes, dtype), dtype, layers))


def phase_demand(whole: WholeModel, phase: str, sizes: Mapping[str, int], dtype: str) -> Demand:
    """Return the operations of a phase's call, listed on fake tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with quiet_hub(), FakeTensorMode(allow_non_fake_inputs=True), _fake_tensors_as_real():
        try:
            subject = phase_subject(whole, phase, sizes, dtype)
            subject.prepare()
            return list_operations(subject)
        except RuntimeError as error:
            raise CannotRunError(
                f"{whole.name} does not run without values in {phase}: {error}"
            ) from error


def measured_time(
    whole: WholeModel, phase: str, sizes: Mapping[str, int], dtype: str, budget: Budget,
    device: str = "cpu",
) -> PhaseTime:  # fmt: skip
    """Return the median time of a phase with random weights, and the interval of the median."""
    with on_device(device):
        with torch.device(device):
            subject = phase_subject(whole, phase, sizes, dtype)
        clock = cuda_clock(torch, device) if device.startswith("cuda") else Clock()
        times = sample(clock, subject.prepare, subject.call, budget)
    median = estimate_median([timed.wall_s for timed in times])
    return PhaseTime(median.median_s, median.low_s, median.high_s)


def phase_subject(whole: WholeModel, phase: str, sizes: Mapping[str, int], dtype: str) -> Subject:
    """Return a model with random weights and the call of a phase, on torch's default device.

    ``prefill``: a prompt, with the logits of its last token. ``train``: a forward and a backward
    pass. ``decode``: one token after ``N - 1`` others, whose cache is restored before each call.
    """
    torch.manual_seed(0)
    with default_dtype(dtype):
        module = whole.build()
        inputs = _inputs(whole, phase, sizes)
    module.train(phase == "train")
    if phase == "train":

        def step() -> None:
            module(**inputs).loss.backward()

        clear = partial(module.zero_grad, set_to_none=True)
        return Subject(module, clear, clear, step)
    if phase == "decode":
        return _decode_subject(whole, module, inputs)
    logits = {whole.last_logits: 1} if whole.last_logits else {}
    call = torch.no_grad()(partial(module, **inputs, **logits))
    return Subject(module, lambda: None, lambda: None, call)


def _decode_subject(whole: WholeModel, module: Any, inputs: dict[str, Any]) -> Subject:
    """Return the call that decodes the last token of ``inputs``, after the others fill a cache.

    Raises :class:`CannotRunError` for a model without a cache.
    """
    name = next((name for name in _TOKEN_INPUTS if name in inputs), "")
    if not whole.caches or not name:
        raise CannotRunError(f"{whole.name} keeps no cache: no token is decoded after others")
    token, inputs[name] = inputs[name][:, -1:], inputs[name][:, :-1]
    with torch.no_grad():
        result = module(**inputs, use_cache=True)
    cache_name, cache = cache_in(result, whole.name)
    cache_inputs: dict[str, Any] = {"use_cache": True}
    if (encoded := getattr(result, "encoder_last_hidden_state", None)) is not None:
        cache_inputs["encoder_outputs"] = (encoded,)

    tensors = list(tensors_within(cache, set()))
    contents = [(x, x.clone(), _writes(x)) for x in tensors]

    def prepare() -> None:  # caches that grow make new tensors, others are restored
        for index, (x, before, version) in enumerate(contents):
            if _writes(x) != version:
                x.copy_(before)
                contents[index] = x, before, _writes(x)
        cache_inputs[cache_name] = copy.deepcopy(cache, {id(x): x for x in tensors})

    @torch.no_grad()
    def call() -> Any:
        return module(**{name: token}, **cache_inputs)

    return Subject(module, prepare, prepare, call)


def _writes(x: torch.Tensor) -> int:
    """Return the number of times a tensor was written in place."""
    return x._version  # noqa: SLF001 - as torch's notes on autograd name it


def _inputs(whole: WholeModel, phase: str, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return random inputs of a phase: tokens, normal pixels, and labels for training."""
    target = whole.target("train" if phase == "train" else "forward")
    _, fakes = target.call_inputs(sizes, str(torch.get_default_device()))

    def random_like(x: Any) -> Any:
        if x.is_floating_point():
            return torch.randn(x.shape, dtype=x.dtype)
        return torch.randint(_VOCABULARY if x.dim() > 1 else 1, x.shape)

    return {name: random_like(x) for name, x in fakes.items()}


@contextmanager
def _fake_tensors_as_real() -> Iterator[None]:
    """Patch transformers to run without values: no packed texts, as many rows for each expert."""
    from transformers import masking_utils
    from transformers.integrations import moe

    stand_ins = {
        (masking_utils, "find_packed_sequence_indices"): lambda *_, **__: None,
        (moe, "_grouped_mm"): lambda rows, weight, *_, **__: _EvenExperts.apply(rows, weight),  # type: ignore[no-untyped-call]
    }
    with ExitStack() as stack:
        for (module, name), function in stand_ins.items():
            if hasattr(module, name):
                stack.enter_context(patch.object(module, name, function))
        yield


class _EvenExperts(torch.autograd.Function):
    """Products of rows (S, k) with matrices (E, k, n) of experts, S / E rows for each."""

    @staticmethod
    def forward(ctx: Any, rows: Any, weight: Any) -> Any:
        """Return the products, (S, n)."""
        ctx.save_for_backward(rows, weight)
        out = rows.new_empty((rows.shape[0], weight.shape[2]))
        for expert, slots in _expert_rows(rows, weight):
            torch.mm(rows[slots], weight[expert], out=out[slots])
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Return the gradients of rows (S, k) and matrices (E, k, n)."""
        (grad,), (rows, weight) = grads, ctx.saved_tensors
        rows_grad, weight_grad = torch.empty_like(rows), torch.zeros_like(weight)
        for expert, slots in _expert_rows(rows, weight):
            torch.mm(grad[slots], weight[expert].T, out=rows_grad[slots])
            torch.mm(rows[slots].T, grad[slots], out=weight_grad[expert])
        return rows_grad, weight_grad


def _expert_rows(rows: Any, weight: Any) -> Iterator[tuple[int, slice]]:
    """Yield the index of each expert that has rows, and the slice of its rows."""
    total, experts = rows.shape[0], weight.shape[0]
    for expert in range(experts):
        start, end = (index * total // experts for index in (expert, expert + 1))
        if end > start:
            yield expert, slice(start, end)


# -- fit's report --------------------------------------------------------------------------------

#: Samples and seconds of timing a phase.
BUDGET = Budget(samples=8, min_time_s=0.2, max_time_s=10.0, warmup_s=0.2)


def with_speeds(
    report: Report, model: FitModel, options: FitOptions, on: str, path: Path | None, *,
    measured: bool,
) -> Report:  # fmt: skip
    """Return ``fit``'s report with the speed of a model on a device.

    Bounds come from the figures of the device's maker, predicted times from a calibration in
    ``path`` or the cache folder, and times of this machine if ``measured``. Raises
    :class:`RequestError` for a device with neither figures nor a calibration.
    """
    name, is_here = local_name(on), on in THIS_MACHINE
    calibration = (
        load(name, torch.get_num_threads(), path) if is_here else load_by_words(name, path)
    )
    device = stated_ceilings(name) if is_here or calibration is not None else device_named(on)
    release = released().get(model.source.lower())
    whole = hub_subject(model.fields, model.sizes.name)
    dtype = weight_format(model, options)[0]
    if device is not None:
        report = with_speed(report, model, options, device)
        folder = model.source.removesuffix("config.json").rstrip("/") or "."
        report = with_checks(report, release.hub if release else folder, options)
    if calibration is not None:
        reading = read_machine(calibration, conditions_now()) if is_here else MachineReading()
        predictor = Predictor(calibration, reading=reading)
        time_of = partial(predicted_time, predictor)
        flag = "cuda" if calibration.device.startswith("cuda") else "cpu"
        source = f"{predictor.made_of}; to check it there: --on {flag} --measure"
        report = with_times(report, whole, options, dtype, "calibrated", time_of, source)
    elif is_here:
        note = f"{name} was not calibrated with so many threads: type attnprof calibrate"
        speed = {"device": name, "figures": [], "notes": [], **report.summary.get("speed", {})}
        speed["notes"] = [*speed["notes"], note]
        report = replace(report, summary={**report.summary, "speed": speed})
    if measured:
        time_of = partial(measured_time, budget=BUDGET, device=on)
        report = with_times(report, whole, options, dtype, "measured", time_of, f"{name}, here")
    return report


def with_times(
    report: Report, whole: WholeModel, options: FitOptions, dtype: str, basis: str,
    time_of: Callable[..., PhaseTime], source: str,
) -> Report:  # fmt: skip
    """Return ``fit``'s report with the figures of a basis, ``calibrated`` or ``measured``.

    ``time_of``: a function of model, phase, sizes and number format. ``source``: a text for the
    notes, after the device's name. A model without times is noted.
    """
    speed: dict[str, Any] = {"device": source.partition(",")[0], "figures": [], "notes": []}
    speed |= report.summary.get("speed", {})
    tokens, batch = options.seq_len, options.batch_size
    try:
        if options.ranks > 1:
            raise CannotRunError("times are of one device, not of several ranks")
        if dtype not in DTYPES:
            raise CannotRunError(f"torch has no model in {dtype}: type --dtype bfloat16")
        prompt = time_of(whole, "prefill", {"B": 1, "N": tokens}, dtype)
        step = time_of(whole, "decode", {"B": batch, "N": tokens}, dtype)
    except AttnprofError as error:
        notes = [*speed["notes"], f"{basis}: {error}"]
        return replace(report, summary={**report.summary, "speed": {**speed, "notes": notes}})
    rates = (1 / step.seconds, 1 / step.high_s, 1 / step.low_s)
    figures = {
        "first_token_s": (prompt.seconds, prompt.low_s, prompt.high_s),
        "request_tokens_per_s": rates, "all_tokens_per_s": tuple(batch * rate for rate in rates),
    }  # fmt: skip
    speed["figures"] = [*speed["figures"], *(
        {"quantity": name, "basis": basis, "value": value, "low": low, "high": high, "by": ""}
        for name, (value, low, high) in figures.items()
    )]  # fmt: skip
    speed["notes"] = [*speed["notes"], f"{basis}: transformers' code on torch; {source}"]
    return replace(report, summary={**report.summary, "speed": speed})
