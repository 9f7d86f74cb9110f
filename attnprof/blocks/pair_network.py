"""Attention whose scores a small network gives, for every pair of a query and a key.

A linear map of a concatenation is a sum: W [q; k] = W_q q + W_k k. So the pairs are never put
together: the hidden layer is built from the two terms, a chunk of rows at a time. Backward builds
it again, and training keeps none of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from attnprof.blocks.softmax import causal_mask
from attnprof.ops.function import Function
from attnprof.ops.functional import join, linear
from attnprof.ops.loops import in_blocks, in_growing_blocks

#: A slice of the b heads (of all samples), one of their rows, and the number of keys they see.
Chunk = tuple[slice, slice, Any]
#: Both terms of the hidden layer, (b, n, w) each.
Terms = tuple[Any, Any]


def _chunks(v: Any, size: tuple[Any, Any], causal: bool) -> Iterator[Chunk]:
    """Yield chunks of at most ``size`` heads and rows; causal ones see no later chunk's keys."""
    b, n, _ = v.shape
    for heads in in_blocks(v, b, size[0]):
        if causal:
            yield from (
                (heads, rows, key_count) for rows, key_count in in_growing_blocks(v, n, size[1])
            )
        else:
            yield from ((heads, rows, n) for rows in in_blocks(v, n, size[1]))


def _mapped(x: Any, weight: Any) -> Any:
    """Return x (b, n, k) times weight (w, k) transposed, without copying x."""
    return x.bmm(weight.t().expand(x.shape[0], -1, -1))


def hidden_terms(q: Any, k: Any, weight: Any, bias: Any) -> Terms:
    """Return the hidden layer's terms of q and of k (b, n, d); the bias is in the queries' term."""
    d = q.shape[-1]
    return _mapped(q, weight[:, :d]).add_(bias), _mapped(k, weight[:, d:])


@dataclass(frozen=True)
class Network:
    """The layers after the first; ``second`` and ``second_bias`` are None for one hidden layer.

    ``last`` (width, 1) is the output's weight, divided by the scale. The output's bias is left out:
    it adds the same to all scores of a row, and softmax cancels it.
    """

    last: Any
    second: Any
    second_bias: Any

    def layers(self, terms: Terms, chunk: Chunk) -> list[Any]:
        """Return the activations of each hidden layer, (pairs, w) and perhaps (pairs, w2)."""
        heads, rows, key_count = chunk
        queries, keys = terms[0][heads, rows].unsqueeze(2), terms[1][heads, :key_count].unsqueeze(1)
        first = (queries + keys).relu_().view(-1, queries.shape[-1])
        if self.second is None:
            return [first]
        return [first, linear(first, self.second, self.second_bias).relu_()]

    def scores(self, top: Any, chunk: Chunk, mask: Any) -> Any:
        """Return the scores (heads, rows, keys) of the last hidden layer's activations ``top``."""
        _, rows, key_count = chunk
        count = rows.stop - rows.start
        scores = top.mm(self.last).view(-1, count, key_count)
        if mask is not None:
            scores[..., key_count - count :].masked_fill_(mask[:count, :count], float("-inf"))
        return scores


def _forward(
    q: Any, k: Any, v: Any, weight: Any, bias: Any, last: Any, last_bias: Any,
    second: Any, second_bias: Any, *, chunk: tuple[Any, Any], causal: bool, scale: Any,
) -> tuple[Any, tuple[Any, ...]]:  # fmt: skip
    terms = hidden_terms(q, k, weight, bias)
    net = Network((last / scale).t(), second, second_bias)
    mask = causal_mask(chunk[1], q) if causal else None
    out, lse = v.new_empty(v.shape), v.new_empty(*v.shape[:2], 1)
    for each in _chunks(v, chunk, causal):
        _forward_chunk(terms, net, v, each, mask, out, lse)
    return out, (q, k, v, weight, bias, last, last_bias, second, second_bias, out, lse)


def _forward_chunk(
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
    """Gradients that chunks add to: of both terms (``rows``, ``keys``), ``values`` and weights.

    The output's weight is a factor of the last hidden layer's gradients, by which :meth:`finish`
    multiplies once. ``scaled`` is a second layer's weight times the output's.
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
        """Multiply the gradients by the output's weight."""
        self.scaled = None
        if self.second is None:
            self.rows.mul_(net.last.view(-1))
            self.keys.mul_(net.last.view(-1))
        else:
            self.second.mul_(net.last)
            self.second_bias.mul_(net.last.view(-1))


def _grads(
    saved: tuple[Any, ...], grad: Any, *, chunk: tuple[Any, Any], causal: bool, scale: Any
) -> tuple[Any, ...]:
    q, k, v, weight, bias, last, last_bias, second, second_bias, out, lse = saved
    delta = (grad * out).sum(-1, keepdim=True)
    terms = hidden_terms(q, k, weight, bias)
    net = Network((last / scale).t(), second, second_bias)
    mask = causal_mask(chunk[1], q) if causal else None
    sums = _GradientSums.start(terms, v, net)
    for each in _chunks(v, chunk, causal):
        _chunk_grads((terms, net, v, grad, delta, lse, mask), each, sums)
    del delta, terms, mask
    sums.finish(net)
    last_grad = sums.last.div_(scale).view(1, -1)
    halves = [grad.transpose(1, 2).bmm(x).sum(0) for grad, x in ((sums.rows, q), (sums.keys, k))]
    weight_grad = join(halves, 1)
    del halves
    bias_grad = sums.rows.sum((0, 1))
    d = q.shape[-1]
    q_grad = _mapped(sums.rows, weight[:, :d].t())
    k_grad = _mapped(sums.keys, weight[:, d:].t())
    last_bias_grad = last_bias.new_zeros(last_bias.shape)
    first = (q_grad, k_grad, sums.values, weight_grad, bias_grad, last_grad, last_bias_grad)
    return *first, sums.second, sums.second_bias


def _chunk_grads(tensors: tuple[Any, ...], chunk: Chunk, sums: _GradientSums) -> None:
    terms, net, v, grad, delta, lse, mask = tensors
    heads, rows, key_count = chunk
    layers = net.layers(terms, chunk)
    weights = net.scores(layers[-1], chunk, mask).sub_(lse[heads, rows]).exp_()
    out_grad = grad[heads, rows]
    sums.values[heads, :key_count].add_(weights.transpose(1, 2).bmm(out_grad))
    scores_grad = out_grad.bmm(v[heads, :key_count].transpose(1, 2))
    scores_grad.sub_(delta[heads, rows]).mul_(weights)
    del weights
    column = scores_grad.view(-1, 1)
    sums.last.add_(layers[-1].t().mm(column))
    hidden_grad = layers.pop().gt_(0).mul_(column)
    del scores_grad, column
    if layers:
        hidden_grad = _through_second(layers.pop(), hidden_grad, sums)
    hidden_grad = hidden_grad.view(-1, rows.stop - rows.start, key_count, hidden_grad.shape[1])
    sums.rows[heads, rows] = hidden_grad.sum(2)
    sums.keys[heads, :key_count].add_(hidden_grad.sum(1))


def _through_second(first: Any, out_grad: Any, sums: _GradientSums) -> Any:
    """Return the gradient of the first layer's input, through the second; overwrite ``first``."""
    sums.second_bias.add_(out_grad.sum(0))
    sums.second.add_(out_grad.t().mm(first))
    return out_grad.mm(sums.scaled).mul_(first.gt_(0))


#: Softmax over a network's scores of all pairs, q and k (b, n, d), v (b, n, dv) → (b, n, dv).
#:
#: Weights: hidden (w, 2d) and its bias, output (1, last width) and its bias, and of a second
#: hidden layer (w2, w) and its bias or None. Settings: heads and rows of a chunk, ``causal``, and
#: the ``scale`` that scores are divided by.
pair_network_attention = Function(_forward, _grads)
