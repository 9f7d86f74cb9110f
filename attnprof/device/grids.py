"""The sizes that operations are measured at, on a CPU and on a GPU."""

from dataclasses import dataclass

from attnprof.device.product_times import ON_CPU, ON_GPU, ProductLimits


@dataclass(frozen=True)
class Grids:
    """Sizes that operations are measured at, from where a call's overhead is all.

    ``entries`` reach to where no cache holds them, closer to each other where one cache after
    another stops holding them; at a ``few`` single operations are told apart: overhead, one
    thread, all threads. ``runs`` are entries that lie apart. ``most`` entries are those of rows,
    of runs, and of pieces that are moved. Rows whose entries do not lie next to each other lie
    ``beside`` so many others (None: beside all of them).
    """

    entries: tuple[int, ...]
    few: tuple[int, ...]
    runs: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    sorted_rows: tuple[int, ...]
    pieces: tuple[int, ...]
    most: int
    products: ProductLimits
    beside: int | None = None


CPU_GRIDS = Grids(
    entries=(*(4**power for power in range(3, 8)), *(2**power for power in range(16, 23)), 4**12),
    few=(64, 4096, 2**17),
    runs=(2, 16, 128, 1024, 4096),
    rows=(1, 16, 256, 4096, 65536),
    columns=(4, 16, 64, 256, 1024, 4096, 16384),
    sorted_rows=(1, 16, 256, 4096),
    pieces=(16, 256, 4096, 65536),
    most=2**22,
    products=ON_CPU,
)
#: A GPU does far more at once, and its cache holds far more.
GPU_GRIDS = Grids(
    entries=(*(4**power for power in range(3, 9)), *(2**power for power in range(18, 28))),
    few=(64, 4096, 2**17, 2**21, 2**25),
    runs=(2, 16, 128, 1024, 4096, 2**16, 2**20, 2**24),
    rows=(1, 16, 256, 4096, 65536, 2**20),
    columns=(4, 16, 64, 256, 1024, 4096, 16384, 65536),
    sorted_rows=(1, 16, 256, 4096, 65536),
    pieces=(16, 256, 4096, 65536, 2**20),
    most=2**28,
    products=ON_GPU,
    beside=64,
)


def grids(device: str) -> Grids:
    """Return the sizes that suit a device."""
    return GPU_GRIDS if device.startswith("cuda") else CPU_GRIDS
