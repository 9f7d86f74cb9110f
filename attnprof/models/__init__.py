"""Whole transformers in plain torch, with any mechanism as attention, and the documents' models.

>>> sum(parts(build("001-lm-dot", device="meta")).values())
46527812
"""

from pathlib import Path
from typing import TYPE_CHECKING

from attnprof.models.config import Attention, ModelConfig, Preset, load, preset, presets
from attnprof.models.parts import layer_kinds, parts

if TYPE_CHECKING:
    from attnprof.models.transformer import EncoderDecoder, Transformer

__all__ = [
    "Attention", "ModelConfig", "Preset", "build", "layer_kinds", "load", "parts", "preset",
    "presets",
]  # fmt: skip


def build(
    config: ModelConfig | str | Path, device: str | None = None
) -> "Transformer | EncoderDecoder":
    """Return the model of a configuration, on a device (``meta``: no weights) or torch's default.

    A name is a preset's, or that of a TOML file, as for :func:`load`. Weights come from torch's
    generator. Raises :class:`attnprof.errors.RequestError` for a configuration that contradicts
    itself, like a mechanism without a mask in a decoder.
    """
    from contextlib import nullcontext

    import torch

    from attnprof.models.transformer import EncoderDecoder, Transformer

    config = config if isinstance(config, ModelConfig) else load(config)
    kind = EncoderDecoder if config.kind == "encoder-decoder" else Transformer
    with nullcontext() if device is None else torch.device(device):
        return kind(config)
