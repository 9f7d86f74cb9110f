"""Will it fit: what a point needs against what is there."""

from __future__ import annotations

import re
from contextlib import suppress
from math import prod
from pathlib import Path

from attnprof.measure.request import PointRequest
from attnprof.units import format_bytes

#: A point that needs more than this share of the free memory may still die: it runs apart.
RISKY_SHARE = 0.5


def bytes_needed(request: PointRequest, peak_bytes: int, parameters: int) -> int:
    """Predicted peak plus parameters, inputs, output gradient and decoding state."""
    item = request.workload.item_size
    inputs = sum(prod(shape) for shape in request.input_shapes)
    ones = inputs if request.phase in ("backward", "train") else 0
    state = request.spec.state_entries(request.workload) if request.phase == "decode" else 0
    return peak_bytes + item * (parameters + inputs + ones + int(state))


def available_bytes(device: str) -> int:
    """Memory a device can still give: free on a GPU, available to this process group on a CPU."""
    if device.startswith("cuda"):
        import torch

        free, _ = torch.cuda.mem_get_info(torch.device(device))
        cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return int(free + cached)
    import psutil

    return min(int(psutil.virtual_memory().available), *_control_group_limits())


def _control_group_limits(root: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """What a container's memory limit leaves (cgroup v2, then v1); empty-handed: no limit."""
    limits = [1 << 62]
    for folder, limit, used in (
        (root, "memory.max", "memory.current"),
        (root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):  # no such file, or "max"
            stat = (folder / "memory.stat").read_text()
            pages = re.search(r"^inactive_file (\d+)$", stat, re.MULTILINE)
            cached = int(pages[1]) if pages else 0  # the kernel gives it back under pressure
            left = int((folder / limit).read_text()) - int((folder / used).read_text())
            limits.append(left + cached)
    return limits


def refusal(device: str, needed: int, available: int) -> str | None:
    """Why a point is not tried, or None."""
    if needed <= available:
        return None
    return (
        f"does not fit: needs {format_bytes(needed)} by the closed form, {device} has "
        f"{format_bytes(available)} free"
    )


def is_risky(needed: int, available: int) -> bool:
    """Whether a point that should fit may still be killed."""
    return needed > RISKY_SHARE * available


_OUT_OF_MEMORY = ("not enough memory", "out of memory", "can't allocate memory", "invalid buffer")


def is_out_of_memory(error: BaseException) -> bool:
    """``torch.OutOfMemoryError`` is a RuntimeError; the CPU allocator raises a plain one."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(mark in text for mark in _OUT_OF_MEMORY)
