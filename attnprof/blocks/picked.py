"""Pick tokens or blocks of tokens for each row, and compute softmax attention over them.

Attention over picked keys has two forms with equal results, picked keys copied or a mask over all:
:class:`PickedForms` chooses one.
"""

from typing import Any, ClassVar

from attnprof.blocks.softmax import causal_mask, weighted_values
from attnprof.costs import Number, ceil_div, exact_div, floor_div, is_plain, minimum
from attnprof.errors import RequestError
from attnprof.mechanism import DENSE_MASK, Variant
from attnprof.ops.function import Function
from attnprof.ops.functional import (
    add_product,
    arange,
    copy_in_rows,
    empty_int32,
    put_rows,
    softmax_,
    softmax_grad_,
    square_root,
    zeros_like,
)
from attnprof.ops.layer import flat
from attnprof.ops.loops import each, in_blocks
from attnprof.workload import Workload, pairs

#: Keys that all rows of a block pick together: their copies stay in a processor's cache.
PICKED = 4096
#: Rows of a block that may pick up to four times as many keys: fewer rows are slow products.
FEW_ROWS = 8
#: Rows of a block of the indexer.
ROWS = 64


def _later(rows: slice, width: Any, like: Any) -> Any:
    """Return (rows, width) booleans, True at places after the row's own."""
    mask = like.new_ones(rows.stop - rows.start, width, dtype=bool)
    return mask.triu_(rows.start + 1)


def picks(
    q: Any, k: Any, shares: Any, *, top: int, causal: bool, block: int = 1, start: Any = 0
) -> Any:
    """Return the indices (b, n, top) of each row's highest scores, highest first; no gradient.

    A score is Σ_j shares_j relu(q_j · k): q (b, n, h, d), k (b, m, d), shares (b, n, h). Equal
    scores go to the earlier token. A causal row that sees fewer than ``top`` tokens has later ones
    in its last places. Above one token a ``block``, k are sums of blocks; then a row picks its own
    block first, and no later one. The first row is token number ``start``.
    """
    (b, n, h, d), m = q.shape, k.shape[1]
    indices = empty_int32(q, b, n, minimum(top, m))
    for sample in each(q, 0, b):
        for rows in in_blocks(q, n, ROWS):
            count = rows.stop - rows.start
            queries = q[sample, rows].reshape(1, count * h, d)
            alike = queries.bmm(k[sample].t().unsqueeze(0)).relu_().view(count, h, m)
            scores = shares[sample, rows].unsqueeze(1).bmm(alike).view(count, m)
            del alike
            if block > 1:
                _own_block_first(scores, rows, block, start)
            elif causal:
                scores.masked_fill_(_later(rows, m, q), float("-inf"))
            order = scores.sort(dim=-1, descending=True, stable=True).indices
            indices[sample, rows] = order[:, : minimum(top, m)]
            del queries, scores, order
    return indices


def _own_block_first(scores: Any, rows: slice, block: int, start: Any) -> None:
    """Set scores (…, r, blocks) of a row's own block to infinity, of later ones to minus it."""
    token = (arange(scores, rows.stop - rows.start) + (rows.start + start)).unsqueeze(1)
    own_first, first = token - token % block, arange(scores, scores.shape[-1], block)
    scores.masked_fill_(first > own_first, float("-inf"))
    scores.masked_fill_(first.eq(own_first), float("inf"))


def block_sums(k: Any, block: int) -> Any:
    """Return sums (b, blocks, d) over blocks of tokens of k (b, m, d); the last may be short."""
    b, m, d = k.shape
    sums = k.new_empty(b, ceil_div(m, block), d)
    for rows in in_blocks(k, m, block):
        sums[:, rows.start // block] = k[:, rows].sum(1)
    return sums


def block_picks(q: Any, sums: Any, *, top: int, block: int, start: Any) -> Any:
    """Return the blocks (b·h, n, top) that each row of q (b·h, n, d) reads; no gradient.

    The row's own block comes first, then earlier blocks by the row's product with their sum of keys
    (b·g, blocks, d), equal products in the order of tokens. A row with fewer earlier blocks
    has later ones in its last places. The first row is token number ``start``, from 0.
    """
    (many, n, _), (groups, blocks, d) = q.shape, sums.shape
    picked = empty_int32(q, many, n, minimum(top, blocks))
    for rows in in_blocks(q, n, ROWS):
        count = rows.stop - rows.start
        queries = copy_in_rows(q[:, rows]).view(groups, -1, d)
        scores = queries.bmm(sums.transpose(1, 2)).view(many, count, blocks)
        _own_block_first(scores, rows, block, start)
        order = scores.sort(dim=-1, descending=True, stable=True).indices
        picked[:, rows] = order[..., : minimum(top, blocks)]
        del queries, scores, order
    return picked


def _tokens(picked: Any, rows: slice, block: int, m: Any, start: Any) -> tuple[Any, Any]:
    """Return picked blocks' tokens (r, top·block), and a mask of those after a row's own."""
    count = rows.stop - rows.start
    tokens = picked.unsqueeze(-1) * block + arange(picked, minimum(block, m))
    tokens = tokens.view(count, -1)
    row_tokens = (arange(picked, count) + (rows.start + start)).unsqueeze(1)
    return tokens, tokens > row_tokens


def unpicked(
    indices: Any, heads: Any, m: Any, like: Any, *, causal: bool, groups: Any, block: int
) -> Any:
    """Return (groups, ·, m) booleans, True at keys that a row did not pick; indices (b, n, top).

    Indices are those of tokens, or of blocks; all ``heads`` of a sample share them. Samples,
    heads and rows are divided, in this order, among ``groups`` of keys.
    """
    b, n, _ = indices.shape
    hidden = like.new_ones(b, n, ceil_div(m, block), dtype=bool).scatter_(-1, indices.long(), 0)
    if block > 1:
        hidden = copy_in_rows(hidden.unsqueeze(-1).expand(b, n, ceil_div(m, block), block))
        hidden = hidden.view(b, n, -1)[..., :m]
    if causal:
        hidden.logical_or_(causal_mask(n, like))
    return hidden.unsqueeze(1).expand(b, heads, n, m).reshape(groups, -1, m)


def picked_pairs(w: Workload, top: Number) -> Number:
    """Return the number of pairs of a row and one of the ``top`` keys that it picks."""
    n, top = w.seq_len, minimum(top, w.seq_len)
    if w.phase == "decode":
        return top
    return pairs(w.with_(seq_len=top)) + (n - top) * top if w.causal else n * top


def tokens_of_blocks(t: Number, top: Number, block: int) -> Number:
    """Return how many tokens number t (from 1) sees in its own block and ``top`` - 1 before it."""
    before = ceil_div(t, block) - 1
    return t - before * block + block * minimum(top - 1, before)


def pairs_of_blocks(w: Workload, top: Number, block: int) -> Number:
    """Return the number of pairs of a row and a token in its own block or ``top`` - 1 before it."""
    if w.phase == "decode":
        return tokens_of_blocks(w.seq_len, top, block)
    full = floor_div(w.seq_len, block)
    rest, few = w.seq_len - full * block, minimum(top, full)
    blocks = exact_div(few * (few - 1), 2) + (full - few) * (top - 1)
    inside = exact_div(full * block * (block + 1) + rest * (rest + 1), 2)
    return inside + blocks * block**2 + rest * block * minimum(top - 1, full)


def blocks_before(w: Workload, block: int) -> Number:
    """Return the number of pairs of a row and a block before its own."""
    if w.phase == "decode":
        return ceil_div(w.seq_len, block) - 1
    full = floor_div(w.seq_len, block)
    return exact_div(block * full * (full - 1), 2) + (w.seq_len - full * block) * full


def define_block_sums(writer: Any, w: Workload, block: int, width: Number) -> None:
    """Write the additions of rows of ``width`` entries to sums of ``block`` tokens each."""
    n, entries = w.seq_len, w.batch_size * width
    if w.phase == "decode":  # the first token of a block begins its sum
        writer.sums("block sums", entries * (ceil_div(n, block) - ceil_div(n - 1, block)), entries)
    else:
        writer.sums("block sums", entries * ceil_div(n, block), entries * n)


def _block(
    q: Any, k: Any, v: Any, indices: Any, rows: slice, *,
    causal: bool, width: Any = None, values: Any = None, block: int = 1, start: Any = 0,
) -> tuple[Any, ...]:  # fmt: skip
    """Return one sample's rows (g·r, group, d), weights, picked keys, values and indices."""
    h, g, count, hidden = q.shape[0], k.shape[0], rows.stop - rows.start, None
    chosen = indices[rows]
    if block > 1:
        chosen, hidden = _tokens(chosen, rows, block, k.shape[1], start)
        chosen.clamp_(max=k.shape[1] - 1)
    top = chosen.shape[1]
    chosen = chosen.reshape(-1)
    keys = _selected(k, chosen).view(g * count, top, -1)
    mixed = keys[..., :values] if v is None else _selected(v, chosen).view(g * count, top, -1)
    queries = _by_row(q[:, rows], g).div_(square_root(q.shape[-1] if width is None else width))
    weights = queries.bmm(keys.transpose(1, 2))
    if causal and hidden is None:
        hidden = _later(rows, top, q)
    if hidden is not None:
        hidden = hidden.unsqueeze(1)
        weights.view(g, count, exact_div(h, g), top).masked_fill_(hidden, float("-inf"))
        del hidden
    softmax_(weights)
    return queries, weights, keys, mixed, chosen


def _keys_of(sample: Any, k: Any, v: Any) -> tuple[Any, Any]:
    """Return keys and values of a sample; None instead of values that are entries of the keys."""
    return k[sample], None if v is None else v[sample]


def _selected(x: Any, indices: Any) -> Any:
    """Return rows (g, r, d) of x (g, m, d) at indices (r), head by head: slices copy whole."""
    g, _, d = x.shape
    out = x.new_empty(g, indices.shape[0], d)
    for head in each(x, 0, g):
        put_rows(out[head], x[head], indices)
    return out


def _by_row(x: Any, g: Any) -> Any:
    """Return a copy of (h, r, d) as (g·r, h / g, d): the heads of a row that share their keys."""
    h, r, d = x.shape
    group = exact_div(h, g)
    return copy_in_rows(x.reshape(g, group, r, d).transpose(1, 2)).view(g * r, group, d)


def _by_head(x: Any, g: Any) -> Any:
    """Return (g·r, h / g, d) as (g, h / g, r, d), a view by group and head."""
    many, group, d = x.shape
    return x.view(g, exact_div(many, g), group, d).transpose(1, 2)


def _rows(top: int) -> int:
    return max(1, PICKED // top, min(FEW_ROWS, 4 * PICKED // top))


def _attended(
    q: Any, k: Any, v: Any, indices: Any, *,
    top: int, share: Any = 1, values: Any = None, **how: Any,
) -> tuple[Any, tuple[Any, ...]]:  # fmt: skip
    (b, h, n, _), g, how = q.shape, k.shape[1], {"values": values, **how}
    out = q.new_empty(b, h, n, values if v is None else v.shape[-1])
    for sample in each(q, 0, b):
        heads, sequence = out[sample].view(g, exact_div(h, g), n, -1), floor_div(sample, share)
        for rows in in_blocks(q, n, _rows(top)):
            parts = _block(q[sample], *_keys_of(sequence, k, v), indices[sample], rows, **how)
            heads[:, :, rows] = _by_head(parts[1].bmm(parts[3]), g)
            del parts
    return out, (q, k, v, indices)


def _attended_grads(
    saved: tuple[Any, ...], grad: Any, *, top: int, share: Any = 1, width: Any = None,
    values: Any = None, **how: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Compute weights again, then five products of gradients."""
    q, k, v, indices = saved
    (b, h, n, d), g = q.shape, k.shape[1]
    how = {"width": width, "values": values, **how}
    to_q, to_k = q.new_empty(q.shape), zeros_like(k, in_rows=True)
    to_v = None if v is None else zeros_like(v, in_rows=True)
    for sample in each(q, 0, b):
        heads, sequence = to_q[sample].view(g, exact_div(h, g), n, d), floor_div(sample, share)
        for rows in in_blocks(q, n, _rows(top)):
            queries, weights, keys, mixed, chosen = _block(
                q[sample], *_keys_of(sequence, k, v), indices[sample], rows, **how
            )
            above = _by_row(grad[sample][:, rows], g)
            scores = above.bmm(mixed.transpose(1, 2))
            del mixed
            if to_v is not None:
                of_values = weights.transpose(1, 2).bmm(above)
                to_v[sequence].index_add_(1, chosen, of_values.view(g, -1, v.shape[-1]))
                del of_values
            softmax_grad_(scores, weights)
            heads[:, :, rows] = _by_head(scores.bmm(keys), g)
            of_keys = scores.transpose(1, 2).bmm(queries)
            if to_v is None:
                add_product(of_keys[..., :values], weights.transpose(1, 2), above)
            del queries, weights, keys, above, scores
            to_k[sequence].index_add_(1, chosen, of_keys.view(g, -1, d))
            del of_keys, chosen
    return to_q.div_(square_root(d if width is None else width)), to_k, to_v, None


#: Softmax attention of q (b, h, n, d) over k (b, g, m, d), v (b, g, m, dv) at indices (b, n, top).
#:
#: → (b, h, n, dv), scaled by the root of d, or of ``width``. Without v the first ``values`` entries
#: of a key are its value. Indices are those of :func:`picks`, the same for all heads; or those of
#: :func:`block_picks`, blocks of ``block`` tokens, with each head a sample and ``share`` of them on
#: the same keys. A block of rows copies the keys and values that it picked, and computes weights
#: again for gradients: memory is linear.
picked_attention = Function(_attended, _attended_grads)


def over_picks(
    q: Any, k: Any, v: Any, indices: Any, *, gathered: bool, top: int, causal: bool,
    block: int = 1, start: Any = 0, share: Any = 1, width: Any = None, values: Any = None,
) -> Any:  # fmt: skip
    """Return rows (b, h, n, dv) of softmax attention at indices (b, n, top), of tokens or blocks.

    Operands are those of :data:`picked_attention`, which computes it if ``gathered``; otherwise the
    products of all keys are masked. If ``values`` is given, v are the first so many entries of k.
    """
    if gathered:
        v = v if values is None else None
        return picked_attention(
            q, k, v, indices, top=top * block, causal=causal, width=width, values=values,
            block=block, start=start, share=share,
        )  # fmt: skip
    (b, h, n, d), (samples, g, m, _) = q.shape, k.shape
    hidden = unpicked(indices, h, m, q, causal=causal, groups=samples * g, block=block)
    out = weighted_values(q.reshape(samples * g, -1, d), flat(k), flat(v), hidden, width=width)
    return out.view(b, h, n, -1)


#: Tokens for each that a row picks, up to which ``auto`` takes a mask. Products of a row with keys
#: of its own run slower than those of whole matrices: on processors both took as long at 4 to 23
#: tokens for each, copied keys sooner in a forward pass than in training.
SHORT = 8


class PickedForms:
    """A mixin of mechanisms whose rows pick keys.

    ``impl=gathered`` copies the picked keys and multiplies only these, ``dense-mask`` masks the
    products of all. ``auto`` is the first for a step and for texts of more than ``SHORT`` tokens
    for each that a row picks, else the second.
    """

    impl = "gathered"  # not annotated: subclasses have a parameter of this name at its own place
    variants: ClassVar[tuple[Variant, ...]] = (DENSE_MASK,)
    forms: ClassVar[tuple[str, ...]] = ("gathered", "dense-mask", "auto")

    @property
    def picked_tokens(self) -> int:
        """Number of tokens that a row picks, if there are as many."""
        raise NotImplementedError

    def gathers(self, tokens: Any, *, step: bool) -> bool:
        """Return whether picked keys of a text of so many tokens are copied.

        Raises :class:`RequestError` if ``auto`` is to decide on a symbol.
        """
        if self.impl != "auto" or step:
            return self.impl != "dense-mask"
        if not is_plain(tokens):
            raise RequestError(
                "impl=auto depends on the number of tokens: give impl=gathered or impl=dense-mask"
            )
        return bool(tokens > SHORT * self.picked_tokens)

    def choice(self, workload: Workload) -> str:
        """Return a sentence on the form that ``auto`` takes; "" for another ``impl``."""
        if self.impl != "auto":
            return ""
        tokens: Number = workload.seq_len
        copied = self.gathers(tokens, step=workload.phase == "decode")
        form = "gathered" if copied else "dense-mask"
        few = SHORT * self.picked_tokens
        why = f"a row picks up to {self.picked_tokens} of {tokens} tokens; up to {few} are masked"
        if workload.phase == "decode":
            why = "a step copies what it picks"
        return f"impl=auto is {form} here: {why}"
