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


def needed_bytes(request: PointRequest) -> int:
    """Predicted peak plus parameters, inputs, output gradient and decoding state."""
    workload = request.workload
    table = request.spec.cost(workload, request.scope)
    entries = int(table.parameters) + sum(prod(shape) for shape, _ in request.inputs)
    if request.phase in ("backward", "train"):
        entries += sum(prod(shape) for shape, _ in request.inputs)
    elif request.phase == "decode":
        entries += int(request.spec.state_entries(workload))
    return int(table.peak()) + workload.item_size * entries


def fit(request: PointRequest, available: int | None = None) -> tuple[str | None, bool]:
    """Why a point is not tried (or None), and whether it may die and should run apart."""
    needed = needed_bytes(request)
    free = available_bytes(request.device) if available is None else available
    if needed <= free:
        return None, needed > RISKY_SHARE * free
    return (
        f"does not fit: needs {format_bytes(needed)} by the closed form, {request.device} has "
        f"{format_bytes(free)} free"
    ), True


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


_OUT_OF_MEMORY = ("not enough memory", "out of memory", "can't allocate memory", "invalid buffer")


def is_out_of_memory(error: BaseException) -> bool:
    """``torch.OutOfMemoryError`` is a RuntimeError; the CPU allocator raises a plain one."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(mark in text for mark in _OUT_OF_MEMORY)
