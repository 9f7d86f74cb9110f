"""TaylorShift (004): the direct form, the efficient form, and the one that switches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

from attnprof.costs import (
    CostTable,
    Number,
    is_plain,
    is_symbolic,
    maximum,
    more_than_one,
    not_dearer,
)
from attnprof.counting.definition import Definition
from attnprof.counting.engine import Tensor
from attnprof.counting.tape import Tape
from attnprof.errors import RequestError, closest
from attnprof.mechanisms.taylorshift import published, scan, stages
from attnprof.mechanisms.taylorshift.forms import Taylor, TaylorDirect, TaylorEfficient
from attnprof.mechanisms.taylorshift.switched import switched, times
from attnprof.workload import Workload

SWITCHES = ("formula", "published", "memory")


@dataclass(frozen=True, kw_only=True)
class TaylorShift(Taylor):
    """The direct form while it is not dearer, the efficient form from there on.

    ``switch`` says in what: ``formula`` (core FLOPs of what is executed), ``published`` (004-EQ4
    and EQ5) or ``memory`` (elements held at the peak of the core). Without autograd the forward
    pass decides; for phases ``backward`` and ``train`` the whole of both does, since one form
    runs through. In decoding the step at token t decides.
    """

    switch: str = "formula"
    chunk: int = 64

    name: ClassVar[str] = "taylorshift"
    title: ClassVar[str] = "TaylorShift, switching"
    same_as = ("taylor-efficient", {})
    time_order: ClassVar[str] = "N"
    memory_order: ClassVar[str] = "N"

    def __post_init__(self) -> None:
        if self.switch not in SWITCHES:
            options = closest(self.switch, list(SWITCHES))
            raise RequestError(f"unknown switch '{self.switch}': {options}")
        if self.chunk < 1:
            raise RequestError(f"chunk must be at least 1 token, not {self.chunk}")

    @property
    def direct(self) -> TaylorDirect:
        """The direct form with the same parameters."""
        return TaylorDirect(bias=self.bias, temperature=self.temperature)

    @property
    def efficient(self) -> TaylorEfficient:
        """The efficient form with the same parameters."""
        return TaylorEfficient(bias=self.bias, temperature=self.temperature, chunk=self.chunk)

    def direct_chosen(self, workload: Workload) -> Number:
        """1 where the direct form is taken, 0 where the efficient one is."""
        w = workload.with_(dtype="entry")
        if w.phase == "backward":
            w = w.with_(phase="train")
        if self.switch == "published":
            return not_dearer(published.direct_flops(w), published.efficient_flops(w))
        direct, efficient = self.direct.cost(w, "core"), self.efficient.cost(w, "core")
        if self.switch == "memory":
            return not_dearer(direct.peak(), efficient.peak())
        return not_dearer(_short(direct.flops), _short(efficient.flops))

    def takes_direct(self, workload: Workload) -> bool:
        """The same for plain sizes, remembered; a tracer's sizes are compared anew."""
        w = workload
        sizes = (w.seq_len, w.num_heads, w.head_dim, w.batch_size)
        if all(isinstance(size, int) for size in sizes):
            return _takes_direct(self, w)
        return bool(self.direct_chosen(w))

    def cost(self, workload: Workload, scope: str = "layer") -> CostTable:
        """The chosen form's stages; for symbols and grids both forms', each where it is taken."""
        self.check(workload, scope)
        direct, efficient = self.direct.cost(workload, scope), self._efficient(workload, scope)
        return self._chosen(workload, direct, efficient)

    def definition(self, workload: Workload, scope: str = "layer") -> CostTable:
        """The chosen form's definition."""
        direct = self.direct.definition(workload, scope)
        return self._chosen(workload, direct, self.efficient.definition(workload, scope))

    def _chosen(self, w: Workload, direct: CostTable, efficient: CostTable) -> CostTable:
        if _plain_sizes(w):
            return direct if self.takes_direct(w) else efficient
        return switched(direct, efficient, self.direct_chosen(w))

    def _efficient(self, workload: Workload, scope: str) -> CostTable:
        """The efficient form; the token that leaves the direct one builds the sums first."""
        table = self.efficient.cost(workload, scope)
        if workload.phase != "decode":
            return table
        tape = Tape(workload.item_size)
        self._build(tape, workload)
        built = self._left_direct(workload)
        return replace(table, stages=(*(times(s, built) for s in tape.stages), *table.stages))

    def _left_direct(self, workload: Workload) -> Number:
        """1 where the token before was still decoded directly."""
        n = workload.seq_len
        if is_symbolic(n):
            return self.direct_chosen(workload.with_(seq_len=n - 1))
        return more_than_one(n) * self.direct_chosen(workload.with_(seq_len=maximum(1, n - 1)))

    def _build(self, tape: Tape, workload: Workload) -> None:
        """The sums of the t - 1 cached tokens, in chunks; the state stays."""
        w, d = workload, workload.head_dim
        batch = w.batch_size * w.num_heads
        state = stages.zeros(tape, "build state", batch, d * d + d + 1, d + 1)

        def chunk(c: Number) -> None:
            rows = tape.constant(batch, c, d)
            values = stages.padded(tape, rows)
            self.efficient.features.absorb(tape, state, rows, values)
            tape.free(values)

        scan.each_chunk(tape, w.seq_len - 1, self.chunk, chunk)

    def state_entries(self, workload: Workload) -> Number:
        """Keys and values, or their sums from the switch on."""
        first = self.direct_chosen(workload.with_(phase="decode"))
        one, two = (f.state_entries(workload) for f in (self.direct, self.efficient))
        return one * first + two * (1 - first)

    def core(self, tape: Tape, workload: Workload, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The direct form's operations: what a caller that writes a core alone gets."""
        return self.direct.core(tape, workload, q, k, v)

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """The direct form's definition (see :meth:`definition` for the choice)."""
        self.direct.define_core(writer, workload)


@cache
def _takes_direct(mechanism: TaylorShift, workload: Workload) -> bool:
    return bool(mechanism.direct_chosen(workload))


def _short(value: Number) -> Number:
    """A polynomial multiplied out: its stages share most of their terms."""
    return value.expand() if is_symbolic(value) else value


def _plain_sizes(w: Workload) -> bool:
    return is_plain(w.seq_len, w.num_heads, w.head_dim, w.batch_size)


MECHANISMS = (TaylorDirect, TaylorEfficient, TaylorShift)
