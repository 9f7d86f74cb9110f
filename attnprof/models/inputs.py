"""Inputs of our models: as text for deriving, as random tensors for running."""

from typing import Any

from attnprof.models.config import ModelConfig


def input_texts(config: ModelConfig) -> dict[str, str]:
    """Return inputs by name, as ``attnprof derive --input`` takes them, in B and N."""
    if config.kind == "encoder-decoder":
        return {"source": _text(config), "target": "B, M int64"}
    return {"x": _text(config)}


def example_inputs(
    config: ModelConfig, batch_size: int = 1, seq_len: int | None = None
) -> tuple[Any, ...]:
    """Return random tensors as the model takes them, of the longest length by default.

    On torch's default device, from its generator.
    """
    import torch

    n = config.seq_len if seq_len is None else seq_len
    first = {
        "image": lambda: torch.randn(batch_size, *_image(config)),
        "rows": lambda: torch.randn(batch_size, n, config.d_model),
        "tokens": lambda: torch.randint(config.vocab_size, (batch_size, n)),
    }
    tensor = first[_taken(config)]()
    crosses = config.kind == "encoder-decoder"
    return (tensor, first["tokens"]()) if crosses else (tensor,)


def _taken(config: ModelConfig) -> str:
    if config.embedding == "patches" or (config.embedding == "cnn" and config.image_size):
        return "image"
    return "rows" if config.embedding == "rows" else "tokens"


def _image(config: ModelConfig) -> tuple[int, int, int]:
    side = config.image_size or 0
    return config.image_channels, side, side


def _text(config: ModelConfig) -> str:
    return {
        "image": "B, " + ", ".join(map(str, _image(config))),
        "rows": f"B, N, {config.d_model}",
        "tokens": "B, N int64",
    }[_taken(config)]
