"""What a measurement was made on: versions, device, threads, number formats, source state."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import attnprof


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
        "seed": seed,
        "git": git_state(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


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


def git_state() -> str | None:
    """Commit of the working directory, with ``+changes`` where files differ; None outside git."""
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        return f"{commit}+changes" if _git("status", "--porcelain", "-uno") else commit
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    done = subprocess.run(  # noqa: S603 - fixed arguments
        ["git", *arguments],  # noqa: S607 - git is found the way the user's shell finds it
        capture_output=True, text=True, check=True, timeout=10,
    )  # fmt: skip
    return done.stdout.strip()
