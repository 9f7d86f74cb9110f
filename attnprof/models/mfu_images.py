"""FLOPs of a vision encoder's patches, which come beside the tokens of a text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any


@dataclass(frozen=True)
class ImageShape:
    """A vision transformer: multiply-adds a patch before merging and of merging, layers, width.

    ``merged`` patches become one token, so merging is done once for so many.
    """

    products: int
    merging: int
    merged: int
    layers: int
    width: int

    def flops(self, lengths: Sequence[int], convention: str, phase: str) -> int:
        """Return the FLOPs of images of so many patches each, attention full within each.

        ``verl`` merges once for every patch; ``executed`` once for each token, and has the fused
        kernel's recomputation. Other conventions have no images.
        """
        executed = convention == "executed"
        if convention not in ("verl", "executed"):
            return 0
        patches, pairs = sum(lengths), sum(n * n for n in lengths)
        merges = patches // self.merged if executed else patches
        each = 6 * (self.products * patches + self.merging * merges)
        attention = (14 if executed else 12) * pairs * self.layers * self.width
        if phase == "train":
            return each + attention
        return each // 3 + 4 * pairs * self.layers * self.width


def image_shape(config: Any) -> ImageShape | None:
    """Return the shape of a configuration's vision encoder; None without one, or of another kind.

    Known are encoders of patches that merge squares of them, as in Qwen's models with images.
    """
    vision = getattr(config, "vision_config", None)
    fields: Mapping[str, Any] = vision.to_dict() if vision is not None else {}
    names = ("in_channels", "temporal_patch_size", "patch_size", "patch_size")
    needed = ("depth", "hidden_size", "intermediate_size", "out_hidden_size", "spatial_merge_size")
    if not all(isinstance(fields.get(name), int) for name in (*names, *needed)):
        return None
    width, merged = fields["hidden_size"], fields["spatial_merge_size"] ** 2
    layer = width * (4 * width + 2 * fields["intermediate_size"])
    merging = (fields["out_hidden_size"] + width * merged) * width * merged
    deep = len(fields.get("deepstack_visual_indexes") or ())
    patch = width * prod(fields[name] for name in names)
    return ImageShape(
        patch + fields["depth"] * layer, merging * (1 + deep), merged, fields["depth"], width
    )
