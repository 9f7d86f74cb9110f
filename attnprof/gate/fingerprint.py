"""On which machine, with which software: times of two that differ are not compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: What decides how fast the same code runs, as one reads it.
TITLES = {
    "device": "device",
    "device_name": "device",
    "instructions": "instructions",
    "cores": "cores",
    "threads": "threads",
    "omp_wait_policy": "OMP_WAIT_POLICY",
    "torch": "torch",
    "blas": "BLAS",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "driver": "driver",
    "float32_matmul_precision": "float32 products",
    "tf32": "TF32",
    "cudnn_tf32": "TF32 of cuDNN",
    "bfloat16_reduced_sums": "reduced bfloat16 sums",
    "float16_reduced_sums": "reduced float16 sums",
    "deterministic": "deterministic algorithms",
}


def fingerprint(device: str) -> dict[str, Any]:
    """This machine's, for times taken on a device; with attnprof's own version."""
    from attnprof.measure.environment import describe_environment

    found = describe_environment(device)
    return {name: found[name] for name in (*TITLES, "attnprof")}


def differs(a: Mapping[str, Any], b: Mapping[str, Any]) -> str | None:
    """Why times of ``a`` (here) and ``b`` (there) cannot be compared; None where they can.

    ``instructions AVX2, there AVX512; torch 2.13.0, there 2.11.0``. What one of them does not say
    counts as different. Another attnprof is no reason: see :func:`noted`.
    """
    found = [
        _difference(name, a.get(name), b.get(name)) for name in TITLES if a.get(name) != b.get(name)
    ]
    return "; ".join(found) or None


def noted(a: Mapping[str, Any], b: Mapping[str, Any]) -> str | None:
    """What to know of two fingerprints that can be compared: another attnprof may count anew."""
    here, there = a.get("attnprof"), b.get("attnprof")
    if here == there:
        return None
    return f"{_difference('attnprof', here, there)}: another version may count by other rules"


def _difference(name: str, here: Any, there: Any) -> str:
    return f"{TITLES.get(name, name)} {_text(here)}, there {_text(there)}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "not known" if value is None else str(value)
