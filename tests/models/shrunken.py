"""Presets with few and small layers, which run on real tensors in no time."""

from attnprof import models

SMALL = {"d_model": 8, "hidden_dim": 12, "seq_len": 12, "vocab_size": 11}


def shrunken(config, **more):
    """Two layers, or as many as name their attention; 12 tokens, or 16 patches of 2 x 2."""
    heads = min(config.num_heads, 2)
    changed = {**SMALL, "num_heads": heads, "num_layers": min(config.num_layers, 2)}
    if config.image_size:
        changed |= {"image_size": 8, "patch_size": 2}
    if config.num_classes:
        changed["num_classes"] = 3
    if config.head_hidden:
        changed["head_hidden"] = 5
    return config.with_(**{**changed, **more})


def built(config, **more):
    """The shrunken model, in evaluation mode."""
    return models.build(shrunken(config, **more)).eval()
