"""What a measurement was made on: versions, device, threads, number formats, source state."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import attnprof
from attnprof.processes.git import git


def describe_environment(device: str, seed: int = 0) -> dict[str, Any]:
    """Everything a reader needs to judge a measured number."""
    import torch

    return {
        "attnprof": attnprof.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "device": device,
        "device_name": device_name(device),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        # "highest" keeps float32 products in float32; anything else lets a GPU use TF32
        "tf32": torch.get_float32_matmul_precision() != "highest" if device != "cpu" else None,
        "clock": "perf_counter_ns" if device == "cpu" else "cuda events",
        **_number_modes(torch),
        **_libraries(torch, device),
        "seed": seed,
        "git": git_state(),
        "command": command_line(sys.argv),
    }


def dated_environment(device: str) -> dict[str, Any]:
    """The same with the time, for results that are kept and put in order."""
    return {**describe_environment(device), "time": datetime.now(UTC).isoformat(timespec="seconds")}


def _number_modes(torch: Any) -> dict[str, Any]:
    """Settings that let a library round differently, or compute in another way."""
    matmul = torch.backends.cuda.matmul
    return {
        "bfloat16_reduced_sums": matmul.allow_bf16_reduced_precision_reduction,
        "float16_reduced_sums": matmul.allow_fp16_reduced_precision_reduction,
        "cudnn_tf32": torch.backends.cudnn.allow_tf32,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


def _libraries(torch: Any, device: str) -> dict[str, Any]:
    """Who multiplies: the BLAS torch was built with, and CUDA with its driver."""
    built = torch.__config__.show()
    blas = re.search(r"BLAS_INFO=(\w+)", built)
    on_gpu = device.startswith("cuda")
    return {
        "blas": blas[1] if blas else None,
        "cuda": torch.version.cuda if on_gpu else None,
        "cudnn": torch.backends.cudnn.version() if on_gpu else None,
        "driver": driver_version() if on_gpu else None,
    }


def driver_version(path: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """The NVIDIA driver's version as the kernel tells it; None where it does not."""
    try:
        found = re.search(r"Kernel Module.*?([0-9]+\.[0-9.]+)", path.read_text(encoding="utf-8"))
    except OSError:
        return None
    return found[1] if found else None


def command_line(arguments: Sequence[str]) -> str:
    """What to type to do it again; ``python -m attnprof`` is ``attnprof``."""
    name = Path(arguments[0]).name if arguments else ""
    return shlex.join(["attnprof" if name == "__main__.py" else name, *arguments[1:]])


@cache
def cpu_model() -> str:
    """The processor's own name, where the system tells."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()


def device_name(device: str) -> str:
    """Name of the device a result belongs to."""
    import torch

    if device.startswith("cuda"):
        return str(torch.cuda.get_device_name(torch.device(device)))
    return cpu_model()


@cache
def git_state(here: Path | None = None) -> str | None:
    """Commit of a folder or the working one, ``+changes`` where files differ; None outside git.

    Asked once in a process: what it runs is what it has loaded.
    """
    here = here or Path.cwd()
    try:
        commit = git(here, "rev-parse", "--short=12", "HEAD", limit_s=10)
        changes = git(here, "status", "--porcelain", "-uno", limit_s=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}+changes" if changes else commit
