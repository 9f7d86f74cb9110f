"""The scorer's weights on the tape, and the scores of one chunk of pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from attnprof.costs import Cost, Number, is_plain, is_symbolic
from attnprof.counting.engine import Tensor
from attnprof.counting.tape import Tape, product_cost


def root(n: Number) -> Number:
    """⌈sqrt n⌉, exactly."""
    if is_plain(n):
        return math.isqrt(n - 1) + 1
    if is_symbolic(n):
        import sympy

        return sympy.ceiling(sympy.sqrt(n))
    import numpy as np

    return np.vectorize(root, otypes=["int64"])(n)


@dataclass(frozen=True)
class Chunk:
    """``times`` chunks of some heads and rows over the keys they see."""

    name: str
    times: Number
    heads: Number
    rows: Number
    seen: Number
    masked: bool = True

    @property
    def pairs(self) -> Number:
        """Pairs of query and key in one chunk."""
        return self.heads * self.rows * self.seen


@dataclass(frozen=True)
class Net:
    """Weights and biases: down-projections by operand, hidden layers by name, the output."""

    down: dict[str, tuple[Tensor, Tensor]]
    layers: dict[str, tuple[Tensor, Tensor]]
    output: tuple[Tensor, Tensor]

    @classmethod
    def on(cls, tape: Tape, head_dim: Number, sizes: tuple[Number, ...], down: bool) -> Net:
        """The parameters of a scorer of these widths: d', then every hidden layer."""
        reduced, *hidden = sizes
        projections = {
            which: (tape.parameter(1, head_dim, reduced), tape.parameter(1, 1, reduced))
            for which in (("query", "key") if down else ())
        }
        layers, inputs = {}, 2 * reduced
        for name, width in zip(("hidden layer", "second hidden layer"), hidden, strict=False):
            layers[name] = (tape.parameter(width, inputs), tape.parameter(width))
            inputs = width
        return cls(projections, layers, (tape.parameter(1, inputs), tape.parameter(1)))

    @property
    def hidden(self) -> Number:
        """Width of the first hidden layer."""
        return self.layers["hidden layer"][0].shape[0]

    @property
    def second(self) -> tuple[Tensor, Tensor] | None:
        """Weight and bias of the second hidden layer."""
        return self.layers.get("second hidden layer")

    @property
    def top(self) -> Number:
        """Width of the last hidden layer."""
        return self.output[0].shape[1]


def terms(tape: Tape, net: Net, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Both terms of the hidden layer, (b, n, w) each; the bias goes to the queries."""
    weight, bias = net.layers["hidden layer"]
    batch, _, d = q.shape
    part = tape.constant(batch, d, weight.shape[0])
    found = []
    for name, x in (("queries", q), ("keys", k)):
        _, n, _ = x.shape
        cost = product_cost(n, d, weight.shape[0], batch)
        shape = (batch, n, weight.shape[0])
        found.append(tape.emit(f"hidden layer, {name}", shape, cost, [x, part]))
        if name == "queries":
            tape.pointwise("hidden layer, bias", [found[0], bias], Cost(additions=1), inplace=True)
    return found[0], found[1]


def scores_of(tape: Tape, net: Net, group: Chunk, keep: bool) -> list[Tensor]:
    """Scores of one chunk, and the activations they came from if ``keep``."""
    name, pairs = f", {group.name}" if group.name else "", group.pairs
    parts = [
        tape.constant(group.heads, group.rows, net.hidden),
        tape.constant(group.heads, group.seen, net.hidden),
    ]
    top = tape.emit(
        f"sum of terms{name}", (pairs, net.hidden), Cost(additions=pairs * net.hidden), parts
    )
    top = tape.pointwise(f"ReLU{name}", [top], Cost(other=1), inplace=True)
    layers = [top]
    if net.second:
        weight, bias = net.second
        cost = product_cost(pairs, net.hidden, net.top) + Cost(additions=pairs * net.top)
        reads = [top, weight, bias]
        top = tape.emit(f"second hidden layer{name}", (pairs, net.top), cost, reads)
        top = tape.pointwise(f"second ReLU{name}", [top], Cost(other=1), inplace=True)
        layers.append(top)
        if not keep:
            tape.free(layers.pop(0))
    last = tape.constant(net.top, 1)
    shape = (group.heads, group.rows, group.seen)
    scores = tape.emit(f"scores{name}", shape, product_cost(pairs, net.top, 1), [top, last])
    if not keep:
        tape.free(layers.pop())
    if group.masked:
        square = group.rows * group.rows  # the mask takes a byte an entry
        moved = Cost(bytes_moved=2 * group.heads * square * scores.item_size + square)
        tape.record(f"masking{name}", shape, moved)
    return [scores, *layers]


def scaled_output(tape: Tape, net: Net) -> Tensor:
    """The output's weight divided by sqrt d."""
    weight = net.output[0]
    return tape.emit("output weight, scaled", weight.shape, Cost(divisions=weight.count), [weight])


def causal_mask(tape: Tape, rows: Number) -> Tensor:
    """Booleans, a byte each; filled, then cut to a triangle."""
    moved = Cost(bytes_moved=2 * rows * rows)
    return tape.emit("causal mask", (rows, rows), moved, item_size=1)
