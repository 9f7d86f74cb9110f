"""What devices can do at most, and how near a measurement comes.

Makers' figures with their source, dense and at the boost clock they are stated for; those of a
device that is not among them are measured. Nothing is guessed.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from attnprof.errors import RequestError
from attnprof.measure.clocks import Clock, CudaClock, sample
from attnprof.measure.environment import device_name
from attnprof.measure.request import Budget
from attnprof.record import ProfileRecord, Report
from attnprof.record.files import TEXT_LIMIT, read_json, write_whole
from attnprof.record.recognition import SCHEMA, reading_back
from attnprof.record.report import fits

TERA, GIGA = 10**12, 10**9


@dataclass(frozen=True)
class Ceilings:
    """Most floating-point operations and bytes a second.

    ``flops_per_s`` by number format; ``tf32`` where float32 products may use it. ``source`` says
    where every number is from; ``measured`` that it was measured and not stated by the maker.
    """

    name: str
    flops_per_s: Mapping[str, float]
    bytes_per_s: float
    source: str
    measured: bool = False

    def rate(self, dtype: str, *, tf32: bool = False) -> float | None:
        """FLOP/s for a number format; None where the source does not say."""
        if dtype == "float32" and tf32 and "tf32" in self.flops_per_s:
            return self.flops_per_s["tf32"]
        return self.flops_per_s.get(dtype)


def _gpu(
    name: str, source: str, bandwidth_gb: float, half: float, single: float,
    tf32: float | None = None, double: float | None = None, *, bfloat16: bool = True,
) -> Ceilings:  # fmt: skip
    """A GPU from figures in TFLOP/s and GB/s."""
    rates = {"float16": half, "float32": single, "bfloat16": half if bfloat16 else None,
             "tf32": tf32, "float64": double}  # fmt: skip
    scaled = {dtype: rate * TERA for dtype, rate in rates.items() if rate is not None}
    return Ceilings(name, scaled, bandwidth_gb * GIGA, source)


#: Matched against the name a driver reports, the most specific first. float64 is the maker's
#: figure for its matrix units where there are any.
GPUS: tuple[Ceilings, ...] = (
    _gpu("H200", "NVIDIA H200 Tensor Core GPU datasheet, SXM, halved where stated with sparsity",
         4800, 989.5, 67, 494.5, 67),
    _gpu("H100 PCIe", "NVIDIA H100 Tensor Core GPU datasheet, PCIe, halved where with sparsity",
         2000, 756.5, 51, 378, 51),
    _gpu("H100", "NVIDIA H100 Tensor Core GPU datasheet, SXM5, halved where stated with sparsity",
         3350, 989.5, 67, 494.5, 67),
    _gpu("A100-SXM4-80GB", "NVIDIA A100 Tensor Core GPU datasheet, 80GB SXM",
         2039, 312, 19.5, 156, 19.5),
    _gpu("A100 80GB PCIe", "NVIDIA A100 Tensor Core GPU datasheet, 80GB PCIe",
         1935, 312, 19.5, 156, 19.5),
    _gpu("A100", "NVIDIA A100 Tensor Core GPU datasheet, 40GB", 1555, 312, 19.5, 156, 19.5),
    _gpu("L40S", "NVIDIA L40S datasheet, halved where stated with sparsity",
         864, 362.05, 91.6, 183),
    _gpu("L4", "NVIDIA L4 Tensor Core GPU datasheet, halved where stated with sparsity",
         300, 121, 30.3, 60),
    _gpu("A10G", "AWS, Amazon EC2 G5 instances; NVIDIA A10G", 600, 70, 35, 35),
    _gpu("A10", "NVIDIA A10 Tensor Core GPU datasheet", 600, 125, 31.2, 62.5),
    _gpu("T4", "NVIDIA T4 Tensor Core GPU datasheet", 300, 65, 8.1, bfloat16=False),
    _gpu("V100-SXM2", "NVIDIA V100 Tensor Core GPU datasheet, SXM2",
         900, 125, 15.7, double=7.8, bfloat16=False),
)  # fmt: skip


def stated(device_name: str) -> Ceilings | None:
    """The maker's figures for a device by its driver's name for it; None where there are none."""
    words = re.split(r"[-_ ]", device_name.upper())
    return next((gpu for gpu in GPUS if set(re.split("[- ]", gpu.name.upper())) <= {*words}), None)


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

    clock = CudaClock(torch.cuda) if device.startswith("cuda") else Clock()
    budget = Budget(samples=5, min_time_s=seconds / 2, max_time_s=seconds, warmup_s=seconds / 4)
    rates = {dtype: _product_rate(torch, device, dtype, clock, budget) for dtype in dtypes}
    source = torch.zeros(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copies = sample(clock, lambda: None, lambda: target.copy_(source), budget)
    return Ceilings(
        name=device_name(device),
        flops_per_s={dtype: rate for dtype, rate in rates.items() if rate},
        bytes_per_s=2 * COPY_BYTES / min(copy.wall_s for copy in copies),
        source=f"attnprof calibrate: best square product and copy, {torch.get_num_threads()} "
        f"threads, torch {torch.__version__}",
        measured=True,
    )


def _product_rate(torch: Any, device: str, dtype: str, clock: Clock, budget: Budget) -> float:
    best = 0.0
    for size in GPU_PRODUCTS if device.startswith("cuda") else PRODUCTS:
        a, b = (torch.randn(size, size, device=device).to(getattr(torch, dtype)) for _ in range(2))
        try:
            times = sample(clock, lambda: None, lambda a=a, b=b: a @ b, budget)  # type: ignore[misc] # bound now
        except RuntimeError:  # no such product on this device
            return 0.0
        best = max(best, 2 * size**3 / min(product.wall_s for product in times))
    return best


def save(ceilings: Ceilings, path: Path, *, device: str, threads: int, force: bool = False) -> None:
    """Add or replace a device's ceilings in a whole file; ``force`` overwrites what is none."""
    try:
        with reading_back():
            there = entries(path)
    except RequestError:
        if not force:
            raise
        there = []
    own = (ceilings.name, threads)
    kept = [entry for entry in there if (entry["name"], entry["threads"]) != own]
    entry = {**asdict(ceilings), "device": device, "threads": threads}
    del entry["measured"]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps({"schema": SCHEMA, "ceilings": [*kept, entry]}, indent=1) + "\n")


def load(name: str, threads: int | None, path: Path | None = None) -> Ceilings | None:
    """Ceilings measured with so many threads, if any; RequestError for a file of another kind."""
    for entry in entries(default_path() if path is None else path):
        if (entry["name"], entry["threads"]) == (name, threads):
            return Ceilings(name, **{rate: entry[rate] for rate in RATES}, measured=True)
    return None


RATES = {"flops_per_s": dict[str, float], "bytes_per_s": float, "source": str}
_ENTRY = {"name": str, "device": str, "threads": int, **RATES}
_ANEW = "move it away and run attnprof calibrate"


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
    return (
        isinstance(entry, dict)
        and all(fits(entry.get(name), hint) for name, hint in fields.items())
        and all(rate > 0 for rate in (entry["bytes_per_s"], *entry["flops_per_s"].values()))
    )


def roofline(flops: int, bytes_moved: int, ceilings: Ceilings, rate: float) -> tuple[float, str]:
    """Williams, Waterman and Patterson's bound as a time, and which bounds, compute or memory."""
    compute, memory = flops / rate, bytes_moved / ceilings.bytes_per_s
    return max(compute, memory), "compute" if compute >= memory else "memory"


def ceilings_of(environment: Mapping[str, Any], path: Path | None = None) -> Ceilings | None:
    """The device's own calibration (in ``path`` or the cache folder), else the maker's figures."""
    name = str(environment.get("device_name") or "")
    return load(name, environment.get("threads"), path) or stated(name)


def with_roofline(report: Report, path: Path | None = None) -> Report:
    """The report with each record's share of the bound; untouched where the device is unknown."""
    ceilings = ceilings_of(report.environment, path)
    if ceilings is None:
        advice = "no ceilings known for this device: run attnprof calibrate"
        return replace(report, summary={**report.summary, "roofline": advice})
    tf32 = bool(report.environment.get("tf32"))
    records = [
        _placed(record, ceilings, tf32=tf32) if isinstance(record, ProfileRecord) else record
        for record in report.records
    ]
    told = asdict(ceilings)
    told = {"device": told.pop("name"), **told}
    return replace(report, records=records, summary={**report.summary, "roofline": told})


def _placed(record: ProfileRecord, ceilings: Ceilings, *, tf32: bool) -> ProfileRecord:
    rate = ceilings.rate(record.dtype, tf32=tf32)
    flops = record.flops_formula or record.flops_derived
    if not (rate and record.median_s and flops and record.bytes_moved) or record.contradicted:
        return record
    time_s, bound = roofline(flops, record.bytes_moved, ceilings, rate)
    share = time_s / record.median_s
    return replace(record, roofline_time_s=time_s, bound=bound, roofline_fraction=share)
