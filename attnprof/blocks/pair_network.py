"""Attention whose scores are a small network of every pair of query and key, without the pairs.

A linear map of a concatenation is a sum: W [q; k] = W_q q + W_k k. The hidden layer is built from
the two terms, a chunk of rows at a time; backward builds it again, so training keeps none of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from attnprof.blocks.softmax import causal_mask
from attnprof.ops.function import Function
from attnprof.ops.functional import join, linear
from attnprof.ops.loops import in_blocks, in_growing_blocks

#: Some heads, some of their rows, and the number of keys these see.
Chunk = tuple[slice, slice, Any]
#: Both terms of the hidden layer, (b, n, w) each.
Terms = tuple[Any, Any]


def _chunks(v: Any, each: tuple[Any, Any], causal: bool) -> Iterator[Chunk]:
    """Yield chunks of ``each`` heads and rows; causal ones see no later chunk's keys."""
    b, n, _ = v.shape
    for heads in in_blocks(v, b, each[0]):
        if causal:
            yield from (
                (heads, rows, key_count) for rows, key_count in in_growing_blocks(v, n, each[1])
            )
        else:
            yield from ((heads, rows, n) for rows in in_blocks(v, n, each[1]))


def _mapped(x: Any, weight: Any) -> Any:
    """Return x (b, n, k) times weight (w, k) transposed, without copying x."""
    return x.bmm(weight.t().expand(x.shape[0], -1, -1))


def hidden_terms(q: Any, k: Any, weight: Any, bias: Any) -> Terms:
    """Return the hidden layer's terms of q and of k (b, n, d); the bias is in the queries' term."""
    d = q.shape[-1]
    return _mapped(q, weight[:, :d]).add_(bias), _mapped(k, weight[:, d:])


@dataclass(frozen=True)
class Network:
    """Weights as a chunk needs them; ``second`` and ``second_bias`` are None for one layer.

    ``last`` (width, 1) is the output's weight, divided by the scale. The output's bias moves all
    scores of a row alike, which softmax does not see: it is left out.
    """

    last: Any
    second: Any
    second_bias: Any

    def layers(self, terms: Terms, chunk: Chunk) -> list[Any]:
        """Return activations of a chunk's pairs: (pairs, w), and of a second layer (pairs, w2)."""
        heads, rows, key_count = chunk
        queries, keys = terms[0][heads, rows].unsqueeze(2), terms[1][heads, :key_count].unsqueeze(1)
        first = (queries + keys).relu_().view(-1, queries.shape[-1])
        if self.second is None:
            return [first]
        return [first, linear(first, self.second, self.second_bias).relu_()]

    def scores(self, top: Any, chunk: Chunk, mask: Any) -> Any:
        """Return (heads, rows, keys) scores of the last layer's activations."""
        _, rows, key_count = chunk
        count = rows.stop - rows.start
        scores = top.mm(self.last).view(-1, count, key_count)
        if mask is not None:
            scores[..., key_count - count :].masked_fill_(mask[:count, :count], float("-inf"))
        return scores


def _attended(
    q: Any, k: Any, v: Any, weight: Any, bias: Any, last: Any, last_bias: Any,
    second: Any, second_bias: Any, *, chunk: tuple[Any, Any], causal: bool, scale: Any,
) -> tuple[Any, tuple[Any, ...]]:  # fmt: skip
    terms = hidden_terms(q, k, weight, bias)
    net = Network((last / scale).t(), second, second_bias)
    mask = causal_mask(chunk[1], q) if causal else None
    out, lse = v.new_empty(v.shape), v.new_empty(*v.shape[:2], 1)
    for each in _chunks(v, chunk, causal):
        _attend(terms, net, v, each, mask, out, lse)
    return out, (q, k, v, weight, bias, last, last_bias, second, second_bias, out, lse)


def _attend(
    terms: Terms, net: Network, v: Any, chunk: Chunk, mask: Any, out: Any, lse: Any
) -> None:
    heads, rows, key_count = chunk
    scores = net.scores(net.layers(terms, chunk)[-1], chunk, mask)
    highest = scores.amax(-1, keepdim=True)
    scores.sub_(highest).exp_()
    total = scores.sum(-1, keepdim=True)
    mixed = scores.bmm(v[heads, :key_count]).div_(total)
    out[heads, rows] = mixed
    lse[heads, rows] = total.log_().add_(highest)


@dataclass
class _GradientSums:
    """Gradients that chunks add to: of both terms, the values, and the network's weights.

    ``scaled`` is the second layer's weight times the output's.
    """

    rows: Any
    keys: Any
    values: Any
    last: Any
    second: Any = None
    second_bias: Any = None
    scaled: Any = None

    @classmethod
    def start(cls, terms: Terms, v: Any, net: Network) -> "_GradientSums":
        """Return sums of zeros, and memory for the rows, each of which is written once."""
        zeros = [x.new_zeros(x.shape) for x in (terms[1], v, net.last)]
        new = cls(terms[0].new_empty(terms[0].shape), *zeros)
        if net.second is not None:
            new.second = net.second.new_zeros(net.second.shape)
            new.second_bias = net.second_bias.new_zeros(net.second_bias.shape)
            new.scaled = net.second * net.last
        return new

    def finish(self, net: Network) -> None:
        """Multiply the gradients by the output's weight, a factor of all of them, once."""
        self.scaled = None
        if self.second is None:
            self.rows.mul_(net.last.view(-1))
            self.keys.mul_(net.last.view(-1))
        else:
            self.second.mul_(net.last)
            self.second_bias.mul_(net.last.view(-1))


def _attended_grads(
    saved: tuple[Any, ...], grad: Any, *, chunk: tuple[Any, Any], causal: bool, scale: Any
) -> tuple[Any, ...]:
    q, k, v, weight, bias, last, last_bias, second, second_bias, out, lse = saved
    delta = (grad * out).sum(-1, keepdim=True)
    terms = hidden_terms(q, k, weight, bias)
    net = Network((last / scale).t(), second, second_bias)
    mask = causal_mask(chunk[1], q) if causal else None
    sums = _GradientSums.start(terms, v, net)
    for each in _chunks(v, chunk, causal):
        _attend_grads((terms, net, v, grad, delta, lse, mask), each, sums)
    del delta, terms, mask
    sums.finish(net)
    to_last = sums.last.div_(scale).view(1, -1)
    halves = [grad.transpose(1, 2).bmm(x).sum(0) for grad, x in ((sums.rows, q), (sums.keys, k))]
    to_weight = join(halves, 1)
    del halves
    to_bias = sums.rows.sum((0, 1))
    d = q.shape[-1]
    to_q = _mapped(sums.rows, weight[:, :d].t())
    to_k = _mapped(sums.keys, weight[:, d:].t())
    to_last_bias = last_bias.new_zeros(last_bias.shape)
    first = (to_q, to_k, sums.values, to_weight, to_bias, to_last, to_last_bias)
    return *first, sums.second, sums.second_bias


def _attend_grads(tensors: tuple[Any, ...], chunk: Chunk, sums: _GradientSums) -> None:
    terms, net, v, grad, delta, lse, mask = tensors
    heads, rows, key_count = chunk
    layers = net.layers(terms, chunk)
    weights = net.scores(layers[-1], chunk, mask).sub_(lse[heads, rows]).exp_()
    above = grad[heads, rows]
    sums.values[heads, :key_count].add_(weights.transpose(1, 2).bmm(above))
    inner = above.bmm(v[heads, :key_count].transpose(1, 2))
    inner.sub_(delta[heads, rows]).mul_(weights)
    del weights
    column = inner.view(-1, 1)
    sums.last.add_(layers[-1].t().mm(column))
    below = layers.pop().gt_(0).mul_(column)
    del inner, column
    if layers:
        below = _through_second(layers.pop(), below, sums)
    below = below.view(-1, rows.stop - rows.start, key_count, below.shape[1])
    sums.rows[heads, rows] = below.sum(2)
    sums.keys[heads, :key_count].add_(below.sum(1))


def _through_second(first: Any, above: Any, sums: _GradientSums) -> Any:
    """Return gradient of the first layer's sum of terms; ``first`` is used up."""
    sums.second_bias.add_(above.sum(0))
    sums.second.add_(above.t().mm(first))
    return above.mm(sums.scaled).mul_(first.gt_(0))


#: Softmax over a network's scores of all pairs, q and k (b, n, d), v (b, n, dv) → (b, n, dv).
#:
#: Weights: hidden (w, 2d) and its bias, output (1, last width) and its bias, and of a second
#: hidden layer (w2, w) and its bias or None. Settings: heads and rows of a chunk, ``causal``, and
#: the ``scale`` that scores are divided by.
pair_network_attention = Function(_attended, _attended_grads)
