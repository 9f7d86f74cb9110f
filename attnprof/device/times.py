"""Predict the time of a call from its operations, by the tables of a calibration.

A call's time is the sum of its operations' times, each interpolated in the table that its form
names, plus what comes between them: Python functions, autograd nodes, code and weights that caches
no longer hold. On a GPU the host works ahead, so its time counts only if the GPU has to wait.
Entry points: :meth:`Times.of` for a whole call, :meth:`Times.seconds` for one operation;
:class:`GpuTimes` replaces the rules that differ on a GPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, prod
from operator import mul
from statistics import fmean
from typing import ClassVar

import numpy as np

from attnprof.device.benchmarks import (
    BROADCAST_RUNS,
    CHAIN,
    FUNCTIONS_PER_LAYER,
    GPU_PIECE,
    POINTWISE_PREPARED,
    REMAINDER_LENGTHS,
    REMAINDERS,
    VECTOR_ENTRIES,
    WEIGHT_ENTRIES,
    WHOLE_VECTORS,
)
from attnprof.device.call_costs import CallCosts
from attnprof.device.fused_times import FUSED_KERNELS, fused_s
from attnprof.device.operation_forms import FUSED, KernelCall
from attnprof.device.operations import Demand
from attnprof.device.product_times import (
    PLAIN,
    SECOND_TRANSPOSED,
    SINGLE_BYTES,
    Likeness,
    ProductTimes,
    VectorTimes,
    transposed,
)
from attnprof.device.tables import TimeTable
from attnprof.errors import RequestError
from attnprof.measure.allocator import LARGEST_KEPT
from attnprof.units import plural

#: Rows, columns and length of the sums of a product that is pure overhead.
OVERHEAD_PRODUCT = (8, 8, 8)
#: Arithmetic up to so many times as slow as a multiplication is hidden behind memory access.
CHEAP_FACTOR = 1.3


@dataclass(frozen=True)
class Times:
    """Seconds of operations on a CPU by the tables of a calibration in one number format.

    ``fault_s``: seconds per byte of memory that is used for the first time. ``entry_bytes``: bytes
    of an entry of the tables' number format. ``formats``: times in other number formats, for
    operations in them; many layers sum in float32 whatever their inputs are. ``spread``: standard
    deviation, in logarithms, of predicted times of calls without checked layers; ``ratio_spread``:
    of ratios of two such times, which is smaller since the machine's state changes both.
    """

    spread: ClassVar[float] = 0.15
    ratio_spread: ClassVar[float] = 0.10

    tables: Mapping[str, TimeTable]
    fault_s: float = 0.0
    entry_bytes: int = 4
    formats: Mapping[str, "Times"] = field(default_factory=dict, compare=False)
    _cache: dict[KernelCall, float] = field(default_factory=dict, compare=False)

    def in_format_of(self, call: KernelCall) -> "Times":
        """Return the times in an operation's number format; these if it was not calibrated."""
        return self.formats.get(call.dtype, self)

    @cached_property
    def view_s(self) -> float:
        """Seconds of an operation that only returns a view of a tensor."""
        return self.tables["4 views"].at((1,)) / 4

    @cached_property
    def node_s(self) -> float:
        """Seconds to record and play an autograd node, beyond the operations themselves."""
        played, plain = (self.tables[name].at((1,)) for name in ("played", "chain"))
        return max(0.0, (played - 2 * plain) / CHAIN)

    @cached_property
    def function_s(self) -> float:
        """Seconds of a call of a Python function."""
        return self.tables["functions"].at((1,)) / CHAIN / FUNCTIONS_PER_LAYER

    @cached_property
    def _jumps(self) -> tuple[float, ...]:
        """Seconds to start a run of whole vectors, and the extra seconds of ``REMAINDERS``."""

        def run_s(length: int) -> float:
            total_s = self.tables["broadcast"].at((BROADCAST_RUNS, length))
            return (total_s - self.tables["fill"].at((BROADCAST_RUNS * length,))) / BROADCAST_RUNS

        jump = max(0.0, run_s(WHOLE_VECTORS))
        return jump, *(max(0.0, run_s(length) - jump) for length in REMAINDER_LENGTHS)

    def of(self, work: Demand) -> float:
        """Return the seconds of a call; raise RequestError if the tables give 0 or infinity."""
        between = self.between(work).values()
        total_s = sum(map(self.seconds, work.operations)) + sum(seconds for _, seconds in between)
        kernels = sum(call.form != "view" for call in work.operations)
        if kernels and not 0 < total_s < inf:
            raise RequestError(
                f"the calibration gives {total_s:g} s for {plural(kernels, 'operation')}, which is "
                "no time: type attnprof calibrate"
            )
        return total_s

    def between(self, work: Demand) -> dict[str, tuple[int, float]]:
        """Return the costs between operations, by name: how many times, and seconds in total.

        The shares of :class:`CallCosts` are added to each operation's overhead. Functions and nodes
        cost more by the mean share.
        """
        kinds = [(call.name, call.form, call.backward) for call in work.operations]
        shares = CallCosts(self.tables).shares(kinds, work.moved or [0] * len(kinds))
        factor, calls = 1 + fmean(shares or [0.0]), map(self.call_s_of, work.operations)
        return {
            "autograd nodes": (work.nodes, work.nodes * self.node_s * factor),
            "Python functions": (work.functions, work.functions * self.function_s * factor),
            "operations after others": (len(kinds), sum(map(mul, shares, calls))),
            "weights from memory": self._far_weights(work),
        }

    def _far_weights(self, work: Demand) -> tuple[int, float]:
        """Return the number of products with weights, and the extra seconds to read the weights.

        In a call that is repeated, a weight is as far away in the caches as if all given memory
        were one tensor. In a table of products it is as far away as its own size alone says.
        """
        weights = [call.weights for call in work.operations if call.weights]
        table = self.tables.get("weights")
        if table is None:
            return 0, 0.0

        def byte_s(total_bytes: int) -> float:
            entries = max(WEIGHT_ENTRIES[0], total_bytes / self.entry_bytes)
            return table.at((entries,)) / entries / self.entry_bytes

        far_s = byte_s(work.input_bytes)
        extra_s = sum(size * max(0.0, far_s - byte_s(size)) for size in weights)
        return len(weights), extra_s

    def call_s_of(self, call: KernelCall) -> float:
        """Return the overhead of an operation: its seconds on the smallest tensors."""
        if (times := self.in_format_of(call)) is not self:
            return times.call_s_of(call)
        if call.form == "view":
            return self.view_s
        if call.form == "product":
            batch = min(call.sizes[0], 2)
            return self.product(batch, *OVERHEAD_PRODUCT)
        table = self.tables.get(call.form)
        if table is not None and len(call.sizes) > 1 and "strided" not in call.form:
            return table.at([axis[0] for axis in table.axes])
        return self.call_s if call.form in FUSED else self._overhead_s(call)

    def seconds(self, call: KernelCall) -> float:
        """Return the seconds of one operation, page faults of large new memory included."""
        if call not in self._cache:
            new_bytes = call.fresh if call.fresh >= LARGEST_KEPT else 0
            seconds = self.in_format_of(call)._price(call)  # noqa: SLF001 - of this class
            self._cache[call] = seconds + self.fault_s * new_bytes
        return self._cache[call]

    def bound(self, call: KernelCall) -> str:
        """Return what limits an operation: ``compute``, ``memory`` or ``overhead``."""
        if call.form == "view" or self.seconds(call) < 2 * self.call_s:
            return "overhead"
        if call.form == "product" or call.form in FUSED:
            return "compute"
        if len(call.sizes) > 1:  # rows: twice the time of reading and writing them
            moved = 2 * self.tables["in place"].at((prod(call.sizes),))
            return "compute" if self.seconds(call) > moved else "memory"
        arithmetic = self._arithmetic_s(call, call.sizes[0] if call.sizes else 1)
        return "compute" if arithmetic > self.seconds(call) / 2 else "memory"

    def _arithmetic_table(self, call: KernelCall) -> str:
        """Return the name of the table with the arithmetic of a pointwise operation."""
        name = call.name.rstrip("_")
        if call.name != name and name == "masked_fill":
            name = "where"  # in place it copies nothing first
        return f"of {name}" if f"of {name}" in self.tables else "of mul"

    def _price(self, call: KernelCall) -> float:
        """Return the seconds of an operation in this number format, without page faults."""
        if call.form == "view":
            return self.view_s
        if call.form == "product":
            batch, m, n, k = call.sizes
            seconds = self.product(batch, m, n, k, call.layout)
            if call.name in ("addmm", "baddbmm"):
                added = self.tables["in place"].at((batch * m * n,)) - self.call_s
                seconds += max(0.0, added)
            return seconds + sum(map(self._packing_s, call.packed))
        if call.form in FUSED:
            return self._fused(call)
        if call.form in self.tables and len(call.sizes) > 1:
            return self.tables[call.form].at(call.sizes)
        return self._entries(call)

    def _packing_s(self, copy: KernelCall) -> float:
        """Return the seconds of a copy of a product's factor, which oneDNN makes on a CPU."""
        return self.seconds(copy)

    @cached_property
    def call_s(self) -> float:
        """Seconds of a pointwise operation in place on one entry."""
        return self.tables["in place"].at((1,))

    @cached_property
    def _products(self) -> ProductTimes:
        """The fit to measured products."""
        return ProductTimes(self.tables["product"].seconds)

    @cached_property
    def _vectors(self) -> VectorTimes:
        """The fit to measured products with a vector."""
        return VectorTimes(self.tables["vector product"].seconds)

    def product(self, batch: int, m: int, n: int, k: int, layout: int = PLAIN) -> float:
        """Return the seconds of ``batch`` products (m, k) by (k, n)."""
        first, second = transposed(layout)
        if batch == n == 1:  # a matrix by a column reads it as a row by the transposed matrix
            m, n, second = n, m, 1 - first
        if 1 in (m, k):
            return self._vectors.at(batch, m, n, k, SECOND_TRANSPOSED if second else PLAIN)
        return self._products.at(batch, m, n, k, layout)

    def _entries(self, call: KernelCall) -> float:
        """Return the seconds of a pointwise operation: overhead, plus memory access or arithmetic.

        The longer of the two counts. Broken memory access costs extra.
        """
        strided, count = call.form.startswith("strided "), call.sizes[0] if call.sizes else 1
        if strided:
            count *= call.runs
        form = call.form.removeprefix("strided ")
        moved = 0.0
        if form in self.tables:
            moved = self.tables[form].at((count * call.item_bytes / self.entry_bytes,))
            moved -= min(moved, self.tables[form].at((1,)))
        seconds = self._overhead_s(call) + max(moved, self._arithmetic_s(call, count))
        if strided:
            return max(seconds, self._strided_s(call.sizes[0], max(call.sizes[1], 2), call.runs))
        return self._broken_s(seconds, call.runs, count / call.runs) if call.runs > 1 else seconds

    def _strided_s(self, length: int, stride: int, runs: int) -> float:
        """Return the seconds of strided runs of ``length`` entries; tables have ``stride`` runs."""
        return self.tables["strided"].at((length, stride)) * runs / stride

    def _broken_s(self, seconds: float, runs: int, length: float) -> float:
        """Return the seconds of an operation in ``runs`` runs of ``length`` entries.

        ``seconds`` is its time in one run. Entries beyond whole vectors are computed one by one.
        """
        jump, *remainders_s = self._jumps
        remainder = length % VECTOR_ENTRIES
        remainder_s = float(np.interp(remainder, (0, *REMAINDERS), (0.0, *remainders_s)))
        return seconds + runs * (jump + remainder_s)

    def _overhead_s(self, call: KernelCall) -> float:
        """Return the overhead of a pointwise operation.

        The tables' second operand is a number, which torch makes a tensor first: with two tensors
        the overhead is at most that of the binary pattern.
        """
        table = self._arithmetic_table(call)
        overhead_s = self.tables[table].at((1,))
        is_prepared = table.removeprefix("of ") in POINTWISE_PREPARED
        if is_prepared or call.operands < 2:
            return overhead_s
        return min(overhead_s, self.tables["binary"].at((1,)))

    def _arithmetic_s(self, call: KernelCall, entries: int) -> float:
        """Return the seconds of arithmetic beyond the overhead; 0 if about as fast as ``mul``.

        A cheap operation waits for memory, whose tables price it.
        """
        arithmetic_s, multiplication_s = (
            table.at((entries,)) - table.at((1,))
            for table in (self.tables[self._arithmetic_table(call)], self.tables["of mul"])
        )
        return arithmetic_s if arithmetic_s > CHEAP_FACTOR * multiplication_s else 0.0

    def _fused(self, call: KernelCall) -> float:
        """Return the seconds of a fused attention kernel, by times of the whole kernel."""
        return fused_s(self.tables, call)


#: Distances between products on a GPU, where batches have kernels of their own, and half formats
#: others for rows that are not aligned. Chosen on products that were left out of the fit.
GPU_LIKENESS = Likeness(
    rows=0.35, columns=0.3, batched=1.5, as_batch=0.2, left_over=0.5, noise=0.05
)
GPU_HALF_LIKENESS = replace(GPU_LIKENESS, aligned=1.0, odd=1.0)
#: Launches that a GPU's queue holds; the host waits when it is full.
QUEUED = 1023


@dataclass(frozen=True)
class GpuTimes(Times):
    """Seconds of operations on a GPU, which works while the host launches the next ones.

    The tables include what a launch costs the GPU. The host's functions, autograd nodes and views
    count only in calls with more launches than the queue holds, as far as the GPU waits for them.
    ``processors``: multiprocessors.
    """

    #: wider than a CPU's: kernels of products differ by shape in ways that are not measured
    spread: ClassVar[float] = 0.3
    ratio_spread: ClassVar[float] = 0.25

    processors: int | None = None

    def between(self, work: Demand) -> dict[str, tuple[int, float]]:
        """Return the added overhead of operations, and the time of waiting for the host, if any."""
        overheads = "operations after others"
        parts = {overheads: super().between(work)[overheads]}
        views = sum(call.form == "view" for call in work.operations)
        launches = len(work.operations) - views
        if launches <= QUEUED:
            return parts
        host_s = launches * self.tables["chain"].at((1,)) / CHAIN
        host_s += views * self.view_s + work.nodes * self.node_s
        host_s += work.functions * self.function_s
        device_s = sum(map(self.seconds, work.operations)) + parts[overheads][1]
        waiting_s = max(0.0, host_s * (1 - QUEUED / launches) - device_s)
        return {**parts, "waiting for the host": (launches - QUEUED, waiting_s)}

    def _price(self, call: KernelCall) -> float:
        """Return the seconds of an operation without page faults; a view takes the GPU none."""
        return 0.0 if call.form == "view" else super()._price(call)

    def product(self, batch: int, m: int, n: int, k: int, layout: int = PLAIN) -> float:
        """Return the seconds of ``batch`` products (m, k) by (k, n)."""
        if batch == 1 and 1 in (m, n):
            return self.tables["vector product"].at((1, max(m, n), k))
        return self._products.at(batch, m, n, k, layout)

    def _packing_s(self, copy: KernelCall) -> float:
        """Return 0: a GPU's kernels take factors with any strides."""
        return 0.0

    def call_s_of(self, call: KernelCall) -> float:
        """Return the overhead of an operation, its seconds on the smallest tensors; 0 of a view."""
        return 0.0 if call.form == "view" else super().call_s_of(call)

    def _strided_s(self, length: int, stride: int, runs: int) -> float:
        """Return the seconds of strided runs, which a GPU computes side by side."""
        return self.tables["strided"].at((length * runs / stride, stride))

    def _broken_s(self, seconds: float, runs: int, length: float) -> float:
        """Return the seconds of an operation in runs, which only depend on the entries in all."""
        pieces = self.tables["in pieces"]
        return max(seconds, pieces.at((runs * max(length, GPU_PIECE),)))

    @cached_property
    def _products(self) -> ProductTimes:
        """The fit to measured products, with a GPU's distances between shapes."""
        likeness = GPU_LIKENESS if self.entry_bytes >= SINGLE_BYTES else GPU_HALF_LIKENESS
        return ProductTimes(self.tables["product"].seconds, likeness)

    @cached_property
    def _best_rate(self) -> float:
        """Multiplications a second of the best product."""
        products = self.tables["product"].seconds.items()
        return max(b * m * n * k / seconds for (b, m, n, k, _), seconds in products)

    def _fused(self, call: KernelCall) -> float:
        """Return the seconds of a fused kernel, whose blocks the multiprocessors share."""
        heads, n, m, d, v = call.sizes
        half = self.entry_bytes < SINGLE_BYTES
        kernel = FUSED_KERNELS[half, "backward" in call.name]
        start_s = kernel.calls * self.call_s
        if half and n == 1:  # blocks of keys are shared; reading them takes longest
            return start_s + self.tables["unary"].at((heads * m * (d + v) / 2,))
        work = kernel.work(heads, n, m, d + v, self.processors or 0)
        return start_s + work / self._best_rate
