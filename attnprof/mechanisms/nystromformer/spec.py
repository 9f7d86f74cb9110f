"""Nystromformer (003, low-rank family): softmax attention through landmarks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attnprof.costs import Cost, Number, minimum
from attnprof.counting.definition import Definition
from attnprof.counting.engine import Tensor
from attnprof.counting.tape import Tape
from attnprof.errors import RequestError
from attnprof.mechanism import Abilities, Mechanism
from attnprof.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Nystromformer(Mechanism):
    """softmax(Q K̃ᵀ) pinv(softmax(Q̃ K̃ᵀ)) softmax(Q̃ Kᵀ) V with m landmarks Q̃, K̃.

    A landmark is the mean of a segment; segments differ by one token where m does not divide N,
    and there are never more landmarks than tokens. ``iterations`` of the pseudo-inverse's cubic
    iteration start from the transpose over its own norms: no sample reads another's. An odd
    ``conv_kernel`` adds a depthwise convolution of the values along the tokens, one kernel a head.
    """

    num_landmarks: int = 64
    iterations: int = 6
    conv_kernel: int | None = None

    name: ClassVar[str] = "nystromformer"
    title: ClassVar[str] = "Nystromformer"
    document: ClassVar[str] = "003"
    family: ClassVar[str] = "low-rank"
    time_order: ClassVar[str] = "N"
    memory_order: ClassVar[str] = "N"
    abilities: ClassVar[Abilities] = Abilities(causal=False, decode=False)
    reasons: ClassVar[dict[str, str]] = {
        "causal": "takes its landmarks as means over all tokens, so a row would see later ones; "
        "leave --causal out",
        "decode": "takes its landmarks from a whole sequence and has no step; use --phase forward",
    }

    def __post_init__(self) -> None:
        if self.num_landmarks < 1 or self.iterations < 1:
            raise RequestError(
                f"num_landmarks={self.num_landmarks} iterations={self.iterations}: at least 1 each"
            )
        if self.conv_kernel is not None and (self.conv_kernel < 1 or self.conv_kernel % 2 == 0):
            raise RequestError(f"conv_kernel={self.conv_kernel}: odd, so that it has a middle")

    def core(self, tape: Tape, workload: Workload, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Means, three softmaxes, the pseudo-inverse, products from the right."""
        m = minimum(self.num_landmarks, workload.seq_len)
        q = tape.scale("scaled queries", q, divide=True)
        q_mean, k_mean = self._means(tape, "query", q, m), self._means(tape, "key", k, m)
        inner = self._weights(tape, "inner", q_mean, k_mean)
        inverse = self._inverse(tape, inner)
        tape.free(inner)
        right = self._weights(tape, "right", q_mean, k)
        context = tape.bmm("right context", right, v)
        tape.free(right)
        short = tape.bmm("inner context", inverse, context)
        tape.free(inverse, context)
        left = self._weights(tape, "left", q, k_mean)
        out = tape.bmm("left context", left, short)
        tape.free(left, short, q, q_mean, k_mean)
        return out if self.conv_kernel is None else self._convolved(tape, workload, out, v)

    def _means(self, tape: Tape, name: str, x: Tensor, m: Number) -> Tensor:
        """Longer segments, shorter segments, joined."""
        shape = (x.shape[0], m, x.shape[2])

        def backward(grad: Tensor) -> list[tuple[Tensor, Tensor | None]]:
            out = tape.empty(f"{name} means: grad", *x.shape)
            cost = Cost(divisions=grad.count)
            shares = tape.emit(f"{name} means: shares", shape, cost, [grad])
            moved = Cost(bytes_moved=shares.size + out.size)
            tape.record(f"{name} means: spread", x.shape, moved)
            tape.free(shares)
            return [(x, out)]

        outputs = shape[0] * shape[1] * shape[2]
        cost = Cost(additions=x.count, divisions=outputs, reduction_outputs=outputs)
        parts = tape.emit(f"{name} means", shape, cost, [x])
        joined = tape.emit(f"{name} means joined", shape, Cost(), [parts])
        if tape.grad and x.requires_grad:
            tape.attach(joined, f"{name} means", backward, ())
        tape.free(parts)
        return joined

    def _weights(self, tape: Tape, name: str, q: Tensor, k: Tensor) -> Tensor:
        scores = tape.bmm(f"{name} scores", q, k, tb=True)
        weights = tape.softmax(f"{name} softmax", scores)
        tape.free(scores)
        return weights

    def _inverse(self, tape: Tape, a: Tensor) -> Tensor:
        """Z <- Z (13 I - AZ (15 I - AZ (7 I - AZ))) / 4, from Aᵀ over its largest column sum.

        Signs are moved so that every step is a sum: AZ - 7I, AZ(.) + 15I, AZ(.) - 13I, then -1/4.
        """
        m = a.shape[1]
        eye = tape.emit("identity", (m, m), Cost())
        eyes = [
            tape.emit(f"{c} I", (m, m), Cost(multiplications=m * m), [eye]) for c in (7, 15, 13)
        ]
        tape.free(eye)
        z = self._start(tape, a)
        for step in range(1, self.iterations + 1):
            z = self._iterated(tape, f"iteration {step}", a, z, eyes)
        tape.free(*eyes)
        return z

    def _start(self, tape: Tape, a: Tensor) -> Tensor:
        """Aᵀ over its largest column sum (its rows sum to one)."""
        b, m, _ = a.shape
        columns = tape.sum("column sums", a, (b, m))

        def amax_backward(grad: Tensor) -> list[tuple[Tensor, Tensor | None]]:
            count = columns.count
            reads = [columns, tape.constant(b, 1)]
            which = Cost(other=count)
            mask = tape.emit("largest column: which", (b, m), which, reads, item_size=1)
            ties = tape.emit("largest column: ties", (b, 1), Cost(), [mask], item_size=8)
            shared = tape.emit("largest column: share", (b, 1), Cost(divisions=b), [grad, ties])
            kept = Cost(multiplications=count)
            out = tape.emit("largest column: grad", (b, m), kept, [shared, mask])
            tape.free(mask, ties, shared)
            return [(columns, out)]

        cost = Cost(other=columns.count)
        largest = tape.emit("largest column sum", (b, 1, 1), cost, [columns])
        if tape.grad and columns.requires_grad:
            tape.attach(largest, "largest column sum", amax_backward, (columns, largest))
        inverse = self._reciprocal(tape, largest)
        tape.free(columns, largest)
        z = tape.mul("start of the inverse", a, inverse)
        tape.free(inverse)
        return z

    @staticmethod
    def _reciprocal(tape: Tape, x: Tensor) -> Tensor:
        def backward(grad: Tensor) -> list[tuple[Tensor, Tensor | None]]:
            minus = tape.emit("reciprocal: minus", x.shape, Cost(other=x.count), [grad])
            square = tape.emit("reciprocal: square", x.shape, Cost(multiplications=x.count), [x, x])
            out = tape.emit(
                "reciprocal: grad", x.shape, Cost(multiplications=x.count), [minus, square]
            )
            tape.free(minus, square)
            return [(x, out)]

        out = tape.emit("reciprocal", x.shape, Cost(divisions=x.count), [x])
        if tape.grad and x.requires_grad:
            tape.attach(out, "reciprocal", backward, (out,))
        return out

    @staticmethod
    def _iterated(tape: Tape, name: str, a: Tensor, z: Tensor, eyes: list[Tensor]) -> Tensor:
        az = tape.bmm(f"{name}: AZ", a, z)
        inner = tape.add(f"{name}: AZ - 7I", az, eyes[0])
        for which, eye in (("15I", eyes[1]), ("13I", eyes[2])):
            outer = tape.bmm(f"{name}: AZ(.)", az, inner)
            tape.free(inner)
            inner = tape.add(f"{name}: {which}", outer, eye, inplace=True)
        tape.free(az)
        new = tape.bmm(f"{name}: Z(.)", z, inner)
        tape.free(inner, z)
        return tape.scale(f"{name}: / 4", new, inplace=True)

    def reads(self, n: Number) -> Number:
        """Rows read by all taps of the convolution together: borders are not padded."""
        size = self.conv_kernel or 1
        half = minimum(size // 2, n - 1)
        # taps beyond the sequence reach no row; a shift by s reaches n - s
        return n + 2 * half * n - half * (half + 1)

    def _convolved(self, tape: Tape, w: Workload, out: Tensor, v: Tensor) -> Tensor:
        """Values along the tokens through one kernel a head, added to the output."""
        weight = tape.parameter(w.num_heads, self.conv_kernel or 1)
        reads = v.shape[0] * v.shape[2] * self.reads(w.seq_len)
        taps = Cost(multiplications=reads, additions=reads)
        longest = w.batch_size * w.num_heads * v.shape[2] * w.seq_len * tape.item_size

        def backward(grad: Tensor) -> list[tuple[Tensor, Tensor | None]]:
            to_v = tape.emit("convolution: grad values", v.shape, taps, [grad, v])
            products = taps + Cost(reduction_outputs=weight.count)
            to_w = tape.emit(
                "convolution: grad kernel", weight.shape, products, [grad, v], workspace=longest
            )
            return [(v, to_v), (weight, to_w)]

        parts = [v, weight]
        extra = tape.emit("convolution", v.shape, taps, parts, backward=backward, saves=parts)
        out = tape.add("add convolution", out, extra, inplace=True)
        tape.free(extra)
        return out

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Means, three softmaxes, four products an iteration, three products outwards."""
        w = workload
        m = minimum(self.num_landmarks, w.seq_len)
        heads, d, n = w.batch_size * w.num_heads, w.head_dim, w.seq_len
        for name in ("query", "key"):
            writer.sums(f"{name} segments", heads * m * d, heads * n * d)
            writer.stage(f"{name} means", Cost(divisions=heads * m * d), heads, m, d)
        for name, rows, columns in (("left", n, m), ("inner", m, m), ("right", m, n)):
            entries = heads * rows * columns
            writer.dots(f"{name} scores", entries, entries * d)
            writer.stage(f"{name} scaling", Cost(divisions=entries), entries)
            writer.stage(f"{name} exponentials", Cost(exponentials=entries), entries)
            writer.sums(f"{name} row sums", heads * rows, entries)
            writer.stage(f"{name} normalisation", Cost(divisions=entries), entries)
        square, step = heads * m * m, self.iterations
        writer.sums("column sums", heads * m, square)
        writer.stage("start", Cost(divisions=square), square)
        writer.dots("iterations", 4 * step * square, 4 * step * square * m)
        writer.stage("identities", Cost(additions=3 * step * square), square)
        writer.stage("quarters", Cost(divisions=step * square), square)
        for name, rows, columns in (("right", m, n), ("inner", m, m), ("left", n, m)):
            results = heads * rows * d
            writer.dots(f"{name} context", results, results * columns)
        if self.conv_kernel is not None:
            writer.dots("convolution", heads * n * d, heads * d * self.reads(n))
            writer.stage("add convolution", Cost(additions=heads * n * d), heads, n, d)


MECHANISMS = (Nystromformer,)
