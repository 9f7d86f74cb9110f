"""A public number of a model without its value, and what is made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from typing import Any

from attnprof.models.conventions import ModelSizes
from attnprof.models.fit_layout import FitModel, fit_model
from attnprof.models.fit_options import FitOptions
from attnprof.models.fit_parts import row_bytes
from attnprof.models.mfu_sizes import sizes_of

MiB, GiB = 2**20, 2**30
FORMATS = {2: "bfloat16", 1: "fp8", 4: "float32", 1.0625: "q8_0", 0.5625: "q4_0"}
#: Sizes that a row names otherwise than a configuration does, by the beginning of its name; None
#: leaves one out.
CHANGED: Mapping[str, Mapping[str, Any]] = {
    "kv-llamacpp-laguna": {
        "window_cells": None, "sliding_window": 1024, "full_attention_layers": 12
    },
    "dec-s3-step3": {"share_q_dim": None, "moe_layers": None, "first_k_dense_replace": 5},
    "params-gpt3": {"vocab_size": 50257},
    "flops-gpt3": {"vocab_size": 50257},
    "params-flan-t5": {
        "model_type": "t5", "architectures": ["T5ForConditionalGeneration"],
        "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "relative_buckets": None,
    },
    "kv-llamacpp-gemma4": {
        "full_layers": None, "swa_layers": None, "full_width": None, "swa_width": None,
        "num_hidden_layers": 24, "hidden_size": 2560, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 256, "sliding_window": 1536,
        "full_attention_layers": 4,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A public number without its value: what model it is of, and in which setting."""

    id: str
    config: str
    quantity: str
    setting: Mapping[str, Any]
    unit: str

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The model's sizes as a configuration has them."""
        known = json.loads(self.config)
        for start, changes in CHANGED.items():
            if self.id.startswith(start):
                known |= changes
        return {name: value for name, value in known.items() if value is not None}

    @property
    def model(self) -> FitModel:
        """The model as ``attnprof fit`` lays it out."""
        return model_of(json.dumps(self.fields))

    @property
    def sizes(self) -> ModelSizes:
        """The model as ``attnprof model --mfu`` counts it."""
        return sizes_from(json.dumps(self.fields))

    @property
    def options(self) -> FitOptions:
        """The formats and ranks of the setting, in blocks of one token if it names none."""
        cache = FORMATS[self.setting.get("kv_bytes", 2)]
        if self.setting.get("bytes_per_token_layer") == 656:
            cache = "fp8_ds_mla"
        return FitOptions(
            memory=2**40, tensor_parallel=self.setting.get("tp", 1), cache_dtype=cache,
            block_size=self.setting.get("block", 1),
        )  # fmt: skip

    @property
    def bytes_of_unit(self) -> int:
        """Bytes of the unit that the number is in."""
        return {"GiB": GiB, "MiB": MiB, "KB": 1000}.get(self.unit, 1)

    def token_bytes(self, kind: str | None = None) -> Fraction:
        """Return the bytes that a token's rows take in all layers, or in those of a kind."""
        caches = [x for x in self.model.caches if kind in (None, x.kind)]
        return sum((x.layers * row_bytes(x, self.options) for x in caches), Fraction(0))


@cache
def model_of(text: str) -> FitModel:
    """Return a model by its configuration in JSON, laid out once."""
    return fit_model(json.loads(text))


@cache
def sizes_from(text: str) -> ModelSizes:
    """Return a model's sizes by its configuration in JSON, made once."""
    return sizes_of(json.loads(text))


@dataclass(frozen=True)
class Replay:
    """A number of ours, and by how much it may be off beyond the digits that are printed.

    ``printed`` is what the source's own rule gives if that is not what is right, ``wrong`` says why
    the source's number cannot be, ``added`` what is not of the model.
    """

    ours: Any
    within: float = 0
    printed: Any = None
    wrong: str = ""
    added: str = ""
