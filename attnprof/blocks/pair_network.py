"""Attention whose scores are a small network of every pair of query and key, without the pairs.

A linear map of a concatenation is a sum: W [q; k] = W_q q + W_k k. The hidden layer is built from
the two terms, a chunk of rows at a time; backward builds it again, so training keeps none of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True)
class Chunk:
    """Some rows of some heads, and the number of keys they see."""

    heads: slice
    rows: slice
    seen: int


@dataclass(frozen=True)
class Network:
    """Weights as a chunk needs them; ``second`` and ``second_bias`` are None for one layer.

    ``last`` (width, 1) is the output's weight, divided by sqrt d. The output's bias moves all
    scores of a row alike, which softmax does not see: it is left out.
    """

    second: Tensor | None
    second_bias: Tensor | None
    last: Tensor


def chunks(heads: int, n: int, heads_each: int, rows_each: int, causal: bool) -> list[Chunk]:
    """Chunks that cover every row of every head; causal ones see no later chunk's keys."""
    found = []
    for head in range(0, heads, heads_each):
        for row in range(0, n, rows_each):
            end = min(row + rows_each, n)
            which = slice(head, min(head + heads_each, heads))
            found.append(Chunk(which, slice(row, end), end if causal else n))
    return found


def mapped(x: Tensor, weight: Tensor) -> Tensor:
    """X (b, n, k) times weight (w, k) transposed; x stays where it is, whatever its strides."""
    return torch.bmm(x, weight.t().expand(x.shape[0], -1, -1))


def _terms(q: Tensor, k: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Both terms of the hidden layer, (b, n, w) each; the bias goes to the queries."""
    d = q.shape[-1]
    return mapped(q, weight[:, :d]).add_(bias), mapped(k, weight[:, d:])


def _layers(
    terms: tuple[Tensor, Tensor], net: Network, chunk: Chunk
) -> tuple[Tensor, Tensor | None]:
    """Activations of the chunk's pairs: (pairs, w), and (pairs, w2) of a second layer."""
    rows = terms[0][chunk.heads, chunk.rows].unsqueeze(2)
    keys = terms[1][chunk.heads, : chunk.seen].unsqueeze(1)
    first = (rows + keys).relu_().view(-1, rows.shape[-1])
    if net.second is None or net.second_bias is None:
        return first, None
    return first, torch.addmm(net.second_bias, first, net.second.t()).relu_()


def _scores(top: Tensor, net: Network, chunk: Chunk, mask: Tensor | None) -> Tensor:
    rows = chunk.rows.stop - chunk.rows.start
    scores = torch.mm(top, net.last).view(-1, rows, chunk.seen)
    if mask is not None:
        hidden = scores[..., chunk.rows.start :]
        hidden.masked_fill_(mask[:rows, :rows], float("-inf"))
    return scores


def _forward_scores(
    terms: tuple[Tensor, Tensor], net: Network, chunk: Chunk, mask: Tensor | None
) -> Tensor:
    first, second = _layers(terms, net, chunk)
    if second is None:
        return _scores(first, net, chunk, mask)
    del first
    return _scores(second, net, chunk, mask)


def _mask(todo: Sequence[Chunk], causal: bool, like: Tensor) -> Tensor | None:
    if not causal:
        return None
    rows = todo[0].rows.stop
    return torch.ones(rows, rows, dtype=torch.bool, device=like.device).triu_(1)


def _network(last: Tensor, scale: float, deeper: Sequence[Tensor]) -> Network:
    second, bias = deeper or (None, None)
    return Network(second, bias, (last / scale).t())


class _PairNetwork(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: tuple[list[Chunk], bool, float], *tensors: Tensor) -> Tensor:
        q, k, v, weight, bias, last, _, *deeper = tensors
        todo, causal, scale = plan
        terms = _terms(q, k, weight, bias)
        net = _network(last, scale, deeper)
        mask = _mask(todo, causal, q)
        out, lse = v.new_empty(v.shape), v.new_empty(*v.shape[:2], 1)
        for chunk in todo:
            _attend(terms, net, v, chunk, mask, out, lse)
        ctx.save_for_backward(*tensors, out, lse)
        ctx.plan = plan
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weight, bias, last, last_bias, *deeper, out, lse = ctx.saved_tensors
        todo, causal, scale = ctx.plan
        delta = (grad * out).sum(-1, keepdim=True)
        terms = _terms(q, k, weight, bias)
        net = _network(last, scale, deeper)
        mask = _mask(todo, causal, q)
        sums = _Sums.start(terms, v, net)
        for chunk in todo:
            _attend_backward((terms, net, v, grad, delta, lse, mask), chunk, sums)
        del delta, terms, mask
        deeper_grads = sums.finish(net)
        to_last = sums.last.div_(scale).view(1, -1)
        to_q, to_k, to_weight, to_bias = _terms_backward(sums, q, k, weight)
        first = (None, to_q, to_k, sums.values, to_weight, to_bias, to_last)
        return *first, last_bias.new_zeros(last_bias.shape), *deeper_grads


def _attend(
    terms: tuple[Tensor, Tensor],
    net: Network,
    v: Tensor,
    chunk: Chunk,
    mask: Tensor | None,
    out: Tensor,
    lse: Tensor,
) -> None:
    scores = _forward_scores(terms, net, chunk, mask)
    highest = scores.amax(-1, keepdim=True)
    scores.sub_(highest).exp_()
    total = scores.sum(-1, keepdim=True)
    mixed = torch.bmm(scores, v[chunk.heads, : chunk.seen]).div_(total)
    out[chunk.heads, chunk.rows] = mixed
    lse[chunk.heads, chunk.rows] = total.log_().add_(highest)


@dataclass
class _Sums:
    """Gradients that chunks add to."""

    rows: Tensor
    keys: Tensor
    values: Tensor
    last: Tensor
    second: Tensor | None = None
    second_bias: Tensor | None = None
    scaled: Tensor | None = None

    @classmethod
    def start(cls, terms: tuple[Tensor, Tensor], v: Tensor, net: Network) -> _Sums:
        rows, keys = terms
        new = cls(
            rows.new_empty(rows.shape),
            keys.new_zeros(keys.shape),
            v.new_zeros(v.shape),
            net.last.new_zeros(net.last.shape),
        )
        if net.second is not None and net.second_bias is not None:
            new.second = net.second.new_zeros(net.second.shape)
            new.second_bias = net.second_bias.new_zeros(net.second_bias.shape)
            new.scaled = net.second * net.last
        return new

    def finish(self, net: Network) -> tuple[Tensor, ...]:
        """The output's weight is a factor of everything below it: multiplied in once, here."""
        if self.second is None or self.second_bias is None:
            self.rows.mul_(net.last.view(-1))
            self.keys.mul_(net.last.view(-1))
            return ()
        self.scaled = None
        return self.second.mul_(net.last), self.second_bias.mul_(net.last.view(-1))


def _attend_backward(saved: tuple[Any, ...], chunk: Chunk, sums: _Sums) -> None:
    terms, net, v, grad, delta, lse, mask = saved
    first, second = _layers(terms, net, chunk)
    top = first if second is None else second
    weights = _scores(top, net, chunk, mask)
    weights.sub_(lse[chunk.heads, chunk.rows]).exp_()
    above = grad[chunk.heads, chunk.rows]
    sums.values[chunk.heads, : chunk.seen].add_(torch.bmm(weights.transpose(1, 2), above))
    inner = torch.bmm(above, v[chunk.heads, : chunk.seen].transpose(1, 2))
    inner.sub_(delta[chunk.heads, chunk.rows]).mul_(weights)
    del weights
    column = inner.view(-1, 1)
    sums.last.add_(torch.mm(top.t(), column))
    top.gt_(0).mul_(column)
    del inner, column
    if second is not None:
        del second
        first = _through_second(first, top, sums)
    del top
    below = first.view(*_block(chunk, first))
    sums.rows[chunk.heads, chunk.rows] = below.sum(2)
    sums.keys[chunk.heads, : chunk.seen].add_(below.sum(1))


def _block(chunk: Chunk, pairs: Tensor) -> tuple[int, int, int, int]:
    rows = chunk.rows.stop - chunk.rows.start
    return pairs.shape[0] // (rows * chunk.seen), rows, chunk.seen, pairs.shape[1]


def _through_second(first: Tensor, top: Tensor, sums: _Sums) -> Tensor:
    """Gradient of the first layer's sum of terms; ``first`` is used up."""
    assert sums.second is not None
    assert sums.second_bias is not None
    assert sums.scaled is not None
    sums.second_bias.add_(top.sum(0))
    sums.second.add_(torch.mm(top.t(), first))
    return torch.mm(top, sums.scaled).mul_(first.gt_(0))


def _terms_backward(
    sums: _Sums, q: Tensor, k: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, and of the hidden layer's weight and bias."""
    d = q.shape[-1]
    halves = [
        torch.bmm(grad.transpose(1, 2), x).sum(0) for grad, x in ((sums.rows, q), (sums.keys, k))
    ]
    to_weight = torch.cat(halves, 1)
    del halves
    to_bias = sums.rows.sum((0, 1))
    to_q = mapped(sums.rows, weight[:, :d].t())
    return to_q, mapped(sums.keys, weight[:, d:].t()), to_weight, to_bias


def pair_network_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weights: Sequence[Tensor],
    todo: list[Chunk],
    causal: bool,
    scale: float,
) -> Tensor:
    """Softmax over a network's scores of all pairs, q and k (b, n, d), v (b, n, dv) → (b, n, dv).

    ``weights``: hidden (w, 2d) and its bias, output (1, last width) and its bias, and of a second
    hidden layer (w2, w) and its bias where there is one. Scores are divided by ``scale``.
    """
    out: Tensor = _PairNetwork.apply((todo, causal, scale), q, k, v, *weights)  # type: ignore[no-untyped-call]  # torch
    return out
