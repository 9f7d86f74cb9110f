"""What Nystromformer's means and its convolution execute."""

from __future__ import annotations

from attnprof.costs import Cost, Number
from attnprof.counting.band import CONVOLUTION_ROWS, band_blocks
from attnprof.counting.engine import Gradients, Tensor
from attnprof.counting.row_attention import part
from attnprof.counting.tape import Tape, product_cost


def with_means(tape: Tape, name: str, x: Tensor, m: Number) -> tuple[Tensor, Tensor]:
    """The rows as they are, and means of m segments: longer ones, shorter ones, joined.

    One function: its backward adds to the gradient of the rows where that lies.
    """
    shape = (x.shape[0], m, x.shape[2])
    waiting: list[Tensor] = []

    def wait(grad: Tensor) -> Gradients:
        grad.storage.holders += 1
        waiting.append(grad)
        return []

    def backward(grad: Tensor) -> Gradients:
        (to_means,) = waiting
        cost = Cost(divisions=to_means.count)
        shares = tape.emit(f"{name} means: shares", shape, cost, [to_means])
        cost = Cost(additions=x.count)
        tape.emit(f"{name} means: spread", x.shape, cost, [grad, shares], into=grad)
        tape.free(shares, to_means)
        return [(x, tape.view(grad, *grad.shape))]

    outputs = shape[0] * shape[1] * shape[2]
    cost = Cost(additions=x.count, divisions=outputs, reduction_outputs=outputs)
    parts = tape.emit(f"{name} means", shape, cost, [x])
    joined = tape.emit(f"{name} means joined", shape, Cost(), [parts])
    tape.free(parts)
    rows = tape.alias(x, x.shape, backward)
    if rows.requires_grad:
        tape.attach(joined, f"{name} means", wait, ())
    return rows, joined


def convolution(tape: Tape, v: Tensor, kernel: Tensor, samples: Number) -> Tensor:
    """Values along the tokens through one kernel a head, as products with a band matrix."""

    def backward(grad: Tensor) -> Gradients:
        flipped = tape.emit("convolution: flipped kernel", kernel.shape, Cost(), [kernel])
        to_v = _products(tape, "convolution: grad values", grad, flipped, samples)
        tape.free(flipped)
        return [(v, to_v), (kernel, _kernel_grad(tape, v, grad, kernel, samples))]

    out = _products(tape, "convolution", v, kernel, samples)
    if v.requires_grad or kernel.requires_grad:
        tape.attach(out, "convolution", backward, (v, kernel))
    return out


def _band(tape: Tape, name: str, kernel: Tensor) -> Tensor:
    """Zeros for every row of a block, an entry longer than the band."""
    heads, size = kernel.shape
    return tape.emit(name, (heads, CONVOLUTION_ROWS, CONVOLUTION_ROWS + size), Cost())


def _products(tape: Tape, name: str, x: Tensor, kernel: Tensor, samples: Number) -> Tensor:
    out = tape.empty(f"{name}, place", *x.shape)
    band = _band(tape, f"{name}: band, zeros", kernel)
    (heads, size), d = kernel.shape, x.shape[2]
    diagonals = part(band, heads, CONVOLUTION_ROWS, size)
    tape.emit(f"{name}: band", diagonals.shape, Cost(), [kernel], into=band)
    for block in band_blocks(x.shape[1], CONVOLUTION_ROWS, size // 2, size // 2):
        place = part(out, heads, block.rows, d)
        reads = [part(band, heads, block.rows, block.keys), part(x, heads, block.keys, d)]
        cost = product_cost(block.rows, block.keys, d, heads)
        with tape.repeat(samples * block.times):
            tape.emit(f"{name}, {block.name}", place.shape, cost, reads, into=place)
    tape.free(band)
    return out


def _kernel_grad(tape: Tape, v: Tensor, grad: Tensor, kernel: Tensor, samples: Number) -> Tensor:
    name, (heads, size), d = "convolution: grad kernel", kernel.shape, v.shape[2]
    band = _band(tape, f"{name}, zeros", kernel)
    for block in band_blocks(v.shape[1], CONVOLUTION_ROWS, size // 2, size // 2):
        place = part(band, heads, block.rows, block.keys)
        reads = [place, part(grad, heads, block.rows, d), part(v, heads, block.keys, d)]
        cost = product_cost(block.rows, d, block.keys, heads) + Cost(additions=place.count)
        with tape.repeat(samples * block.times):
            tape.emit(f"{name}, {block.name}", place.shape, cost, reads, into=place)
    diagonals = part(band, heads, CONVOLUTION_ROWS, size)
    out = tape.sum(f"{name}, diagonals", diagonals, kernel.shape)
    tape.free(band)
    return out
