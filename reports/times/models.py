"""Times of whole small models, predicted by a calibration and measured: ten kinds, three phases.

A prompt, a training step and a decoded token of transformers' own code with random weights, one
thread, float32. The processor is calibrated first, into ``devices/cpu.json``, unless it is
there. A model's phases are timed ``PASSES`` times in turn; the median counts::

    python reports/run.py times/models              # everything: 12 minutes on a quiet machine
    python reports/run.py times/models llama --set MAX_TIME_S=1.0
    python reports/run.py times/models --all --set MEASURE=0  # predictions again, times stay
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

from rows import earlier, table

from attnprof.device import calibration
from attnprof.device.model_times import PHASES, PhaseTime, measured_time, predicted_time
from attnprof.device.prediction import Predictor
from attnprof.errors import AttnprofError
from attnprof.measure.environment import device_name
from attnprof.measure.request import Budget
from attnprof.models.sources import hub_subject

PACKAGES = ("torch", "transformers")
THREADS, DTYPE = 1, "float32"
FILE = Path(__file__).with_name("devices") / "cpu.json"
#: Tokens of each text; passes over a model's phases; seconds that a phase is timed in each.
LENGTHS, PASSES, MAX_TIME_S = (128, 512, 1024), 2, 2.0
#: With 0 (``--all --set MEASURE=0``) models are predicted again, and what was measured stays.
MEASURE = 1
_TEXT = {
    "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 4096,
    "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 1408,
    "max_position_embeddings": 2048, "tie_word_embeddings": False,
}  # fmt: skip
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 512}
#: A configuration of each kind: about four layers of width 512, whose weights no cache of a usual
#: processor holds from one token to the next, as it is with models that are served.
MODELS: Mapping[str, Mapping[str, Any]] = {
    "llama": _TEXT, "qwen3": _TEXT, "mistral": {**_TEXT, "sliding_window": 256},
    "gpt2": {"n_embd": 512, "n_layer": 4, "n_head": 8, "vocab_size": 4096, "n_positions": 2048},
    "mixtral": {**_TEXT, "num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen3_moe": {**_TEXT, **_EXPERTS, "num_experts": 8, "mlp_only_layers": []},
    "deepseek_v3": {
        **_TEXT, **_EXPERTS, "head_dim": 32, "num_key_value_heads": 8,
        "q_lora_rank": 256, "kv_lora_rank": 128, "qk_rope_head_dim": 32,
        "qk_nope_head_dim": 64, "v_head_dim": 64, "n_routed_experts": 8,
        "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    },
    "mamba2": {"hidden_size": 512, "num_hidden_layers": 4, "num_heads": 16, "head_dim": 64,
               "state_size": 32, "n_groups": 1, "chunk_size": 64, "vocab_size": 4096},
    "bert": {**_TEXT, "intermediate_size": 2048},
    "t5": {"d_model": 512, "d_kv": 64, "num_heads": 8, "num_layers": 4, "d_ff": 2048,
           "vocab_size": 4096},
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A phase of a model at a length; seconds, the ends of 95 %, or why there are none."""

    model: str
    phase: str
    tokens: int
    predicted_s: float = 0.0
    low_s: float = 0.0
    high_s: float = 0.0
    measured_s: float = 0.0
    skipped: str = ""

    @property
    def error(self) -> float:
        """The share by which the prediction is off, whichever way."""
        return exp(abs(log(self.predicted_s / self.measured_s))) - 1

    @property
    def holds(self) -> bool:
        """Whether the measured time lies in the interval."""
        return self.low_s <= self.measured_s <= self.high_s


def cases() -> Mapping[str, Mapping[str, Any]]:
    """Return the configuration of each kind of model."""
    return MODELS


def prepare() -> None:
    """Calibrate this processor with one thread, unless that was done."""
    from attnprof.cli.app import main

    if not FILE.exists() or calibration.load(device_name("cpu"), THREADS, FILE) is None:
        try:
            main(["calibrate", "--threads", str(THREADS), "--dtype", DTYPE, "--calibration",
                  str(FILE)])  # fmt: skip
        except SystemExit as ended:
            if ended.code:
                raise


def rows(name: str, fields: Mapping[str, Any]) -> Iterator[Row]:
    """Yield every phase of a model at each length."""
    warnings.filterwarnings("ignore")
    known = calibration.load(device_name("cpu"), THREADS, FILE)
    assert known is not None, "prepare calibrates"
    whole = hub_subject({"model_type": name, **fields}, name)
    predictor, budget = Predictor(known), Budget(samples=10, max_time_s=MAX_TIME_S, least=3)
    for tokens in LENGTHS:
        sizes, predicted = {"B": 1, "N": tokens}, dict[str, PhaseTime]()
        for phase in PHASES:
            try:
                predicted[phase] = predicted_time(predictor, whole, phase, sizes, DTYPE)
            except AttnprofError as error:
                yield Row(name, phase, tokens, skipped=str(error))
        times: dict[str, list[float]] = {phase: [] for phase in predicted}
        for _ in range(PASSES if MEASURE else 0):
            for phase, seconds in times.items():
                seconds.append(measured_time(whole, phase, sizes, DTYPE, budget).seconds)
        for phase, time in predicted.items():
            measured_s = median(times[phase]) if MEASURE else _before(name, phase, tokens)
            yield Row(name, phase, tokens, time.seconds, time.low_s, time.high_s, measured_s)


def _before(*case: Any) -> float:
    """Return what was measured of a model, phase and length."""
    rows = earlier(Path(__file__).with_suffix(".csv"), Row)
    return next(row.measured_s for row in rows if (row.model, row.phase, row.tokens) == case)


# -- the page -------------------------------------------------------------------------------


def page(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the page."""
    timed = [row for row in rows if not row.skipped]
    yield "# Times of whole small models, predicted and measured"
    yield (
        "About four layers of width 512 with random weights, as the installed transformers runs "
        f"them; {DTYPE}, one thread, one text. *error* is how far a prediction is off, whichever "
        "way; *in 95 %* says for how many the measured time lies in the interval."
    )
    yield ""
    if timed:
        yield (
            f"{len(timed)} times of {len({row.model for row in timed})} models: off by "
            f"{median(row.error for row in timed):.1%} at the median; the interval holds for "
            f"{sum(row.holds for row in timed)} of {len(timed)}."
        )
        yield ""
    groups = [(phase, [row for row in timed if row.phase == phase]) for phase in PHASES]
    groups += [(name, [row for row in timed if row.model == name]) for name in MODELS]
    yield from table(
        "of | >times | >median error | >largest | >in 95 %",
        ((name, len(some), f"{median(r.error for r in some):.1%}",
          f"{max(r.error for r in some):.1%}", sum(r.holds for r in some))
         for name, some in groups if some),
    )  # fmt: skip
    yield ""
    yield from table(
        "model | phase | >tokens | >predicted ms | >95 % ms | >measured ms | >error",
        ((r.model, r.phase, r.tokens, f"{r.predicted_s * 1e3:.2f}",
          f"{r.low_s * 1e3:.2f} to {r.high_s * 1e3:.2f}", f"{r.measured_s * 1e3:.2f}",
          f"{r.error:.1%}") for r in timed),
    )  # fmt: skip
    for why in dict.fromkeys(f"{r.model}, {r.phase}: {r.skipped}" for r in rows if r.skipped):
        yield f"\nNot predicted: {why}."
