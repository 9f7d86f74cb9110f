"""Evaluate a quantity of a closed form or printed formula, at one size or over a whole grid."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from attnprof.algebra.expressions import expression_text, symbol
from attnprof.arguments import choice
from attnprof.costs import COST_FIELDS, CostTable, Number
from attnprof.errors import RequestError
from attnprof.mechanism import Mechanism
from attnprof.workload import Published, Workload

if TYPE_CHECKING:
    import numpy as np

#: Cells evaluated together: their arrays stay in the processor's cache.
CHUNK = 32_768
#: Largest value in int64 that leaves room for intermediate sums and products.
SAFE = 2**60

QUANTITIES = (
    "flops", "matmul_flops", "macs", "operations", *COST_FIELDS[:5], "bytes_moved",
    "peak_bytes", "peak_entries", "parameters", "state_entries",
)  # fmt: skip


#: The quantity of bytes that a decoding step has to move, which is no sum of stages.
STEP_BYTES = "step_bytes"


def step_bytes(mechanism: Mechanism, workload: Workload, scope: str) -> Number:
    """Return the bytes that a decoding step has to move, however it is computed.

    Weights are read once for the whole batch (scope ``layer``), the state is read, and its new
    entries are written. ``workload`` is of phase ``decode``, else :class:`RequestError`.
    """
    mechanism.check(workload, scope)
    if workload.phase != "decode":
        raise RequestError("bytes of a step are those of decoding; use --phase decode")
    weights = mechanism.parameters(workload, scope) if scope == "layer" else 0
    return weights * workload.item_size + mechanism.state_traffic(workload, scope)


def state_bytes(mechanism: Mechanism, workload: Workload, entries: Number) -> Number:
    """Return the bytes of so many entries of a decoder's state, of which some may be wider."""
    size = workload.item_size
    if size == 1:
        return entries
    wider = max(0, 4 - size) * mechanism.wide_entries(workload)
    return entries * size + wider + (8 - size) * mechanism.whole_entries(workload)


@lru_cache(maxsize=1024)
def _table(mechanism: Mechanism, workload: Workload, scope: str) -> CostTable:
    """Return a cost table, remembered: several quantities and searches use the same sizes."""
    return mechanism.cost(workload, scope)


def quantity_of(mechanism: Mechanism, workload: Workload, scope: str, quantity: str) -> Number:
    """Return a quantity of a closed form, at ints, arrays or symbols; else RequestError."""
    if quantity == STEP_BYTES:
        return step_bytes(mechanism, workload, scope)
    choice("quantity", quantity, QUANTITIES)
    if quantity == "parameters":
        return mechanism.parameters(workload, scope)
    if quantity == "operations":
        return mechanism.definition(workload, scope).operations
    if quantity == "peak_entries":
        return mechanism.cost(replace(workload, dtype="entry"), scope).peak()
    try:
        table = _table(mechanism, workload, scope)
    except TypeError:  # arrays of sizes have no hash, nor have parameters that are lists
        table = mechanism.cost(workload, scope)
    return quantity_in(table, quantity)


def quantity_in(table: CostTable, quantity: str) -> Number:
    """Return a quantity of a closed form's table of stages."""
    if quantity == "peak_bytes":
        return table.peak()
    if quantity in ("matmul_flops", "state_entries"):
        return getattr(table, quantity)
    return getattr(table.total, quantity)


def formula_values(
    mechanism: Mechanism, workload: Workload, scope: str, quantity: str, seq_lens: Sequence[int],
    head_dims: Sequence[int],
) -> "np.ndarray":  # fmt: skip
    """Return a quantity over (seq_len, head_dim), the other sizes from ``workload``.

    The integers are exact: int64 where every value fits, else Python integers in an object array.
    """
    import numpy as np

    if not head_dims:
        return np.empty((len(seq_lens), 0), dtype=np.int64)
    largest = workload.with_(seq_len=max(seq_lens), head_dim=max(head_dims))
    corner = quantity_of(mechanism, largest, scope, quantity)
    # above the count of any mechanism here, and of any branch that its form does not take
    n, d, width = largest.seq_len, largest.head_dim, largest.d_model
    bound = 256 * largest.batch_size * n * width * max(n, width, d * d)
    small = corner < SAFE and bound < SAFE
    kind: Any = np.int64 if small else object
    values = np.empty((len(seq_lens), len(head_dims)), dtype=kind)
    for rows, seq in _size_groups(seq_lens, max(1, CHUNK // len(head_dims)), kind):
        for columns, dims in _size_groups(head_dims, len(head_dims), kind):
            cell = workload.with_(
                seq_len=seq if isinstance(seq, int) else seq[:, None],
                head_dim=dims if isinstance(dims, int) else dims[None, :],
            )
            values[np.ix_(rows, columns)] = quantity_of(mechanism, cell, scope, quantity)
    return values


def _size_groups(sizes: Sequence[int], most: int, kind: Any) -> Iterator[tuple[list[int], Any]]:
    """Yield positions and values of sizes, ``most`` at a time.

    A size of 1 goes alone and as a plain int. The closed form has other terms there, as a tensor of
    size 1 broadcasts, and is not summed.
    """
    import numpy as np

    ones = [i for i, size in enumerate(sizes) if size == 1]
    if ones:
        yield ones, 1
    rest = [i for i, size in enumerate(sizes) if size != 1]
    for start in range(0, len(rest), most):
        part = rest[start : start + most]
        yield part, np.array([sizes[i] for i in part], dtype=kind)


# -- printed formulas ------------------------------------------------------------------
_Pair = tuple[Published, Published]


def comparable(a: Mechanism, b: Mechanism) -> list[_Pair]:
    """Return pairs of printed formulas: equal document, scope, phase, quantity, convention."""
    return [(x, y) for x in a.published() for y in b.published() if x.terms == y.terms]


def pairs_for(
    pairs: Sequence[_Pair], quantity: str, phase: str, causal: bool, scope: str | None,
    heads: Sequence[int],
) -> list[_Pair]:  # fmt: skip
    """Return the pairs for a request, in any scope if ``scope`` is None."""
    return [
        (form, other)
        for form, other in pairs
        if (form.quantity, form.phase, form.causal) == (quantity, phase, causal)
        and scope in (None, form.scope)
        and (form.heads != "one" or set(heads) == {1})
    ]


def published_values(
    formula: Published, num_heads: int, seq_lens: Sequence[int], d_models: Sequence[int]
) -> "np.ndarray":
    """Return a printed formula over (seq_len, d_model): exact if heads divide the width.

    Other widths are evaluated with a fractional head width, as documents do.
    """
    import numpy as np

    def column(width: int) -> "np.ndarray":
        def at(n: Any, head_dim: Number) -> Any:
            return formula.formula(
                Workload(seq_len=n, num_heads=num_heads, head_dim=head_dim, width=width)
            )

        above = -(-width // num_heads)
        n = np.array(seq_lens, dtype=np.int64 if at(max(seq_lens), above) < SAFE else object)
        head_dim = np.array([width / num_heads]) if width % num_heads else above
        return np.broadcast_to(at(n, head_dim), n.shape)

    columns = [column(width) for width in d_models]
    if len({values.dtype for values in columns}) > 1:
        columns = [values.astype(object) for values in columns]
    return np.stack(columns, axis=1)


def why_memory_differs(a: Mechanism, b: Mechanism, workload: Workload, scope: str) -> str | None:
    """Return a sentence with the printed sums of entries and the peaks of the code.

    None if no document prints both sides.
    """
    printed = next((pair for pair in comparable(a, b) if pair[0].quantity == "peak_entries"), None)
    if printed is None:
        return None
    sizes = workload.with_(seq_len=symbol("N"), head_dim=symbol("d"))
    said = [
        f"{side.name} {expression_text(form.formula(sizes))}"
        for side, form in zip((a, b), printed, strict=True)
    ]
    entry = sizes.with_(dtype="entry")
    peaks = [f"{side.name} {expression_text(side.cost(entry, scope).peak())}" for side in (a, b)]
    return (
        "memory differs because the document adds up the entries of the tensors it names "
        f"({'; '.join(said)}), while running code holds, at its worst moment, what autograd and "
        f"evaluation order leave alive together ({'; '.join(peaks)} entries)"
    )
