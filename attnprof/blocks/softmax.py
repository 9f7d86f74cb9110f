"""Softmax attention with all scores in memory, or block by block of query rows.

One text for torch and for the counter. Heads are read where a projection wrote them, uncopied.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from attnprof.costs import exact_div, is_plain, maximum, minimum
from attnprof.ops import functional
from attnprof.ops.function import Function
from attnprof.ops.functional import square_root
from attnprof.ops.layer import LayerSizes, flat
from attnprof.ops.loops import each, in_blocks


@dataclass
class KeyValueState:
    """Caches of softmax attention: keys and values of every token so far, (b·g, t, d)."""

    keys: Any
    values: Any

    def append(self, k: Any, v: Any) -> tuple[Any, Any]:
        """Add the new rows (b, g, s, ·); return keys and values of every token so far."""
        return self.keys.append(flat(k)), self.values.append(flat(v))


def empty_rows(sizes: LayerSizes, cache: Any) -> tuple[Any, Any]:
    """Return empty caches of keys and of values."""
    heads = sizes.num_kv_heads
    return cache(heads, sizes.head_dim), cache(heads, sizes.value_head_dim)


def causal_mask(n: Any, like: Any) -> Any:
    """Return (n, n) booleans, True above the diagonal, at keys that a row must not see."""
    return like.new_ones(n, n, dtype=bool).triu_(1)


def score_products(q: Any, k: Any) -> Any:
    """Return Q kᵀ; the gradient of k comes as columns."""
    scores = q.bmm(k.transpose(1, 2))
    return scores  # noqa: RET504 - the stage is called so


def weighted_values(
    q: Any, k: Any, v: Any, mask: Any = None,
    products: Callable[[Any, Any], Any] = score_products, sink: Any = None, width: Any = None,
) -> Any:  # fmt: skip
    """Return rows of softmax((q / sqrt d) kᵀ) v; q (b, r·n, d), k (b, m, d), v (b, m, dv).

    ``mask`` (r·n, m) is True where a row must not look. Queries are scaled and not scores: d
    entries a row, forward and backward, where scores would be m. A ``sink``, that broadcasts to
    (b, r·n, 1), is one more score, without a value. ``width`` takes the place of d in the root.
    """
    scaling = q / square_root(q.shape[-1] if width is None else width)
    scores = products(scaling, k)
    del scaling
    if mask is not None:
        scores.masked_fill_(mask, float("-inf"))
    if sink is not None:
        scores = functional.join([scores, sink.expand(*scores.shape[:2], 1)], -1)
    softmax = scores.softmax(-1)
    if sink is not None:
        softmax = softmax[..., : k.shape[1]]
    del scores
    return softmax.bmm(v)


def _products_grads(saved: tuple[Any, ...], grad: Any) -> tuple[Any, ...]:
    q, k = saved
    return grad.bmm(k), grad.transpose(1, 2).bmm(q)


#: Q kᵀ; the gradient of k comes as rows.
row_products = Function(lambda q, k: (score_products(q, k), (q, k)), _products_grads)


#: query rows of a block, all heads of one sample
ROWS = 256


def _fewer_first(*operands: Any) -> list[Any]:
    """Return the dimensions as (samples, heads, …) or (heads, samples, …), the fewer in front."""
    b, h = operands[0].shape[:2]
    if is_plain(b, h):
        return [x.transpose(0, 1) for x in operands] if b > h else list(operands)
    few = minimum(b, h)
    first = few, exact_div(b * h, few)
    return [x.alias((*first, *x.shape[2:]), x.layout) for x in operands]


def _blocks(q: Any, m: Any, sample: Any, keep: bool) -> Iterator[tuple[slice, slice, Any]]:
    """Yield for each block of a sample its rows, its weights' place in a flat tensor, their shape.

    Kept weights lie one block after the other; weights that are not kept share one place.
    "Sample" is whatever axis comes first.
    """
    _, heads, n, _ = q.shape
    for rows in in_blocks(q, n, ROWS):
        shape = (heads, rows.stop - rows.start, m)
        first = (sample * n + rows.start) * heads * m if keep else 0
        yield rows, slice(first, first + shape[0] * shape[1] * m), shape


def _room(q: Any, m: Any) -> Any:
    """Return entries of the largest block of weights."""
    b, h, n, _ = q.shape
    return maximum(b, h) * minimum(n, ROWS) * m


def _attended(
    q: Any, k: Any, v: Any, mask: Any = None, *, keep: bool, by_token: bool = False
) -> tuple[Any, tuple[Any, ...]]:
    b, h, n, _ = q.shape
    m = k.shape[2]
    out = _by_token(v, n) if by_token else functional.empty_like(q)
    all_weights = q.new_empty(b * h * n * m if keep else _room(q, m))
    queries, keys, values, into = _fewer_first(q, k, v, out)
    for i in each(q, 0, queries.shape[0]):
        for rows, place, shape in _blocks(queries, m, i, keep):
            weights = all_weights[place].view(shape)
            functional.put_product(weights, queries[i][:, rows], keys[i].transpose(1, 2))
            if mask is not None:
                weights.masked_fill_(mask[rows], float("-inf"))
            functional.softmax_(weights)
            functional.put_product(into[i][:, rows], weights, values[i])
    return out, (q, k, v, mask, all_weights)


def _by_token(v: Any, n: Any) -> Any:
    """Return memory for n rows as wide as values, (b, h, n, dv), heads of a token side by side."""
    b, h, _, width = v.shape
    return v.new_empty(b, n, h, width).transpose(1, 2)


def _attended_grads(
    saved: tuple[Any, ...], grad: Any, *, by_token: bool = False
) -> tuple[Any, ...]:
    q, k, v, _mask, all_weights = saved
    to_q, to_k = functional.empty_like(q), functional.zeros_like(k)
    to_v = _by_token(v, v.shape[2]).zero_() if by_token else functional.zeros_like(v)
    grads = to_q, to_k, to_v, None
    buffer = q.new_empty(_room(q, k.shape[2]))
    q, k, v, grad, to_q, to_k, to_v = _fewer_first(q, k, v, grad, to_q, to_k, to_v)
    for i in each(q, 0, q.shape[0]):
        for rows, place, shape in _blocks(q, k.shape[2], i, keep=True):
            weights, above = all_weights[place].view(shape), grad[i][:, rows]
            scores = buffer[: place.stop - place.start].view(shape)
            functional.add_product(to_v[i], weights.transpose(1, 2), above)
            functional.put_product(scores, above, v[i].transpose(1, 2))
            functional.softmax_grad_(scores, weights)
            functional.put_product(to_q[i][:, rows], scores, k[i])
            functional.add_product(to_k[i], scores.transpose(1, 2), q[i][:, rows])
    return grads


#: softmax(q kᵀ) v, scores unscaled; q (b, h, n, d), k (b, h, m, d), v (b, h, m, d) → (b, h, n, d).
#:
#: ``mask`` (n, m) is True where a row must not look. ``by_token``: results, as wide as values, lie
#: heads of a token side by side, and so do gradients of values.
#:
#: Takes ``ROWS`` queries of one sample at a time, all heads together, or of one head, all samples
#: together, whichever is fewer products. Results and gradients are laid out as their operands:
#: where these lie as a projection left them, splitting and merging heads copies nothing in either
#: pass. Without autograd live memory beyond inputs and output is that of one block of weights;
#: with it all weights are kept.
row_attention = Function(_attended, _attended_grads)
