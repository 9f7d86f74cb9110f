"""How busy and how fast a machine was while a point was timed, where it tells."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from math import fsum
from typing import Any

from attnprof.measure.memory import MARK, traced
from attnprof.measure.subject import Subject

#: Share of the time that one thread has a processor; below it others were in its way.
CONTENDED = 0.8
#: What the CUDA runtime calls a launch.
LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx")
#: Bits of NVML's reasons for a lower clock (nvml.h); idling is none.
THROTTLES = {
    0x4: "power cap", 0x8: "hardware slowdown", 0x20: "software thermal", 0x40: "hardware thermal",
    0x80: "power brake",
}  # fmt: skip


@contextmanager
def watched(device: str) -> Iterator[dict[str, Any]]:
    """What is filled in when the time is over: threads, load, switches, a GPU's clocks."""
    import torch

    found: dict[str, Any] = {"threads": torch.get_num_threads()}
    before = _involuntary_switches()
    yield found
    after = _involuntary_switches()
    found["involuntary_switches"] = None if before is None else (after or 0) - before
    found["load_average"] = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    if device.startswith("cuda"):
        found |= gpu_state(torch, device)


def _involuntary_switches() -> int | None:
    """How often this process was made to wait for a processor."""
    try:
        import resource
    except ImportError:  # not on this system
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def cpu_share(times_s: Sequence[float], cpu_times_s: Sequence[float]) -> float | None:
    """Processor time over time passed: 1 for one thread that has a processor to itself."""
    wall = fsum(times_s)
    return fsum(cpu_times_s) / wall if cpu_times_s and wall else None


def noise(noisy: str | None, conditions: Mapping[str, Any]) -> str | None:
    """What makes a median doubtful: its spread, and a processor that others used."""
    share = conditions.get("cpu_share")
    if conditions.get("threads") != 1 or not isinstance(share, (int, float)) or share >= CONTENDED:
        return noisy
    contended = f"contended: it had a processor for {share:.0%} of the time; quieten the machine"
    return "; ".join(text for text in (noisy, contended) if text)


def joined_conditions(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Several processes' conditions as one: the worst share and load, all switches."""
    joined = dict(found[0])
    worst: dict[str, Callable[[Iterable[Any]], Any]] = {
        "cpu_share": min, "load_average": max, "involuntary_switches": sum,
    }  # fmt: skip
    for name, reduce in worst.items():  # a file may say anything
        values = [item[name] for item in found if isinstance(item.get(name), int | float)]
        joined[name] = reduce(values) if values else None
    return joined


def gpu_state(torch: Any, device: str) -> dict[str, Any]:
    """Clock, temperature, power and reasons for a lower clock; None where nothing tells."""
    cuda = torch.cuda

    def throttled() -> list[str]:
        handle = cuda._get_pynvml_handler(device)  # noqa: SLF001 - torch's mapping to NVML's numbers
        bits = import_module("pynvml").nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        return [name for bit, name in THROTTLES.items() if bits & bit]

    return {
        "gpu_clock_mhz": _read(lambda: int(cuda.clock_rate(device))),
        "gpu_temperature_c": _read(lambda: int(cuda.temperature(device))),
        "gpu_power_w": _read(lambda: cuda.power_draw(device) / 1000),
        "gpu_throttled": _read(throttled),
    }


def _read(ask: Callable[[], Any]) -> Any:
    """The answer, or None: the management library may be missing, old, or forbidden."""
    try:
        return ask()
    except Exception:  # noqa: BLE001 - each of those raises its own kind
        return None


def count_launches(subject: Subject, device: str, torch: Any) -> int | None:
    """Kernels that one call launches on a GPU; None on a CPU, or where the profiler sees none."""
    if not device.startswith("cuda"):
        return None
    events = traced(subject, torch, "cuda")
    start = next((event.start for event in events if event.name == MARK), 0)
    return sum(event.name in LAUNCHES and event.start >= start for event in events) or None
