"""Whole transformers in plain torch, with any mechanism as attention, and the documents' models.

>>> build(load("001-lm-dot"), device="meta")
"""

from typing import TYPE_CHECKING

from attnprof.models.config import Attention, ModelConfig
from attnprof.models.presets import Preset, load, preset, presets

if TYPE_CHECKING:
    from attnprof.models.transformer import EncoderDecoder, Transformer

__all__ = ["Attention", "ModelConfig", "Preset", "build", "load", "preset", "presets"]


def build(config: ModelConfig, device: str | None = None) -> "Transformer | EncoderDecoder":
    """The model of a configuration, on a device (``meta``: without weights) or torch's default.

    Weights come from torch's generator. Raises :class:`attnprof.errors.RequestError` for what does
    not fit together, like a mechanism without a mask in a decoder.
    """
    from contextlib import nullcontext

    import torch

    from attnprof.models.transformer import EncoderDecoder, Transformer

    kind = EncoderDecoder if config.kind == "encoder-decoder" else Transformer
    with nullcontext() if device is None else torch.device(device):
        return kind(config)
