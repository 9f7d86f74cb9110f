"""Measure the peak memory of one call: the increment over what was allocated before it."""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from attnprof.blocks.cache import TokenCache
from attnprof.measure.subject import Subject, parts


@dataclass(frozen=True)
class Peak:
    """The peak of a call: ``bytes``, of which a ``kernel`` takes ``workspace`` inside itself.

    ``without_workspace`` is the peak of the other memory. On CUDA ``reserved`` are the bytes that
    the caching allocator took from the device during the call, ``libraries`` those that cuBLAS
    keeps for itself since its first product, which are no part of the peak.
    """

    bytes: int
    kernel: str = ""
    workspace: int = 0
    without_workspace: int = 0
    source: str = ""
    reserved: int | None = None
    libraries: int | None = None


@dataclass(frozen=True)
class Event:
    """An allocation (``size`` > 0), a release (< 0) or an operation (0), in nanoseconds."""

    name: str
    start: int
    end: int
    size: int = 0


#: Operations that allocate inside themselves what no tensor of the program shows: fused attention,
#: and products, whose library takes scratch and copies operands for some formats on some
#: processors (oneDNN's bfloat16 with AVX-512).
FUSED = ("_scaled_dot_product", "_flash_attention", "_efficient_attention")
PRODUCTS = ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm")
#: The name of the measured call among the profiler's events.
MARK = "attnprof.measured"
#: Names of a launch in the CUDA runtime.
LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx")


def measure_peak(subject: Subject, device: str, torch: Any) -> Peak:
    """Return the peak of one call on a device, after another call that warms up its libraries.

    It is over the memory before ``prepare``: a backward pass holds what its forward pass saved.
    """
    subject.prepare()
    subject.call()
    subject.reset()
    if device.startswith("cuda"):
        return _cuda_peak(subject, torch)
    return peak_of(traced(subject, torch))


def _cuda_peak(subject: Subject, torch: Any) -> Peak:
    """Return the caching allocator's peak, in requested bytes (not rounded) where it has them."""
    cuda = torch.cuda
    cuda.synchronize()
    cuda.empty_cache()  # blocks kept for reuse would hide what the call reserves
    before = cuda.memory_stats()
    subject.prepare()
    cuda.synchronize()
    cuda.reset_peak_memory_stats()
    kept = subject.call()
    cuda.synchronize()
    after = cuda.memory_stats()
    del kept
    requested = "requested_bytes.all.peak" in after and "requested_bytes.all.current" in before
    kind = "requested_bytes" if requested else "allocated_bytes"
    peak = int(after[f"{kind}.all.peak"] - before[f"{kind}.all.current"])
    reserved = after["reserved_bytes.all.peak"] - before["reserved_bytes.all.current"]
    libraries = None
    if clear := getattr(torch._C, "_cuda_clearCublasWorkspaces", None):  # noqa: SLF001 - no public way
        allocated = _allocated(torch)
        clear()  # the next product takes them again
        libraries = allocated - _allocated(torch)
    return Peak(
        peak, without_workspace=peak, source=f"CUDA allocator, {kind}",
        reserved=int(reserved), libraries=libraries,
    )  # fmt: skip


def _allocated(torch: Any) -> int:
    torch.cuda.synchronize()
    return int(torch.cuda.memory_stats()["allocated_bytes.all.current"])


def measure_held(make: Callable[[], object], device: str, torch: Any) -> int:
    """Return the bytes that a call leaves allocated while its result is kept."""
    if device.startswith("cuda"):
        before = _allocated(torch)
        kept = make()
        allocated = _allocated(torch) - before
        del kept
        return allocated
    return sum(event.size for event in _profiled_events(make, torch) if event.name == "[memory]")


def traced(subject: Subject, torch: Any, device: str | None = None) -> list[Event]:
    """Return the events of a call in order: allocations and operations; on a GPU its launches."""

    def run() -> object:
        subject.prepare()
        with torch.profiler.record_function(MARK):
            return subject.call()

    return _profiled_events(run, torch, device)


def _profiled_events(
    run: Callable[[], object], torch: Any, device: str | None = None
) -> list[Event]:
    # the profiler below torch.profiler.profile: that one imports torch's compiler first
    profiler = torch.autograd.profiler.profile(
        use_cpu=True, use_device=device, use_kineto=True, profile_memory=device is None
    )
    with quiet_stderr(), profiler:
        kept = run()
        if device is not None:
            torch.cuda.synchronize()
    del kept
    return [
        Event(e.name(), e.start_ns(), e.start_ns() + e.duration_ns(), e.nbytes())
        for e in profiler.kineto_results.events()
    ]


def count_launches(subject: Subject, device: str, torch: Any) -> int | None:
    """Return how many kernels a call launches on a GPU; None on a CPU or if none is seen."""
    if not device.startswith("cuda"):
        return None
    events = traced(subject, torch, "cuda")
    start = next((event.start for event in events if event.name == MARK), 0)
    return sum(event.name in LAUNCHES and event.start >= start for event in events) or None


def peak_of(events: Sequence[Event]) -> Peak:
    """Return the peak of the call named :data:`MARK`, or of all events, and a kernel's share."""
    start = next((e.start for e in events if e.name == MARK), 0)
    live = scratch = without_scratch = 0
    peak, peak_scratch, kernel = 0, 0, ""
    for event, is_scratch, name in _mark_scratch(events):
        if event.start >= start and peak == 0:  # the call holds what was alive when it began
            peak = without_scratch = live
        live += event.size
        scratch += event.size if is_scratch else 0
        if event.start < start:
            continue
        without_scratch = max(without_scratch, live - scratch)
        if live > peak:
            peak, peak_scratch, kernel = live, scratch, name if scratch else ""
    return Peak(peak, kernel, peak_scratch, without_scratch, "torch profiler, CPU allocator")


def _mark_scratch(events: Sequence[Event]) -> Iterator[tuple[Event, bool, str]]:
    """Yield each memory event, whether one kernel takes and frees it (scratch), and its kernel."""
    memory = [e for e in events if e.name == "[memory]"]
    kernels = _kernels_of(memory, [e for e in events if e.name != "[memory]"])
    scratch: set[int] = set()
    waiting: dict[tuple[Event, int], list[int]] = {}
    for index, kernel in kernels.items():
        size = memory[index].size
        if size > 0:
            waiting.setdefault((kernel, size), []).append(index)
        elif waiting.get((kernel, -size)):
            scratch |= {index, waiting[kernel, -size].pop()}
    for index, event in enumerate(memory):
        yield event, index in scratch, kernels[index].name if index in kernels else ""


def _kernels_of(memory: list[Event], operations: list[Event]) -> dict[int, Event]:
    """Return the outermost fused attention or product around each memory event, by its index."""
    outer: list[Event] = []
    for event in sorted(operations, key=lambda e: (e.start, -e.end)):
        has_scratch = event.name in PRODUCTS or any(part in event.name for part in FUSED)
        if has_scratch and (not outer or event.end > outer[-1].end):
            outer.append(event)
    starts, kernels = [event.start for event in outer], {}
    for index, event in enumerate(memory):
        before = bisect_right(starts, event.start)
        if before and outer[before - 1].end >= event.start:
            kernels[index] = outer[before - 1]
    return kernels


@contextmanager
def quiet_stderr() -> Iterator[None]:
    """Discard what is written to stderr in the body, as by the profiler's C++ code."""
    try:
        saved = os.dup(2)
    except OSError:  # no stderr at all
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def measure_parts(subject: Subject, phase: str, device: str, torch: Any) -> dict[str, int]:
    """Return bytes by purpose, under the names of a record's fields.

    In training these are activations, gradients and AdamW's moments, which live at different times
    and do not add up to the peak; in decoding token caches and the whole state; in a forward pass
    none.
    """
    sizes = {}
    if phase != "decode":
        if subject.forward is None:
            return {}
        subject.reset()
        sizes["activations_bytes"] = measure_held(subject.forward, device, torch)
        sizes["optimizer_bytes"] = adamw_bytes(subject.module)
    subject.prepare()
    subject.call()
    if phase != "decode":
        sizes["gradients_bytes"] = _tensor_bytes(leaf.grad for leaf in subject.leaves)
    else:
        state_parts = list(parts(subject.state))
        sizes["kv_cache_bytes"] = _tensor_bytes(
            x.rows for x in state_parts if isinstance(x, TokenCache)
        )
        sizes["state_bytes"] = _tensor_bytes(state_parts)
    subject.reset()
    return sizes


def adamw_bytes(module: Any) -> int:
    """Return the bytes of AdamW's two moments in the parameters' format, without step counts."""
    return sum(2 * p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)


def _tensor_bytes(values: Iterable[Any]) -> int:
    """Return the bytes of the tensors among ``values``, each storage once."""
    storages = [value.untyped_storage() for value in values if hasattr(value, "untyped_storage")]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
