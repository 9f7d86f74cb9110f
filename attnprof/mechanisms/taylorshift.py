"""TaylorShift (004): the mechanism that switches from the direct form to the efficient one."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

from attnprof import costs
from attnprof.blocks.taylor import built_state
from attnprof.mechanisms.taylor import (
    Taylor,
    TaylorDirect,
    TaylorEfficient,
    TaylorState,
    direct_flops,
    efficient_flops,
)
from attnprof.ops.counter import Counter
from attnprof.ops.functional import plain_size, records
from attnprof.ops.layer import LayerSizes
from attnprof.ops.tensor import Tensor
from attnprof.workload import Workload

_Counts = Callable[[Workload, str], costs.CostTable]


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
    time_order = memory_order = "N"
    allowed: ClassVar[dict[str, Any]] = {"switch": ("formula", "published", "memory"), "chunk": 1}

    @property
    def direct(self) -> TaylorDirect:
        """The direct form with the same parameters."""
        return TaylorDirect(bias=self.bias, temperature=self.temperature)

    @property
    def efficient(self) -> TaylorEfficient:
        """The efficient form with the same parameters."""
        return TaylorEfficient(bias=self.bias, temperature=self.temperature, chunk=self.chunk)

    def direct_chosen(self, workload: Workload) -> costs.Number:
        """Return 1 where the direct form is taken, 0 where the efficient one is."""
        w = workload.with_(dtype="entry")
        if w.phase == "backward":
            w = w.with_(phase="train")
        if self.switch == "published":
            return costs.not_dearer(direct_flops(w), efficient_flops(w))
        direct, efficient = self.direct.cost(w, "core"), self.efficient.cost(w, "core")
        if self.switch == "memory":
            return costs.not_dearer(direct.peak(), efficient.peak())
        return costs.not_dearer(_short(direct.flops), _short(efficient.flops))

    def takes_direct(self, workload: Workload) -> bool:
        """Return whether the direct form runs; remembered for numbers, not for symbols."""
        w = workload
        sizes = (w.seq_len, w.num_heads, w.head_dim, w.batch_size)
        if all(isinstance(size, int) for size in sizes):
            return _takes_direct(self, w)
        return bool(self.direct_chosen(w))

    def form_for(self, workload: Workload) -> Taylor:
        """Return the form that is taken; raises :class:`TypeError` for symbols."""
        return self.direct if self.takes_direct(workload) else self.efficient

    def cost(self, workload: Workload, scope: str = "layer") -> costs.CostTable:
        """Return the chosen form's stages; for symbols and grids both, each where it is chosen."""
        self.check(workload, scope)
        return self._chosen(workload, self.direct.cost, self._efficient, scope)

    def definition(self, workload: Workload, scope: str = "layer") -> costs.CostTable:
        """Return the chosen form's definition."""
        return self._chosen(workload, self.direct.definition, self.efficient.definition, scope)

    def _chosen(
        self, w: Workload, direct: _Counts, efficient: _Counts, scope: str
    ) -> costs.CostTable:
        if costs.is_plain(w.seq_len, w.num_heads, w.head_dim, w.batch_size):
            if self.takes_direct(w):
                return _named("direct", direct(w, scope))
            return _named("efficient", efficient(w, scope))
        first, second = _named("direct", direct(w, scope)), _named("efficient", efficient(w, scope))
        return switched(first, second, self.direct_chosen(w))

    def _efficient(self, workload: Workload, scope: str) -> costs.CostTable:
        """Return the efficient form's table; its first decoding step builds the sums, too."""
        table, w, n = self.efficient.cost(workload, scope), workload, workload.seq_len
        if w.phase != "decode":
            return table
        # 1 where the token before was still decoded directly
        before = w.with_(seq_len=n - 1 if costs.is_symbolic(n) else costs.maximum(1, n - 1))
        left = self.direct_chosen(before) * (1 if costs.is_symbolic(n) else costs.more_than_one(n))
        counter = Counter(w.item_size)
        shape = (w.batch_size * w.num_heads, n - 1, w.head_dim)
        rows = Tensor.external(counter, shape)
        sums = built_state(rows, rows, self.chunk, self.features)
        built = tuple(times(stage, left) for stage in counter.stages)
        del sums  # after its stages are taken: the decoder keeps it
        built = tuple(replace(stage, name=f"build {stage.name}") for stage in built)
        return replace(table, stages=(*built, *table.stages))

    def state_entries(self, workload: Workload) -> costs.Number:
        """Return keys and values, or their sums from the switch on."""
        first = self.direct_chosen(workload.with_(phase="decode"))
        one, two = (f.state_entries(workload) for f in (self.direct, self.efficient))
        return one * first + two * (1 - first)

    def state_traffic(self, workload: Workload, scope: str = "layer") -> costs.Number:
        """Return keys and values once, sums twice."""
        first = self.direct_chosen(workload.with_(phase="decode"))
        one, two = (f.state_traffic(workload) for f in (self.direct, self.efficient))
        return one * first + two * (1 - first)

    # -- text --------------------------------------------------------------------------------
    def core(self, q: Any, k: Any, v: Any, causal: bool, weights: Any) -> Any:
        """Compute the form that is taken; in training the whole step decides."""
        phase = "train" if records(q) else "forward"
        b, h, n, d = (plain_size(size) for size in q.shape)
        form = self.direct if self._runs_direct(n, h, d, b, causal, phase) else self.efficient
        return form.core(q, k, v, causal, weights)

    def _runs_direct(self, n: Any, h: Any, d: Any, b: Any, causal: bool, phase: str) -> bool:
        """Return whether the direct form runs; a compiler asks once per shape, untraced."""
        return self.takes_direct(Workload(n, h, d, b, causal=causal, phase=phase))

    # all that torch.compiler.assume_constant_result does, without its import of the compiler
    _runs_direct._dynamo_marked_constant = True  # type: ignore[attr-defined]  # noqa: SLF001

    def init_state(self, sizes: LayerSizes, cache: Any) -> TaylorState:
        """Return sums of 0 if even the first token takes the efficient form."""
        state = super().init_state(sizes, cache)
        h, d, b = sizes.num_heads, sizes.head_dim, cache.batch_size
        state.direct = lambda token: self._runs_direct(token, h, d, b, True, "decode")
        if not state.direct(1):
            state.built(self.chunk)
        return state

    def step(
        self, q: Any, k: Any, v: Any, state: TaylorState, weights: Any
    ) -> tuple[Any, TaylorState]:
        """Compute one token; once the sums are built they are kept."""
        direct = state.sums is None and state.direct and state.direct(state.length + 1)
        return (self.direct if direct else self.efficient).step(q, k, v, state, weights)


@cache
def _takes_direct(mechanism: TaylorShift, workload: Workload) -> bool:
    return bool(mechanism.direct_chosen(workload))


def times(stage: costs.Stage, flag: costs.Number) -> costs.Stage:
    """Return a stage whose counts are multiplied by a flag, 1 or 0."""
    counts = ("cost", "allocates", "frees", "workspace")
    return replace(stage, **{name: costs.scaled(getattr(stage, name), flag) for name in counts})


@dataclass(frozen=True, slots=True)
class SwitchedTable(costs.CostTable):
    """The stages of both forms, each times the flag that says whether it is taken.

    Totals and peaks come from the two tables, so that the flag occurs in them twice and not
    once a stage: with symbols it is a long expression.
    """

    first: costs.CostTable = costs.CostTable(())
    second: costs.CostTable = costs.CostTable(())
    flag: costs.Number = 1

    @property
    def total(self) -> costs.Cost:
        """The sum of the stages that are executed."""
        total: costs.Cost = self.first.total * self.flag + self.second.total * (1 - self.flag)
        return total

    @property
    def matmul_flops(self) -> costs.Number:
        """Operations of the matrix products that are executed."""
        return self.total.matmul_flops

    def peak(self) -> costs.Number:
        """Return the peak of the form that is taken, in bytes."""
        return self.first.peak() * self.flag + self.second.peak() * (1 - self.flag)


def switched(first: costs.CostTable, second: costs.CostTable, flag: costs.Number) -> SwitchedTable:
    """Return the table of ``first`` where ``flag`` is 1 and of ``second`` where it is 0."""
    both = ((first, flag), (second, 1 - flag))
    return SwitchedTable(
        tuple(times(stage, share) for table, share in both for stage in table),
        first.parameters,
        sum(costs.scaled(table.state_entries, share) for table, share in both),
        sum(costs.scaled(table.live_before, share) for table, share in both),
        first=first,
        second=second,
        flag=flag,
    )


def _short(value: costs.Number) -> costs.Number:
    """Return a polynomial multiplied out: its stages share most of their terms."""
    return value.expand() if costs.is_symbolic(value) else value


def _named(form: str, table: costs.CostTable) -> costs.CostTable:
    """Return the stages with the form's name in their places, which keeps both forms' apart."""
    stages = (
        replace(stage, place=(form, *stage.place)) if stage.place else stage for stage in table
    )
    return replace(table, stages=tuple(stages))


MECHANISMS = (TaylorShift,)
