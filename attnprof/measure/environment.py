"""Describe where a measurement was made: versions, device, source state, and how busy it was.

Times of two machines, or of different software, are not compared.
"""

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from importlib import import_module
from math import fsum
from pathlib import Path
from typing import Any

import attnprof

#: Titles of the conditions that decide how fast the same code runs.
TITLES = {
    "device": "device", "device_name": "device", "instructions": "instructions", "cores": "cores",
    "threads": "threads", "omp_wait_policy": "OMP_WAIT_POLICY", "torch": "torch", "blas": "BLAS",
    "cuda": "CUDA", "cudnn": "cuDNN", "driver": "driver",
    "float32_matmul_precision": "float32 products", "tf32": "TF32", "cudnn_tf32": "TF32 of cuDNN",
    "bfloat16_reduced_sums": "reduced bfloat16 sums",
    "float16_reduced_sums": "reduced float16 sums", "deterministic": "deterministic algorithms",
}  # fmt: skip
#: Git settings that switch off programs and files which a repository or a user has configured.
_PLAIN = {
    "core.hooksPath": os.devnull, "core.attributesFile": os.devnull,
    **dict.fromkeys(
        ("core.fsmonitor", "core.splitIndex", "core.sparseCheckout", "core.untrackedCache",
         "submodule.recurse"), "false",
    ),
}  # fmt: skip
#: Variables that git sets for hooks; they would lead to another index or folder.
_ELSEWHERE = ("GIT_INDEX_FILE", "GIT_WORK_TREE", "GIT_PREFIX")
#: Share of time with a processor, below which other programs disturbed a thread.
CONTENDED = 0.8
#: Bits of NVML's reasons for a lower clock (nvml.h); idling is none.
THROTTLES = {
    0x4: "power cap", 0x8: "hardware slowdown", 0x20: "software thermal", 0x40: "hardware thermal",
    0x80: "power brake",
}  # fmt: skip


def describe_environment(device: str, seed: int = 0) -> dict[str, Any]:
    """Return versions, device and settings by which a reader judges a measured number."""
    import torch

    matmul, on_gpu = torch.backends.cuda.matmul, device.startswith("cuda")
    blas = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    return {
        "attnprof": attnprof.__version__, "python": platform.python_version(),
        "torch": torch.__version__, "platform": platform.platform(), "cpu": cpu_model(),
        "device": device, "device_name": device_name(device), "threads": torch.get_num_threads(),
        "cores": os.cpu_count(), "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        # "highest" keeps float32 products in float32; anything else lets a GPU use TF32
        "tf32": torch.get_float32_matmul_precision() != "highest" if device != "cpu" else None,
        "clock": "perf_counter_ns" if device == "cpu" else "cuda events",
        # settings by which a library rounds differently or chooses another algorithm
        "bfloat16_reduced_sums": matmul.allow_bf16_reduced_precision_reduction,
        "float16_reduced_sums": matmul.allow_fp16_reduced_precision_reduction,
        "cudnn_tf32": torch.backends.cudnn.allow_tf32,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "blas": blas[1] if blas else None,
        "cuda": torch.version.cuda if on_gpu else None,
        "cudnn": torch.backends.cudnn.version() if on_gpu else None,  # type: ignore[no-untyped-call] # torch leaves it untyped
        "driver": driver_version() if on_gpu else None,
        "seed": seed, "git": git_state(), "command": command_line(sys.argv),
    }  # fmt: skip


def dated_environment(device: str) -> dict[str, Any]:
    """Return the environment with the time, for results that are kept in order."""
    return {**describe_environment(device), "time": datetime.now(UTC).isoformat(timespec="seconds")}


def fingerprint(device: str) -> dict[str, Any]:
    """Return the environment that times depend on, and attnprof's version."""
    environment = describe_environment(device)
    return {name: environment[name] for name in (*TITLES, "attnprof")}


def differs(a: Mapping[str, Any], b: Mapping[str, Any]) -> str | None:
    """Return why times of ``a`` (here) and ``b`` (there) cannot be compared; None if they can.

    A field that one side lacks counts as different. Another attnprof is no reason: :func:`noted`.
    """
    words = {"True": "on", "False": "off", "None": "not known"}
    differences = []
    for name, title in TITLES.items():
        here, other = (words.get(text, text) for text in (str(a.get(name)), str(b.get(name))))
        if a.get(name) != b.get(name):
            differences.append(f"{title} {here}, there {other}")
    return "; ".join(differences) or None


def noted(a: Mapping[str, Any], b: Mapping[str, Any]) -> str | None:
    """Return a note if two fingerprints differ in attnprof's version: it may count differently."""
    if a.get("attnprof") == b.get("attnprof"):
        return None
    here, recorder = a.get("attnprof"), b.get("attnprof")
    return f"recorded by attnprof {recorder}, this is {here}: it may count by other rules"


def driver_version(path: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """Return the NVIDIA driver's version from the kernel; None where it has none."""
    try:
        match = re.search(r"Kernel Module.*?([0-9]+\.[0-9.]+)", path.read_text(encoding="utf-8"))
    except OSError:
        return None
    return match[1] if match else None


def command_line(arguments: Sequence[str]) -> str:
    """Return the command to type for a repetition; ``python -m attnprof`` is ``attnprof``."""
    name = Path(arguments[0]).name if arguments else ""
    return shlex.join(["attnprof" if name == "__main__.py" else name, *arguments[1:]])


@cache
def cpu_model(path: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name, where the system has it.

    Virtual machines name kinds of a processor alike ("AMD EPYC"): a name without a number of
    its kind is given with family and model.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    lines = [line.partition(":") for line in text.partition("\n\n")[0].splitlines()]
    first = {field.strip(): value.strip() for field, _, value in lines}
    name = first.get("model name", platform.machine())
    kind = [f"{field.split()[-1]} {first[field]}"
            for field in ("cpu family", "model", "CPU part") if field in first]  # fmt: skip
    return name if re.search(r"\d{3}", name) or not kind else f"{name} ({' '.join(kind)})"


def device_name(device: str) -> str:
    """Return the name of the device that results belong to."""
    import torch

    if device.startswith("cuda"):
        return str(torch.cuda.get_device_name(torch.device(device)))
    return cpu_model()


@cache
def git_state(folder: Path | None = None) -> str | None:
    """Return a folder's commit, ``+changes`` if files differ from it; None outside git."""
    folder = folder or Path.cwd()
    try:
        commit = git(folder, "rev-parse", "--short=12", "HEAD", limit_s=10)
        changes = git(folder, "status", "--porcelain", "-uno", limit_s=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}+changes" if changes else commit


def git(
    folder: Path, *arguments: str, limit_s: float = 300.0, settings: Mapping[str, str] | None = None
) -> str:
    """Return a git command's output, run in a folder without hooks or file-system monitors.

    ``settings`` are added to its environment. Raises OSError where there is no git,
    :class:`subprocess.SubprocessError` where it fails.
    """
    plain = [word for name, value in _PLAIN.items() for word in ("-c", f"{name}={value}")]
    kept = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
    done = subprocess.run(  # noqa: S603 - git is found the way the user's shell finds it
        ["git", *plain, *arguments],  # noqa: S607 - see above
        cwd=folder, capture_output=True, encoding="utf-8", errors="surrogateescape", check=True,
        timeout=limit_s,
        stdin=subprocess.DEVNULL,
        env={**kept, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", **(settings or {})},
    )  # fmt: skip
    return done.stdout.strip()


@contextmanager
def watched(device: str) -> Iterator[dict[str, Any]]:
    """Yield a mapping, filled in after the body: threads, load, switches, a GPU's clocks."""
    import torch

    conditions: dict[str, Any] = {"threads": torch.get_num_threads(), **conditions_now()}
    before = _involuntary_switches()
    yield conditions
    after = _involuntary_switches()
    conditions["involuntary_switches"] = None if before is None else (after or 0) - before
    conditions["load_average"] = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    if device.startswith("cuda"):
        conditions |= gpu_state(torch, device)


def conditions_now() -> dict[str, str]:
    """Return settings that affect times on a CPU: cores, wait policy, allocator, torch."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cores": str(cores), "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY", "default"),
        "allocator": allocator(), "torch": str(torch.__version__),
    }  # fmt: skip


def allocator() -> str:
    """Return the name of torch's CPU allocator, the C library or a preloaded one, with settings.

    ``glibc MALLOC_MMAP_MAX_=0``; the C library's own settings decide which calls pay page faults.
    """
    preloaded = os.environ.get("LD_PRELOAD", "")
    preloads = [name for name in ("jemalloc", "tcmalloc", "mimalloc") if name in preloaded]
    library = preloads[0] if preloads else platform.libc_ver()[0] or "C library"
    settings = [f"{name}={os.environ[name]}" for name in sorted(os.environ)
                if name.startswith("MALLOC_")]  # fmt: skip
    return " ".join([library, *settings])


def _involuntary_switches() -> int | None:
    """Return how often this process was made to wait for a processor."""
    try:
        import resource
    except ImportError:  # not on this system
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def cpu_share(times_s: Sequence[float], cpu_times_s: Sequence[float]) -> float | None:
    """Return processor time over wall time: 1 for one thread with a processor to itself."""
    wall = fsum(times_s)
    return fsum(cpu_times_s) / wall if cpu_times_s and wall else None


def noise(noisy: str | None, conditions: Mapping[str, Any]) -> str | None:
    """Return why a median is doubtful: a wide spread, or a processor shared with other programs."""
    share = conditions.get("cpu_share")
    if conditions.get("threads") != 1 or not isinstance(share, (int, float)) or share >= CONTENDED:
        return noisy
    contended = f"contended: other programs left it a processor for {share:.0%} of the time"
    return "; ".join(text for text in (noisy, contended) if text)


def joined_conditions(conditions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return several processes' conditions as one: worst share and load, all switches."""
    joined = dict(conditions[0])
    worst: dict[str, Callable[[Iterable[Any]], Any]] = {
        "cpu_share": min, "load_average": max, "involuntary_switches": sum,
    }  # fmt: skip
    for name, reduce in worst.items():  # a file may say anything
        values = [item[name] for item in conditions if isinstance(item.get(name), int | float)]
        joined[name] = reduce(values) if values else None
    return joined


def gpu_state(torch: Any, device: str) -> dict[str, Any]:
    """Return a GPU's clock, temperature, power and throttling; None for what it does not report."""
    cuda = torch.cuda

    def throttled() -> list[str]:
        handle = cuda._get_pynvml_handler(device)  # noqa: SLF001 - torch's mapping to NVML's numbers
        bits = import_module("pynvml").nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        return [name for bit, name in THROTTLES.items() if bits & bit]

    questions: dict[str, Callable[[], Any]] = {
        "gpu_clock_mhz": lambda: int(cuda.clock_rate(device)),
        "gpu_temperature_c": lambda: int(cuda.temperature(device)),
        "gpu_power_w": lambda: cuda.power_draw(device) / 1000, "gpu_throttled": throttled,
    }  # fmt: skip
    state: dict[str, Any] = {}
    for name, ask in questions.items():
        try:
            state[name] = ask()
        except Exception:  # noqa: BLE001 - each library raises errors of its own
            state[name] = None
    return state
