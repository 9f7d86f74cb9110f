"""Ceilings of devices: the most FLOP/s and bytes/s that their makers state, with the source.

A roofline and a lower bound on a time need a device's ceilings. Figures are for dense arithmetic at
the stated clock. A device that is missing here is measured by ``attnprof calibrate``; no figure is
guessed. Entry points: :func:`stated_ceilings` for a driver's name, :func:`device_named` for a
typed one.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnprof.errors import RequestError
from attnprof.measure.environment import device_name
from attnprof.record.report import fits

TERA, GIGA = 10**12, 10**9


@dataclass(frozen=True)
class Ceilings:
    """The most floating-point operations and bytes per second of a device.

    ``flops_per_s``: by number format, and by ``tf32`` for float32 products that may round so.
    ``source``: publication or measurement that the numbers are from. ``measured``: by attnprof, not
    stated by the maker.
    """

    name: str
    flops_per_s: Mapping[str, float]
    bytes_per_s: float
    source: str
    measured: bool = False

    def rate(self, dtype: str, *, tf32: bool = False) -> float | None:
        """Return FLOP/s for a number format; None if the source has no figure.

        ``tf32``: float32 products may use TF32.
        """
        if dtype == "float32" and tf32 and "tf32" in self.flops_per_s:
            return self.flops_per_s["tf32"]
        return self.flops_per_s.get(dtype)


def _gpu(
    name: str, source: str, bandwidth_gb: float, half: float, single: float,
    tf32: float | None = None, double: float | None = None, *, bfloat16: bool = True,
) -> Ceilings:  # fmt: skip
    """Return a GPU's ceilings from TFLOP/s (``half``, ``single``, …) and GB/s.

    ``bfloat16``: whether it multiplies bfloat16 at float16's rate, or not at all.
    """
    rates = {"float16": half, "float32": single, "bfloat16": half if bfloat16 else None,
             "tf32": tf32, "float64": double}  # fmt: skip
    scaled = {dtype: rate * TERA for dtype, rate in rates.items() if rate is not None}
    return Ceilings(name, scaled, bandwidth_gb * GIGA, source)


#: GPUs by words of the name that a driver reports, the most specific first. Rates of float64 are
#: those of matrix units if a GPU has such units.
GPUS: tuple[Ceilings, ...] = (
    _gpu("B200", "NVIDIA HGX B200 datasheet, one GPU, halved where stated with sparsity",
         8000, 2250, 75, 1100, 37),
    _gpu("MI300X", "AMD Instinct MI300X data sheet", 5300, 1307.4, 163.4, 653.7, 163.4),
    _gpu("MI325X", "AMD Instinct MI325X data sheet", 6000, 1307.4, 163.4, 653.7, 163.4),
    _gpu("RTX 4090", "NVIDIA Ada GPU architecture white paper, GeForce RTX 4090",
         1008, 165.2, 82.6, 82.6),
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
    _gpu("A30", "NVIDIA A30 Tensor Core GPU datasheet", 933, 165, 10.3, 82, 10.3),
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

#: Gigabytes (10**9 B) of memory by the same names, from the same sources.
MEMORY_GB: Mapping[str, float] = {
    "B200": 180, "MI300X": 192, "MI325X": 256, "RTX 4090": 24, "H200": 141, "H100 PCIe": 80,
    "H100": 80, "A100-SXM4-80GB": 80, "A100 80GB PCIe": 80, "A100": 40, "A30": 24, "L40S": 48,
    "L4": 24, "A10G": 24, "A10": 24, "T4": 16, "V100-SXM2": 16,
}  # fmt: skip


def device_named(name: str) -> Ceilings:
    """Return the maker's figures for a name as people type it: ``h100``, ``a100-80gb``.

    Of several that match, the one with the shortest name. Raises :class:`RequestError`, which lists
    the names, if none does.
    """
    name = re.sub(r"(?i)^(rtx)(?=\d)", r"\1 ", name)
    exact = [gpu for gpu in GPUS if gpu.name.casefold() == name.casefold()]
    matches = exact or [gpu for gpu in GPUS if is_named(name, gpu.name)] or [
        gpu for gpu in GPUS if is_named(gpu.name, name)
    ]  # fmt: skip
    if not matches:
        possible = ", ".join(gpu.name for gpu in GPUS)
        raise RequestError(f"--on {name}: its maker's figures are not known; possible: {possible}")
    return min(matches, key=lambda gpu: len(gpu.name))


#: Values of ``--on`` that mean a device of this machine.
THIS_MACHINE = ("cpu", "cuda")


def local_name(on: str) -> str:
    """Return the driver's name of a device of this machine; other values of ``--on`` unchanged."""
    return device_name(on) if on in THIS_MACHINE else on


def memory_of(on: str) -> int:
    """Return the bytes of a device's memory that its maker states; RequestError if unknown."""
    try:
        return int(MEMORY_GB[device_named(local_name(on)).name] * 10**9)
    except RequestError as error:
        raise RequestError(f"{error}; or type its memory, too, like --memory 16GB") from error


def stated_ceilings(device_name: str) -> Ceilings | None:
    """Return the maker's figures for a device by its driver's name; None if it is not in GPUS."""
    return next((gpu for gpu in GPUS if is_named(gpu.name, device_name)), None)


def is_named(short: str, device_name: str) -> bool:
    """Return whether a driver's name has every word of a short name like ``H200``."""
    wanted, words = (set(re.findall(r"[^\W_]+", name.upper())) for name in (short, device_name))
    return bool(wanted) and wanted <= words


#: Fields of ceilings in a file, with their types.
RATES = {"flops_per_s": dict[str, float], "bytes_per_s": float, "source": str}


def is_ceiling(entry: Any, fields: Mapping[str, Any]) -> bool:
    """Return whether a value of a file has all ``fields`` with their types, and rates above 0."""
    return (
        isinstance(entry, dict)
        and all(fits(entry.get(name), hint) for name, hint in fields.items())
        and all(rate > 0 for rate in (entry["bytes_per_s"], *entry["flops_per_s"].values()))
    )
