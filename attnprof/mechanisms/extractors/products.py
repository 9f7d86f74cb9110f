"""What SHE's extraction executes, on the tape: one matrix product for several distances."""

from __future__ import annotations

from dataclasses import dataclass

from attnprof.costs import Cost, Number, ceil_div, exact_div, floor_div, maximum, minimum
from attnprof.counting.engine import Gradients, Tensor
from attnprof.counting.tape import Tape

#: distances of one product, and the most products of one call: with 65,536 tokens they meet
CHUNK = 16
MOST_PRODUCTS = 4096


def chunk_of(n: Number) -> Number:
    """Distances of one product for n tokens."""
    return maximum(minimum(CHUNK, n), ceil_div(n, MOST_PRODUCTS))


def triangle(count: Number) -> Number:
    """1 + 2 + … + count."""
    return exact_div(count * (count + 1), 2)


@dataclass(frozen=True)
class Products:
    """Sizes of one call: x (b, n, d), w (n, d, d), ``chunk`` distances a product."""

    b: Number
    n: Number
    d: Number
    chunk: Number

    def _full(self) -> tuple[Number, Number, Number]:
        """Full chunks, the tokens they see in all (n - k for each), the distances left over."""
        full = floor_div(self.n, self.chunk)
        seen = full * self.n - self.chunk * triangle(full - 1)
        return full, seen, self.n - full * self.chunk

    def rows(self) -> Number:
        """Rows of all products: n - k a sequence for each chunk's first distance k."""
        _, seen, rest = self._full()
        return self.b * (seen + rest)

    def pairs(self) -> Number:
        """Rows times distances of all products."""
        _, seen, rest = self._full()
        return self.b * (self.chunk * seen + rest**2)

    def products(self, outputs: Number) -> Cost:
        """All products; ``outputs`` results."""
        count = self.pairs() * self.d * self.d
        return Cost(count, count, matmul_flops=2 * count, dot_outputs=outputs)


def matrix_products(tape: Tape, s: Products, x: Tensor, w: Tensor) -> Tensor:
    """The stages of ``MatrixProducts``."""
    past = _windows(tape, s, "past tokens", x)
    out = tape.emit("zeros", (s.n * s.b, s.d), Cost())
    _added(tape, s, "products", w)
    tape.free(past)
    out = _by_token(tape, "extraction", out, x)
    return tape.custom("extraction", out, [x, w], lambda g: _backward(tape, s, x, w, g))


def _backward(tape: Tape, s: Products, x: Tensor, w: Tensor, grad: Tensor) -> Gradients:
    coming = _windows(tape, s, "coming gradients", grad)
    rows = tape.emit("tokens by row", (s.n * s.b, s.d), Cost(), [x])
    grad_x = tape.emit("grad tokens: zeros", (s.n * s.b, s.d), Cost())
    grad_w = tape.emit("grad weights", w.shape, Cost(), [w])
    item = tape.item_size
    moved = item * (s.d * s.rows() + s.d * s.pairs() + w.count)
    cost = s.products(w.count) + Cost(bytes_moved=moved)
    workspace = s.chunk * s.d * s.d * item
    tape.record("grad weights: products", w.shape, cost, workspace=workspace)
    _added(tape, s, "grad tokens: products", w)
    tape.free(coming, rows)
    return [(x, _by_token(tape, "grad tokens", grad_x, x)), (w, grad_w)]


def _windows(tape: Tape, s: Products, name: str, x: Tensor) -> Tensor:
    """``chunk`` tokens side by side for each row, copied out of a padded sequence."""
    padded = tape.emit(f"{name}: padding", (s.n + s.chunk - 1, s.b, s.d), Cost())
    tape.record(f"{name}: by row", x.shape, Cost(bytes_moved=2 * x.size))
    read = tape.constant(s.n * s.b, s.chunk * s.d)
    out = tape.emit(name, read.shape, Cost(), [read])
    tape.free(padded)
    return out


def _added(tape: Tape, s: Products, name: str, w: Tensor) -> None:
    """One product a chunk, added to its rows; the chunk's maps are stacked first."""
    outputs = s.rows() * s.d
    moved = tape.item_size * (3 * w.count + 2 * outputs + s.d * s.pairs())
    cost = s.products(outputs) + Cost(additions=outputs, bytes_moved=moved)
    workspace = s.chunk * s.d * s.d * tape.item_size
    tape.record(name, (s.n * s.b, s.d), cost, workspace=workspace)


def _by_token(tape: Tape, name: str, rows: Tensor, like: Tensor) -> Tensor:
    """Rows (n·b, d) copied to (b, n, d)."""
    out = tape.emit(name, like.shape, Cost(), [rows])
    tape.free(rows)
    return out
