"""The ceilings of this device as they are measured: the best product and the best copy."""

from collections.abc import Sequence

import torch

from attnprof.device.ceilings import Ceilings
from attnprof.measure.clocks import Clock, sample
from attnprof.measure.environment import device_name
from attnprof.measure.request import Budget

#: Square products tried, and the bytes of a copy: far beyond every cache.
PRODUCTS = (256, 512, 1024, 2048)
GPU_PRODUCTS = (2048, 4096, 8192)
COPY_BYTES = 1 << 28


def measured_ceilings(device: str, dtypes: Sequence[str], seconds: float, clock: Clock) -> Ceilings:
    """Measure ceilings, the best of all sizes: what the device can do, not its average."""
    budget = Budget(samples=5, min_time_s=seconds / 2, max_time_s=seconds, warmup_s=seconds / 4)
    rates = {dtype: _product_rate(device, dtype, clock, budget) for dtype in dtypes}
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


def _product_rate(device: str, dtype: str, clock: Clock, budget: Budget) -> float:
    best = 0.0
    for size in GPU_PRODUCTS if device.startswith("cuda") else PRODUCTS:
        a, b = (torch.randn(size, size, device=device).to(getattr(torch, dtype)) for _ in range(2))
        try:
            times = sample(clock, lambda: None, lambda a=a, b=b: a @ b, budget)  # type: ignore[misc] # bound now
        except RuntimeError:  # no such product on this device
            return 0.0
        quickest = min(product.wall_s for product in times)
        best = max(best, 2 * size**3 / quickest)
        if 8 * quickest > budget.max_time_s:  # the next one, twice the size, takes longer
            break
    return best
