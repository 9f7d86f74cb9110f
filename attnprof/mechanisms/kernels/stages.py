"""What kernel attention executes, block by block: the counted side of ``blocks/scan.py``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from attnprof.costs import Cost, Number, at_least_one, floor_div, is_plain
from attnprof.counting.engine import Shape, Storage, Tensor, product
from attnprof.counting.tape import Tape

ADD, TIMES, OVER = Cost(additions=1), Cost(multiplications=1), Cost(divisions=1)
EXP, COMPARE = Cost(exponentials=1), Cost(other=1)
Scaled = tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class Sizes:
    """Sizes of one call: batch·heads, features m, widths d and dv, rows of a block."""

    batch: Number
    features: Number
    head_dim: Number
    value_width: Number
    rows: Number


@dataclass
class State:
    """Sums (batch, m, dv + 1) and, where keys are scaled, their largest scale."""

    sums: Tensor
    top: Tensor | None


@dataclass
class Writer:
    """Writes the operations of one kind of feature on a tape, without gradients of their own."""

    tape: Tape
    sizes: Sizes
    projection: Tensor | None
    softmax: bool
    floor: bool

    # -- tensors -------------------------------------------------------------------------
    def rows_of(self, tensor: Tensor, count: Number) -> Tensor:
        """A slice of so many rows; nobody needs its gradient."""
        return Tensor((tensor.shape[0], count, tensor.shape[2]), tensor.storage, tensor.item_size)

    def empty(self, name: str, *shape: Number) -> Tensor:
        """Memory without content."""
        out = Tensor(shape, Storage(0), self.tape.item_size)
        out.storage.size = out.size
        self.tape.record(name, shape, Cost(), out.size)
        return out

    def over(self, name: str, tensor: Tensor, per_entry: Cost, *reads: Tensor) -> Tensor:
        """An in-place operation on a tensor, with what else it reads.

        Operands of fewer digits are copied to the tensor's format inside the kernel.
        """
        item = tensor.item_size
        copies = sum(other.count * item for other in reads if other.item_size != item)
        return self.tape.emit(
            name, tensor.shape, per_entry * tensor.count, [tensor, *reads],
            into=tensor, item_size=item, workspace=copies,
        )  # fmt: skip

    def new(self, name: str, shape: Shape, per_entry: Cost, *reads: Tensor) -> Tensor:
        """An element-wise operation into fresh memory."""
        return self.tape.emit(name, shape, per_entry * product(shape), reads)

    def put(self, name: str, into: Tensor, rows: Tensor) -> None:
        """Copy rows into their place."""
        place = self.rows_of(into, rows.shape[1])
        self.tape.emit(name, rows.shape, Cost(), [rows], into=place, item_size=into.item_size)

    def blocks(self, n: Number) -> Iterator[Number]:
        """Lengths of the blocks n rows come in, each written once for all that share it."""
        full = floor_div(n, self.sizes.rows)
        rest = n - full * self.sizes.rows
        for times, rows in ((full, self.sizes.rows), (at_least_one(rest), rest)):
            if not (is_plain(times) and isinstance(times, int) and times == 0):
                with self.tape.repeat(times):
                    yield rows

    # -- features ------------------------------------------------------------------------
    def projected(self, x: Tensor, who: str) -> Tensor:
        """X Ω, or x itself."""
        if self.projection is None:
            return x
        return self.tape.bmm(f"{who} projection", x, self.projection)

    def values(self, x: Tensor, who: str) -> Scaled:
        """Features, and the logarithm of what divided them."""
        z = self.projected(x, who)
        if self.softmax:
            z, top = self._exponential(z, who)
            return self.over(f"{who} features: epsilon", z, ADD), top
        positive = self.new(f"{who} features: max(z, 0)", z.shape, COMPARE, z)
        falling = self._falling(z, who)
        out = self.over(f"{who} features", positive, ADD, falling)
        self.tape.free(falling)
        return out, None

    def slope(self, x: Tensor, who: str) -> Tensor:
        """Slopes alone."""
        z = self.projected(x, who)
        if self.softmax:
            z, top = self._exponential(z, who)
            self.tape.free(top)
            return z
        return self._falling(z, who)

    def values_and_slope(self, x: Tensor, who: str) -> tuple[Tensor, Tensor, Tensor | None]:
        """Features, slopes, logarithm of the divisor."""
        z = self.projected(x, who)
        if self.softmax:
            slope, top = self._exponential(z, who)
            return self.new(f"{who} features: epsilon", slope.shape, ADD, slope), slope, top
        positive = self.new(f"{who} features: max(z, 0)", z.shape, COMPARE, z)
        slope = self._falling(z, who)
        return self.over(f"{who} features", positive, ADD, slope), slope, None

    def _exponential(self, z: Tensor, who: str) -> tuple[Tensor, Tensor]:
        shape = (*z.shape[:2], 1)
        top = self.tape.emit(f"{who} features: largest", shape, Cost(other=z.count), [z])
        z = self.over(f"{who} features: shift", z, ADD, top)
        return self.over(f"{who} features: exp", z, EXP), top

    def _falling(self, z: Tensor, who: str) -> Tensor:
        if self.projection is None:
            z = self.new(f"{who} features: min(z, 0)", z.shape, COMPARE, z)
        else:
            z = self.over(f"{who} features: min(z, 0)", z, COMPARE)
        return self.over(f"{who} features: exp", z, EXP)

    def input_grad(self, grad: Tensor, slope: Tensor) -> Tensor:
        """Gradient of the rows; overwrites that of the features."""
        grad = self.over("features: grad", grad, TIMES, slope)
        if self.projection is None:
            return grad
        out = self.tape.bmm("projection: grad", grad, self.projection, tb=True)
        self.tape.free(grad)
        return out

    def key_scale(self, keys: Tensor, top: Tensor) -> Tensor:
        """Top - ‖k‖²/(2·sqrt d), over top."""
        square = self.new("key norms: square", keys.shape, TIMES, keys, keys)
        norm = self.tape.sum("key norms: sum", square, top.shape)
        self.tape.free(square)
        norm = self.over("key norms: halve", norm, TIMES)
        scale = self.over("key scale", top, ADD, norm)
        self.tape.free(norm)
        return scale

    def keys_of(self, k: Tensor) -> Scaled:
        """Features of keys and their scale."""
        features, top = self.values(k, "key")
        return features, None if top is None else self.key_scale(k, top)

    def with_ones(self, v: Tensor) -> Tensor:
        """[V, 1]."""
        return self.tape.emit("values and ones", (*v.shape[:2], v.shape[2] + 1), Cost(), [v])

    # -- state ---------------------------------------------------------------------------
    def new_state(self, *, scaled: bool) -> State:
        """Zeros, in float32 at least."""
        s, item = self.sizes, self.tape.item_size
        sums = self.tape.emit(
            "state", (s.batch, s.features, s.value_width + 1), Cost(),
            item_size=4 if item == 2 else item,
        )  # fmt: skip
        return State(sums, self.new("scale", (s.batch, 1, 1), Cost()) if scaled else None)

    def free_state(self, state: State) -> None:
        """Let go of both tensors."""
        self.tape.free(state.sums, *([] if state.top is None else [state.top]))

    def like(self, state: State) -> Tensor:
        """The sums in the format of the rows: a copy where that has fewer digits."""
        if state.sums.item_size == self.tape.item_size:
            state.sums.storage.holders += 1
            return state.sums
        return self.tape.emit("round the state", state.sums.shape, Cost(), [state.sums])

    def accumulate(self, state: State, features: Tensor, rows: Tensor) -> None:
        """Add featuresᵀ rows to the state."""
        more = self.tape.bmm("state update", features, rows, ta=True)
        self.over("add to state", state.sums, ADD, more)
        self.tape.free(more)

    def factor(self, name: str, shape: Shape, a: Tensor, b: Tensor) -> Tensor:
        """exp(a - b)."""
        return self.over(name, self.new(f"{name}: difference", shape, ADD, a, b), EXP)

    def push(
        self, state: State, features: Tensor, rows: Tensor, scale: Tensor | None, top: Tensor | None
    ) -> None:
        """Add keys to a state whose largest scale becomes ``top``."""
        if scale is not None and top is not None and state.top is not None:
            shrink = self.factor("shrink state", state.top.shape, state.top, top)
            self.over("rescale state", state.sums, TIMES, shrink)
            self.tape.free(shrink)
            share = self.factor("key shares", scale.shape, scale, top)
            self.over("scale values", rows, TIMES, share)
            self.tape.free(share)
            self.put("keep scale", state.top, top)
        self.accumulate(state, features, rows)

    def absorb(self, state: State, k: Tensor, v: Tensor) -> None:
        """Add a block of keys and values."""
        features, scale = self.keys_of(k)
        top = None
        if scale is not None and state.top is not None:
            largest = self.tape.emit(
                "largest scale", state.top.shape, Cost(other=scale.count), [scale]
            )
            top = self.new("larger scale", state.top.shape, COMPARE, largest, state.top)
            self.tape.free(largest)
        rows = self.with_ones(v)
        self.push(state, features, rows, scale, top)
        self.tape.free(features, rows, *(t for t in (scale, top) if t is not None))

    # -- weights of a chunk --------------------------------------------------------------
    def decay(self, scale: Tensor, tops: Tensor) -> Tensor:
        """exp(s_j - running maximum), 0 above the diagonal."""
        shape = (scale.shape[0], scale.shape[1], scale.shape[1])
        return self.over("mask", self.factor("decay", shape, scale, tops), Cost())

    def masked(self, weights: Tensor, factors: Tensor | None) -> Tensor:
        """Weights a row may see, times their factors."""
        if factors is None:
            return self.over("mask", weights, Cost())
        return self.over("decayed weights", weights, TIMES, factors)
