"""Times of a whole model's prompt, training step and decoded token, predicted or measured.

A phase's call is built once, by transformers' own code: on fake tensors its operations are seen
and priced by a calibration, on real ones with random weights it is timed. Entry points:
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
from attnprof.device.calibration import elsewhere, load
from attnprof.device.ceilings import MEMORY_GB, device_named, stated
from attnprof.device.operations import Demand, observed
from attnprof.device.prediction import Predictor
from attnprof.errors import AttnprofError, CannotRunError
from attnprof.measure.clocks import Clock, cuda_clock, sample
from attnprof.measure.environment import device_name
from attnprof.measure.request import Budget
from attnprof.measure.statistics import estimate_median
from attnprof.measure.subject import Subject, default_dtype
from attnprof.models.fit_layout import FitModel, FitOptions
from attnprof.models.fit_parts import weight_format
from attnprof.models.fit_speed import with_checks, with_speed
from attnprof.models.names import released
from attnprof.models.sources import hub_subject
from attnprof.models.whole import WholeModel, cache_in
from attnprof.record import Report
from attnprof.trace.run.worlds import quiet_hub
from attnprof.workload import DTYPES

PHASES = ("prefill", "train", "decode")
#: Inputs that are tokens of a decoder; tokens that are drawn are below so many.
_TOKENS, _WORDS = ("decoder_input_ids", "input_ids"), 60


@dataclass(frozen=True)
class PhaseTime:
    """Seconds of a call, and the ends of an interval of 95 %."""

    seconds: float
    low_s: float
    high_s: float


def predicted_time(
    predictor: Predictor, whole: WholeModel, phase: str, sizes: Mapping[str, int], dtype: str
) -> PhaseTime:
    """Return how long a phase takes at sizes ``B`` and ``N``, without running it.

    Raises :class:`CannotRunError` for a model that looks at values.
    """
    layers = "forward" if phase == "prefill" else phase  # whose errors a calibration knows
    return PhaseTime(*predictor.interval(phase_demand(whole, phase, sizes, dtype), dtype, layers))


def phase_demand(whole: WholeModel, phase: str, sizes: Mapping[str, int], dtype: str) -> Demand:
    """Return the operations of a phase's call, seen on fake tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with quiet_hub(), FakeTensorMode(allow_non_fake_inputs=True), _as_with_values():
        try:
            subject = phase_subject(whole, phase, sizes, dtype)
            subject.prepare()
            return observed(subject)
        except RuntimeError as error:
            raise CannotRunError(
                f"{whole.name} does not run without values in {phase}: {error}"
            ) from error


def measured_time(
    whole: WholeModel, phase: str, sizes: Mapping[str, int], dtype: str, budget: Budget,
    device: str = "cpu",
) -> PhaseTime:  # fmt: skip
    """Return the median time of a phase with random weights, with the interval of the median."""
    with torch.device(device):
        subject = phase_subject(whole, phase, sizes, dtype)
    clock = cuda_clock(torch, device) if device.startswith("cuda") else Clock()
    times = sample(clock, subject.prepare, subject.call, budget)
    middle = estimate_median([one.wall_s for one in times])
    return PhaseTime(middle.median_s, middle.low_s, middle.high_s)


def phase_subject(whole: WholeModel, phase: str, sizes: Mapping[str, int], dtype: str) -> Subject:
    """Return a model of random weights and the call of a phase, on torch's default device.

    ``prefill`` is a prompt with the logits of its last token, ``train`` a forward and backward
    pass, ``decode`` one token after ``N - 1`` others, whose cache is as it was before each call.
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
        return _decoding(whole, module, inputs)
    last = {whole.last_logits: 1} if whole.last_logits else {}
    call = torch.no_grad()(partial(module, **inputs, **last))
    return Subject(module, lambda: None, lambda: None, call)


def _decoding(whole: WholeModel, module: Any, inputs: dict[str, Any]) -> Subject:
    name = next((name for name in _TOKENS if name in inputs), "")
    if not whole.caches or not name:
        raise CannotRunError(f"{whole.name} keeps no cache: no token is decoded after others")
    token, inputs[name] = inputs[name][:, -1:], inputs[name][:, :-1]
    with torch.no_grad():
        result = module(**inputs, use_cache=True)
    cache_name, cache = cache_in(result, whole.name)
    more: dict[str, Any] = {"use_cache": True}
    if (encoded := getattr(result, "encoder_last_hidden_state", None)) is not None:
        more["encoder_outputs"] = (encoded,)

    tensors = list(tensors_within(cache, set()))
    contents = [(x, x.clone(), _writes(x)) for x in tensors]

    def prepare() -> None:  # what grows makes new tensors; what is written in place is put back
        for place, (x, before, version) in enumerate(contents):
            if _writes(x) != version:
                x.copy_(before)
                contents[place] = x, before, _writes(x)
        more[cache_name] = copy.deepcopy(cache, {id(x): x for x in tensors})

    @torch.no_grad()
    def call() -> Any:
        return module(**{name: token}, **more)

    return Subject(module, prepare, prepare, call)


def _writes(x: torch.Tensor) -> int:
    """Return how often a tensor was written in place."""
    return x._version  # noqa: SLF001 - as torch's notes on autograd name it


def _inputs(whole: WholeModel, phase: str, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return random tokens and normal pixels of a phase's sizes, with labels in training."""
    target = whole.target("train" if phase == "train" else "forward")
    _, named = target.call_inputs(sizes, str(torch.get_default_device()))

    def drawn(x: Any) -> Any:
        if x.is_floating_point():
            return torch.randn(x.shape, dtype=x.dtype)
        return torch.randint(_WORDS if x.dim() > 1 else 1, x.shape)

    return {name: drawn(x) for name, x in named.items()}


@contextmanager
def _as_with_values() -> Iterator[None]:
    """Let transformers run fake tensors as real ones: one text, experts that rows choose evenly."""
    from transformers import masking_utils
    from transformers.integrations import moe

    stand_ins = {
        (masking_utils, "find_packed_sequence_indices"): lambda *_, **__: None,
        (moe, "_grouped_mm"): lambda rows, weight, *_, **__: _Grouped.apply(rows, weight),  # type: ignore[no-untyped-call]
    }
    with ExitStack() as stack:
        for (module, name), function in stand_ins.items():
            if hasattr(module, name):
                stack.enter_context(patch.object(module, name, function))
        yield


class _Grouped(torch.autograd.Function):
    """Products of rows (S, k) with the matrices (E, k, n) of experts, as many rows for each."""

    @staticmethod
    def forward(ctx: Any, rows: Any, weight: Any) -> Any:
        """Return (S, n)."""
        ctx.save_for_backward(rows, weight)
        out = rows.new_empty((rows.shape[0], weight.shape[2]))
        for expert, some in _groups(rows, weight):
            torch.mm(rows[some], weight[expert], out=out[some])
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Return the gradients of rows and matrices."""
        (grad,), (rows, weight) = grads, ctx.saved_tensors
        of_rows, of_weight = torch.empty_like(rows), torch.zeros_like(weight)
        for expert, some in _groups(rows, weight):
            torch.mm(grad[some], weight[expert].T, out=of_rows[some])
            torch.mm(rows[some].T, grad[some], out=of_weight[expert])
        return of_rows, of_weight


def _groups(rows: Any, weight: Any) -> Iterator[tuple[int, slice]]:
    """Yield the experts that have rows, and which."""
    total, experts = rows.shape[0], weight.shape[0]
    for expert in range(experts):
        start, end = (place * total // experts for place in (expert, expert + 1))
        if end > start:
            yield expert, slice(start, end)


# -- beside fit's bounds -------------------------------------------------------------------------

#: How long a phase is timed.
BUDGET = Budget(samples=8, min_time_s=0.2, max_time_s=10.0, warmup_s=0.2)
#: Devices that are here.
_HERE = ("cpu", "cuda")


def memory_of(on: str) -> int:
    """Return the bytes of memory of a device by its maker; :class:`RequestError` if unknown."""
    return int(MEMORY_GB[device_named(_name(on)).name] * 10**9)


def with_speeds(
    report: Report, model: FitModel, options: FitOptions, on: str, path: Path | None, *,
    measured: bool,
) -> Report:  # fmt: skip
    """Return ``fit``'s report with how fast a model is on a device.

    Bounds by its maker's figures; by a calibration of it, in ``path`` or the cache folder, also
    what is predicted, and if ``measured`` what is timed here. Raises :class:`RequestError` for a
    device of which nothing is known.
    """
    name, here = _name(on), on in _HERE
    calibrated = load(name, torch.get_num_threads(), path) if here else elsewhere(name, path)
    device = stated(name) if here or calibrated is not None else device_named(on)
    release = released().get(model.source)
    whole = hub_subject(model.fields, model.sizes.name)
    dtype = weight_format(model, options)[0]
    if device is not None:
        report = with_speed(report, model, options, device)
        folder = model.source.removesuffix("config.json").rstrip("/") or "."
        report = with_checks(report, release.hub if release else folder, options)
    if calibrated is not None:
        predictor = Predictor(calibrated)
        time_of = partial(predicted_time, predictor)
        again = "cuda" if calibrated.device.startswith("cuda") else "cpu"
        made_of = f"{predictor.made_of}; to check it there: --on {again} --measure"
        report = with_times(report, whole, options, dtype, "calibrated", time_of, made_of)
    elif here:
        note = f"{name} was not calibrated with so many threads: type attnprof calibrate"
        speed = {"device": name, "figures": [], "notes": [], **report.summary.get("speed", {})}
        speed["notes"] = [*speed["notes"], note]
        report = replace(report, summary={**report.summary, "speed": speed})
    if measured:
        time_of = partial(measured_time, budget=BUDGET, device=on)
        report = with_times(report, whole, options, dtype, "measured", time_of, f"{name}, here")
    return report


def _name(on: str) -> str:
    return device_name(on) if on in _HERE else on


def with_times(
    report: Report, whole: WholeModel, options: FitOptions, dtype: str, basis: str,
    time_of: Callable[..., PhaseTime], made_of: str,
) -> Report:  # fmt: skip
    """Return ``fit``'s report with the figures of a basis, ``calibrated`` or ``measured``.

    ``time_of`` gives the time of a phase of the model at sizes. A model that has none is noted.
    """
    speed: dict[str, Any] = {"device": made_of.partition(",")[0], "figures": [], "notes": []}
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
    speed["notes"] = [*speed["notes"], f"{basis}: transformers' code on torch; {made_of}"]
    return replace(report, summary={**report.summary, "speed": speed})
