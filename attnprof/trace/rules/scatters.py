"""Picking and placing entries: additions where places are hit more than once."""

from __future__ import annotations

from typing import Any

from attnprof.trace.events import Size
from attnprof.trace.rules.products import is_factor, macs_sums, scaled
from attnprof.trace.rules.table import OTHER, A, Counts, D, M, rule, rule_by_name, summed
from attnprof.trace.sizes import is_floating, numel, product, size_of

#: By name of the reduction: the operation of an entry that is placed.
_REDUCTIONS = {
    "sum": A,
    "add": A,
    "mean": A,
    "prod": M,
    "multiply": M,
    "amax": OTHER,
    "amin": OTHER,
}


@rule("scatter_add")
def _scatter_add(out: Any, _a: Any, _dim: Any, index: Any, _source: Any) -> Counts:
    return macs_sums(out, numel(index))


@rule("index_add")
def _index_add(
    out: Any, _a: Any, _dim: Any, _index: Any, source: Any, *, alpha: float = 1
) -> Counts:
    weighted = scaled(out, numel(source)) if is_factor(alpha) else {}
    return summed(macs_sums(out, numel(source)), weighted)


@rule_by_name("scatter", "scatter_reduce")
def _scatter(out: Any, call: Any) -> Counts:
    """A move, or one operation an entry; a mean divides each result."""
    kind = getattr(call, "reduce", None)
    if kind is None or not is_floating(out):
        return {}
    return summed({_REDUCTIONS[kind]: numel(call.index)}, {D: numel(out)} if kind == "mean" else {})


@rule_by_name("index_reduce")
def _index_reduce(out: Any, call: Any) -> Counts:
    if not is_floating(out):
        return {}
    kind = call.reduce
    placed = {_REDUCTIONS[kind]: numel(call.source)}
    return summed(placed, {D: numel(out)} if kind == "mean" else {})


@rule("index_put", "_index_put_impl", "_unsafe_index_put")
def _index_put(
    out: Any, a: Any, indices: Any, values: Any, accumulate: bool = False, *_rest: Any
) -> Counts:
    return macs_sums(out, _placed(a, indices, values)) if accumulate else {}


@rule("_unsafe_masked_index_put_accumulate")
def _masked_put(out: Any, _a: Any, _mask: Any, _indices: Any, values: Any) -> Counts:
    return macs_sums(out, numel(values))


@rule("unfold_backward", "col2im", "reflection_pad1d_backward", "reflection_pad2d_backward",
      "reflection_pad3d_backward", "replication_pad1d_backward", "replication_pad2d_backward",
      "replication_pad3d_backward", "upsample_nearest1d_backward", "upsample_nearest2d_backward",
      "upsample_nearest3d_backward", "max_pool2d_with_indices_backward",
      "max_pool3d_with_indices_backward")  # fmt: skip
def _folded(out: Any, grad: Any, *_rest: Any, **_named: Any) -> Counts:
    """Each entry is added to the one it came from."""
    return macs_sums(out, numel(grad))


@rule("put")
def _put(out: Any, _a: Any, index: Any, _source: Any, accumulate: bool = False) -> Counts:
    return macs_sums(out, numel(index)) if accumulate else {}


def _placed(a: Any, indices: Any, values: Any) -> Size:
    """Entries that an index addresses (those of the values, where the index is a mask)."""
    used = [x for x in indices if x is not None]
    if any(is_mask(x) for x in used):
        return numel(values)
    import torch

    addressed = product(torch.broadcast_shapes(*(x.shape for x in used)))  # type: ignore[no-untyped-call]
    left = [size for place, size in enumerate(a.shape)
            if place >= len(indices) or indices[place] is None]  # fmt: skip
    return addressed * product(map(size_of, left))


def is_mask(index: Any) -> bool:
    """Whether an index says yes or no, entry by entry."""
    return str(index.dtype) in {"torch.bool", "torch.uint8"}


@rule("embedding_dense_backward")
def _embedding_backward(
    _out: Any, grad: Any, _indices: Any, _rows: Any, _padding: Any, by_count: bool = False
) -> Counts:
    """Each row of the gradient added to its token's; by frequency, divided by it."""
    return summed({A: numel(grad)}, {D: numel(grad)} if by_count else {})
