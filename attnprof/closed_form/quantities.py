"""A mechanism's closed form over a whole grid of sizes at once, in exact integers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnprof.costs import COST_FIELDS, Number
from attnprof.errors import RequestError, closest
from attnprof.mechanism import Mechanism
from attnprof.workload import Workload

if TYPE_CHECKING:
    import numpy as np

#: Cells evaluated together: their arrays stay in the processor's cache.
CHUNK = 32_768
#: Values up to here leave room for the sums and products on the way to them.
SAFE = 2**60

QUANTITIES = (
    "flops", "matmul_flops", "macs", "operations", *COST_FIELDS[:5], "bytes_moved",
    "peak_bytes", "peak_entries", "parameters", "state_entries",
)  # fmt: skip


def quantity_of(mechanism: Mechanism, workload: Workload, scope: str, quantity: str) -> Number:
    """One quantity of a closed form; sizes may be ints, arrays or symbols.

    Raises :class:`RequestError` for a quantity that does not exist, and what the mechanism
    itself refuses.
    """
    if quantity not in QUANTITIES:
        raise RequestError(f"unknown quantity '{quantity}': {closest(quantity, list(QUANTITIES))}")
    if quantity == "parameters":
        return mechanism.parameters(workload, scope)
    if quantity == "operations":
        return mechanism.definition(workload, scope).operations
    if quantity == "peak_entries":
        return mechanism.cost(replace(workload, dtype="entry"), scope).peak()
    table = mechanism.cost(workload, scope)
    if quantity == "peak_bytes":
        return table.peak()
    if quantity in ("matmul_flops", "state_entries"):
        return getattr(table, quantity)
    return getattr(table.total, quantity)


def formula_values(
    mechanism: Mechanism,
    workload: Workload,
    scope: str,
    quantity: str,
    seq_lens: Sequence[int],
    head_dims: Sequence[int],
) -> np.ndarray:
    """A quantity over (seq_len, head_dim), the other sizes from ``workload``: exact integers.

    int64 where every value fits, Python integers in an object array where one does not.
    """
    import numpy as np

    if not head_dims:
        return np.empty((len(seq_lens), 0), dtype=np.int64)
    largest = workload.with_(seq_len=max(seq_lens), head_dim=max(head_dims))
    corner = quantity_of(mechanism, largest, scope, quantity)
    small = corner < SAFE and _bound(largest) < SAFE
    kind: Any = np.int64 if small else object
    values = np.empty((len(seq_lens), len(head_dims)), dtype=kind)
    for rows, seq in _blocks(seq_lens, max(1, CHUNK // len(head_dims)), kind):
        for columns, width in _blocks(head_dims, len(head_dims), kind):
            n = seq if isinstance(seq, int) else seq[:, None]
            d = width if isinstance(width, int) else width[None, :]
            cell = workload.with_(seq_len=n, head_dim=d)
            values[np.ix_(rows, columns)] = quantity_of(mechanism, cell, scope, quantity)
    return values


def _bound(largest: Workload) -> int:
    """More than any attention here counts: N·D·max(N, D, d²) and a generous factor.

    Forms that switch compute the branch they do not take as well; this covers it.
    """
    n, d, width = largest.seq_len, largest.head_dim, largest.d_model
    return int(256 * largest.batch_size * n * width * max(n, width, d * d))


def _blocks(sizes: Sequence[int], most: int, kind: Any) -> Iterator[tuple[list[int], Any]]:
    """Positions and values, ``most`` at a time.

    A size of 1 goes alone and as a plain int: a tensor of size 1 broadcasts, and is not summed,
    where a longer one is, so that the closed form takes another path there.
    """
    import numpy as np

    ones = [i for i, size in enumerate(sizes) if size == 1]
    if ones:
        yield ones, 1
    rest = [i for i, size in enumerate(sizes) if size != 1]
    for start in range(0, len(rest), most):
        part = rest[start : start + most]
        yield part, np.array([sizes[i] for i in part], dtype=kind)
