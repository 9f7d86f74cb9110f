"""Sizes of 000's experiments, as its text states them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Experiment:
    """An experiment's sizes and the place that states them; no length where it varies."""

    d_model: int
    num_heads: int
    seq_len: int | None
    place: str


EXPERIMENTS = {
    "MNIST": Experiment(128, 4, 64, "Sec 4.1, App B.3"),
    "CIFAR100": Experiment(256, 8, 256, "Sec 4.1, App B.3"),
    "ImageNet": Experiment(768, 12, 256, "Sec 4.1, App B.3"),
    "IMDB": Experiment(32, 4, 32, "App B.4.1"),
    "Amazon": Experiment(64, 4, 64, "App B.4.1"),
    "NMT": Experiment(1024, 4, None, "App B.4.2"),
}
#: ImageNet's pictures and patches, pixels a side (App B.3), and ViT-B/16's fixed sizes.
IMAGE_SIDE, PATCH_SIDE, COLOURS = 112, 8, 3
IMAGENET_CLASSES, VIT_HIDDEN = 1000, 3072


def imagenet_patches() -> int:
    """Tokens of one picture, without a class token."""
    return (IMAGE_SIDE // PATCH_SIDE) ** 2
