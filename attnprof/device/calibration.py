"""Ceilings of the device at hand, measured: the best product and the best copy it shows."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnprof.device.table import Ceilings
from attnprof.errors import RequestError
from attnprof.measure.clocks import Clock, CudaClock, MonotonicClock, sample
from attnprof.measure.environment import device_name
from attnprof.measure.request import Budget
from attnprof.record.destinations import reading_back
from attnprof.record.files import write_whole
from attnprof.record.reading import TEXT_LIMIT, read_json
from attnprof.record.recognition import SCHEMA
from attnprof.record.schema import fits

#: Square products tried, and the bytes of a copy: far beyond every cache.
PRODUCTS = (256, 512, 1024, 2048)
GPU_PRODUCTS = (2048, 4096, 8192)
COPY_BYTES = 1 << 28
FORMATS = ("float32", "bfloat16", "float16", "float64")


def default_path() -> Path:
    """Where ceilings are kept unless said otherwise: the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "attnprof" / "calibration.json"


def calibrate(device: str, dtypes: Sequence[str], seconds: float = 0.5) -> Ceilings:
    """The device's ceilings as measured now, ``seconds`` a product or copy.

    A ceiling is the best median over sizes: what the device is able to do, not what it does on
    average. Formats that it cannot multiply are left out.
    """
    import torch

    clock: Clock = CudaClock(torch.cuda) if device.startswith("cuda") else MonotonicClock()
    budget = Budget(samples=5, min_time_s=seconds / 2, max_time_s=seconds, warmup_s=seconds / 4)
    rates = {}
    for dtype in dtypes:
        rate = _product_rate(torch, device, dtype, clock, budget)
        if rate:
            rates[dtype] = rate
    return Ceilings(
        name=device_name(device),
        flops_per_s=rates,
        bytes_per_s=_copy_rate(torch, device, clock, budget),
        source=f"attnprof calibrate: best square product and copy, {torch.get_num_threads()} "
        f"threads, torch {torch.__version__}",
        measured=True,
    )


def _product_rate(torch: Any, device: str, dtype: str, clock: Clock, budget: Budget) -> float:
    best = 0.0
    for size in GPU_PRODUCTS if device.startswith("cuda") else PRODUCTS:
        a, b = (torch.randn(size, size, device=device).to(getattr(torch, dtype)) for _ in range(2))
        try:
            times = sample(clock, _nothing, lambda a=a, b=b: a @ b, budget)  # type: ignore[misc] # bound now
        except RuntimeError:  # no such product on this device
            return 0.0
        best = max(best, 2 * size**3 / min(times.wall_s))
    return best


def _copy_rate(torch: Any, device: str, clock: Clock, budget: Budget) -> float:
    source = torch.zeros(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = sample(clock, _nothing, lambda: target.copy_(source), budget)
    return 2 * COPY_BYTES / min(times.wall_s)


def _nothing() -> None:
    """Nothing to prepare."""


def save(ceilings: Ceilings, path: Path, *, device: str, threads: int, force: bool = False) -> None:
    """Add or replace a device's ceilings in a file; it is whole or not there.

    With ``force`` a file that is no calibration is overwritten.
    """
    try:
        with reading_back():
            there = entries(path)
    except RequestError:
        if not force:
            raise
        there = []
    kept = [entry for entry in there if _key(entry) != (ceilings.name, threads)]
    entry = {
        "name": ceilings.name, "device": device, "threads": threads,
        "flops_per_s": dict(ceilings.flops_per_s), "bytes_per_s": ceilings.bytes_per_s,
        "source": ceilings.source,
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps({"schema": SCHEMA, "ceilings": [*kept, entry]}, indent=1) + "\n")


def load(name: str, threads: int | None, path: Path | None = None) -> Ceilings | None:
    """The measured ceilings of a device with this many threads; None where there are none.

    Raises :class:`RequestError` for a file that is no calibration.
    """
    where = default_path() if path is None else path
    for entry in entries(where):
        if _key(entry) == (name, threads):
            return Ceilings(
                name, entry["flops_per_s"], entry["bytes_per_s"], entry["source"], measured=True
            )
    return None


RATES = {"flops_per_s": dict[str, float], "bytes_per_s": float, "source": str}
_ENTRY = {"name": str, "device": str, "threads": int, **RATES}
_ANEW = "move it away and run attnprof calibrate"


def _key(entry: dict[str, Any]) -> tuple[str, int]:
    return entry["name"], entry["threads"]


def entries(path: Path) -> list[dict[str, Any]]:
    """The devices of a calibration; :class:`RequestError` for a file that is none."""
    if not path.exists():
        return []
    data = read_json(path, TEXT_LIMIT, _ANEW)
    found = data.get("ceilings") if isinstance(data, dict) else None
    known = isinstance(found, list) and data.get("schema") == SCHEMA
    if not known or not all(is_ceiling(entry, _ENTRY) for entry in found or ()):
        raise RequestError(f"{path} is no calibration; {_ANEW}")
    return found or []


def is_ceiling(entry: Any, fields: Mapping[str, Any]) -> bool:
    """Whether a value of a file says of a device what ``fields`` declare, and rates above 0."""
    if not isinstance(entry, dict) or not all(
        fits(entry.get(name), hint) for name, hint in fields.items()
    ):
        return False
    return all(rate > 0 for rate in (entry["bytes_per_s"], *entry["flops_per_s"].values()))
