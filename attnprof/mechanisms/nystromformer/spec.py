"""Nystromformer (003, low-rank family): softmax attention through landmarks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attnprof.costs import Cost, Number, minimum
from attnprof.counting.definition import Definition
from attnprof.counting.engine import Tensor
from attnprof.counting.row_attention import row_attention
from attnprof.counting.tape import Tape
from attnprof.errors import RequestError
from attnprof.mechanism import Abilities, Mechanism
from attnprof.mechanisms.nystromformer.inverse import inverse_product
from attnprof.mechanisms.nystromformer.stages import convolution, with_means
from attnprof.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Nystromformer(Mechanism):
    """softmax(Q K̃ᵀ) pinv(softmax(Q̃ K̃ᵀ)) softmax(Q̃ Kᵀ) V with m landmarks Q̃, K̃.

    A landmark is the mean of a segment; segments differ by one token where m does not divide N,
    and there are never more landmarks than tokens. ``iterations`` of the pseudo-inverse's cubic
    iteration start from the transpose over its own norms: no sample reads another's. The inverse
    is never made: its polynomials multiply softmax(Q̃ Kᵀ) V, and only A times it is squared. An odd
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
    strided_heads: ClassVar[bool] = True
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
        """Means, three softmaxes, the pseudo-inverse's product, from the right."""
        w = workload
        m = minimum(self.num_landmarks, w.seq_len)
        q, means = with_means(tape, "query", q, m)
        k, k_mean = with_means(tape, "key", k, m)
        q_mean = tape.scale("scaled query means", means, divide=True)
        tape.free(means)
        scores = tape.bmm("inner scores", q_mean, k_mean, tb=True)
        inner = tape.softmax("inner softmax", scores)
        tape.free(scores)
        context = row_attention(tape, "right", (q_mean, k, v), w.batch_size)
        short = inverse_product(tape, inner, context, self.iterations)
        tape.free(inner, context)
        scaled = tape.scale("scaled key means", k_mean, divide=True)
        out = row_attention(tape, "left", (q, scaled, short), w.batch_size)
        tape.free(scaled, short, q, k, q_mean, k_mean)
        if self.conv_kernel is None:
            return out
        kernel = tape.parameter(w.num_heads, self.conv_kernel)
        extra = convolution(tape, v, kernel, w.batch_size)
        out = tape.add("add convolution", out, extra, inplace=True)
        tape.free(extra)
        return out

    def reads(self, n: Number) -> Number:
        """Rows read by all taps of the convolution together: borders are not padded."""
        size = self.conv_kernel or 1
        half = minimum(size // 2, n - 1)
        # taps beyond the sequence reach no row; a shift by s reaches n - s
        return n + 2 * half * n - half * (half + 1)

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
