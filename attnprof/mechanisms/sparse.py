"""Sparse Transformer (003, sparse family): strided and fixed patterns in O(N·sqrt N)."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from attnprof import costs
from attnprof.blocks.gathered import Block, band_mask, gathered_attention, happens, hidden, in_band
from attnprof.blocks.softmax import KeyValueState, causal_mask, empty_rows, weighted_values
from attnprof.mechanism import Mechanism
from attnprof.ops.functional import join
from attnprof.ops.layer import Definition, LayerSizes, flat
from attnprof.ops.loops import turns
from attnprof.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Sparse(Mechanism):
    """Each row sees about 2·sqrt N tokens, in one of two patterns of stride l.

    ``strided``: the tokens nearer than l, and those a multiple of l away. ``fixed``: the tokens of
    its own block of l, and the last token of every other block. ``stride`` none is ⌈sqrt N⌉,
    which makes the order N·sqrt N; with a given stride it is N²/l in the end. A row whose own
    block is cut short by the end of the sequence has no last token to offer.
    """

    stride: int | None = None
    pattern: str = "strided"

    name: ClassVar[str] = "sparse"
    title: ClassVar[str] = "Sparse Transformer attention"
    document: ClassVar[str] = "003"
    family: ClassVar[str] = "sparse"
    time_order: ClassVar[str] = "N^1.5"
    memory_order: ClassVar[str] = "N"
    allowed: ClassVar[dict[str, Any]] = {"pattern": ("strided", "fixed"), "stride": 1}
    decodes_with: ClassVar[str] = "stride"  # sqrt N would move with every token
    tuned = ("stride",)
    to_softmax = ("approximates", "softmax over the pairs of its pattern: all with stride 1 or N")
    reasons: ClassVar[dict[str, str]] = {
        "decode": "needs a stride that does not change while it decodes: set stride "
        "(--set stride=128)"
    }

    def stride_for(self, n: costs.Number) -> costs.Number:
        """Return the stride at a length."""
        return costs.ceil_sqrt(n) if self.stride is None else self.stride

    # -- text --------------------------------------------------------------------------------
    def core(self, q: Any, k: Any, v: Any, causal: bool) -> Any:
        """Compute gathered blocks; strided joins near and far tokens in one softmax."""
        n, strided = q.shape[2], self.pattern == "strided"
        stride = self.stride_for(n)
        masks = (_strided_masks if strided else _fixed_masks)(n, stride, causal, q)
        pattern = partial(_strided if strided else _fixed, stride, causal)
        operands = flat(q), flat(k), flat(v), *masks
        return gathered_attention(*operands, pattern=pattern, merges=strided).view(q.shape)

    # -- decoding ------------------------------------------------------------------------
    def init_state(self, sizes: LayerSizes, cache: Any) -> Any:
        """Return caches of every token's keys and values: strides may reach each again."""
        self.refuse_unless(decode=True)
        return KeyValueState(*empty_rows(sizes, cache))

    def step(self, q: Any, k: Any, v: Any, state: Any, weights: Any) -> tuple[Any, Any]:
        """Attend from the new token to the tokens that its pattern sees, gathered from all."""
        keys, values = state.append(k, v)
        keys, values = self._in_sight(keys), self._in_sight(values)
        return weighted_values(flat(q), keys, values).view(q.shape), state

    def _in_sight(self, rows: Any) -> Any:
        """Return the rows of (b, t, d) that the last token sees."""
        t = rows.shape[1]
        stride = self.stride_for(t)
        before = costs.floor_div(t - 1, stride)
        if self.pattern == "strided":
            near, far = t - costs.minimum(t, stride), t - 1 - before * stride
        else:
            near, far = before * stride, stride - 1
        return join([rows[:, _spaced(far, before, stride)], rows[:, near:]], 1)

    def tokens_in_sight(self, t: costs.Number, stride: costs.Number) -> costs.Number:
        """Return the tokens that the new token number t sees, at a stride."""
        before = costs.floor_div(t - 1, stride)
        if self.pattern == "fixed":
            return t - before * stride + before
        return costs.minimum(t, stride) + before

    # -- the definition ------------------------------------------------------------------
    def pairs(self, w: Workload) -> costs.Number:
        """Return query-key pairs of the definition."""
        n = w.seq_len
        stride = self.stride_for(n)
        if w.phase == "decode":
            return self.tokens_in_sight(n, stride)
        full = costs.floor_div(n, stride)
        last = n - full * stride
        if self.pattern == "fixed" and w.causal:
            inside = costs.exact_div(full * stride * (stride + 1) + last * (last + 1), 2)
            return inside + stride * costs.exact_div(full * (full - 1), 2) + last * full
        if self.pattern == "fixed":
            inside = full * stride * stride + last * last
            return inside + stride * full * costs.maximum(0, full - 1) + last * full
        reach = costs.minimum(stride - 1, n - 1)
        side = n * reach - costs.exact_div(reach * (reach + 1), 2)
        # tokens a multiple of the stride before each row
        far = costs.exact_div(stride * full * (full - 1), 2) + last * full
        return n + side + far if w.causal else n + 2 * (side + far)

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Define softmax attention over the pairs a row sees."""
        rows = 1 if workload.phase == "decode" else workload.seq_len
        writer.softmax_attention(workload, self.pairs(workload), rows)


def _spaced(first: Any, count: Any, stride: Any) -> slice:
    """Return a slice of ``count`` tokens, a stride apart."""
    return slice(first, first + count * stride, stride)


# -- the strided pattern -------------------------------------------------------------------
def _strided_masks(n: Any, stride: Any, causal: bool, like: Any) -> list[Any]:
    near = band_mask(costs.minimum(stride, n), stride - 1, 0 if causal else stride - 1, like)
    classes = costs.ceil_div(n, stride)
    longest = (classes - (1 if causal else 0)) * happens(classes - 1)
    far = like.new_ones(longest, longest, dtype=bool)
    # causal rows start a stride later than their keys; else a token is in its own band
    far = far.triu_(1) if causal else far.tril_().triu_()
    return [near, hidden(far, like)]


def _strided(stride: Any, causal: bool, q: Any, masks: tuple[Any, ...]) -> Iterator[Block]:
    """Yield a band nearer than a stride, then every residue class with itself."""
    n, (near, far) = q.shape[1], masks
    later = 1 if causal else 0
    for rows, near_keys, columns in in_band(q, n, stride, stride - 1, 0 if causal else stride - 1):
        yield Block(rows, (near_keys,), near[: rows.stop - rows.start, columns])
    for first, tokens in turns(q, _classes(n, stride), _classes_alike(n, stride)):
        count = tokens - later
        keys, rows = _spaced(first, count, stride), _spaced(first + later * stride, count, stride)
        yield Block(rows, (keys,), far[:count, :count], merges=True)


def _classes(n: int, stride: int) -> Iterator[tuple[int, int]]:
    """Yield the first token of every residue class of more than one, and how many it has."""
    for first in range(min(stride, n - stride)):
        yield first, costs.ceil_div(n - first, stride)


def _classes_alike(n: Any, stride: Any) -> Iterator[tuple[str, Any, tuple[Any, Any]]]:
    full = costs.floor_div(n, stride)
    more = n - full * stride
    yield "longer classes", more * happens(full), (0, full + 1)
    yield "shorter classes", (stride - more) * happens(full - 1), (0, full)


# -- the fixed pattern ---------------------------------------------------------------------
def _fixed_masks(n: Any, stride: Any, causal: bool, like: Any) -> list[Any]:
    return [hidden(causal_mask(costs.minimum(stride, n), like), like)] if causal else []


def _fixed(stride: Any, causal: bool, q: Any, masks: tuple[Any, ...]) -> Iterator[Block]:
    """Yield every block with itself and the last token of every other whole block."""
    n = q.shape[1]
    full = costs.floor_div(n, stride)
    for index, rows in turns(q, _strides(n, stride), _strides_alike(n, stride, causal)):
        before = _spaced(stride - 1, index, stride)
        if causal:
            length = rows.stop - rows.start
            yield Block(rows, (before, rows), masks[0][:length, :length], index)
        elif costs.same_size(index, full):  # cut short by the end of the sequence
            yield Block(rows, (before, rows))
        else:
            after = _spaced(rows.stop + stride - 1, full - 1 - index, stride)
            yield Block(rows, (before, rows, after))


def _strides(n: int, stride: int) -> Iterator[tuple[int, slice]]:
    """Yield blocks of a stride, numbered."""
    for index in range(costs.ceil_div(n, stride)):
        yield index, slice(index * stride, min(n, (index + 1) * stride))


def _strides_alike(
    n: Any, stride: Any, causal: bool
) -> Iterator[tuple[str, Any, tuple[Any, slice]]]:
    """Yield one whole block for all; if causal, block m sees m strides before its own, too.

    Work is linear in m, so the mean stands for the early blocks; the latest stand alone, for the
    memory and for a whole mean.
    """
    full = costs.floor_div(n, stride)
    if causal:
        symbolic = costs.is_symbolic(full)
        alone = 1 if symbolic else costs.minimum(full, 1 + full % 2)
        early = costs.maximum(0, full - alone)
        mean = (early - 1) / 2 if symbolic else costs.maximum(0, early - 1) // 2
        yield "early blocks", early, (mean, slice(0, stride))
        yield "last whole block but one", happens(alone - 1), (full - 2, slice(0, stride))
        yield "last whole block", happens(full), (full - 1, slice(0, stride))
    else:
        yield "whole blocks", full, (0, slice(0, stride))
    rest = n - full * stride
    yield "cut block", happens(rest), (full, slice(0, rest))


MECHANISMS = (Sparse,)
