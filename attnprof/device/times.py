"""How long an operation takes on a device, by what was measured there: on a CPU, or on a GPU."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, inf, prod
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
from attnprof.device.fused_times import fused_s
from attnprof.device.operations import FUSED, Demand, KernelCall
from attnprof.device.product_times import PLAIN, SINGLE_BYTES, Likeness, ProductTimes
from attnprof.device.tables import TimeTable
from attnprof.errors import RequestError
from attnprof.measure.clocks import LARGEST_KEPT
from attnprof.units import plural

#: Rows, columns and length of the sums of a product that is all call.
LEAST_PRODUCT = (8, 8, 8)
#: Times of a multiplication that arithmetic may take and still not tell in what memory takes.
AS_CHEAP = 1.3


@dataclass(frozen=True)
class Times:
    """Seconds of operations by the tables of a calibration.

    ``formats`` are those in other number formats, by which what a layer computes in them is priced:
    many sum up in float32 whatever their inputs are. ``spread`` is the standard deviation, in
    logarithms, of what a sum of single operations leaves out: caches that the operation before
    filled, and code in between; that of a ratio of two times is smaller, as a machine's weather
    changes both.
    """

    spread: ClassVar[float] = 0.15
    ratio_spread: ClassVar[float] = 0.10

    tables: Mapping[str, TimeTable]
    #: seconds a byte of memory costs when it is used for the first time
    fault_s: float = 0.0
    #: bytes of an entry of what the tables were measured on
    entry_bytes: int = 4
    formats: Mapping[str, "Times"] = field(default_factory=dict, compare=False)
    _known: dict[KernelCall, float] = field(default_factory=dict, compare=False)

    def in_format_of(self, o: KernelCall) -> "Times":
        """Return the times in an operation's number format; these where that is not calibrated."""
        return self.formats.get(o.dtype, self)

    @cached_property
    def view_s(self) -> float:
        """Seconds of an operation that only looks at a tensor in another way."""
        return self.tables["4 views"].at((1,)) / 4

    @cached_property
    def node_s(self) -> float:
        """Seconds of an autograd node, made and played, beyond the operations themselves."""
        played, plain = (self.tables[name].at((1,)) for name in ("played", "chain"))
        return max(0.0, (played - 2 * plain) / CHAIN)

    @cached_property
    def function_s(self) -> float:
        """Seconds of a call of a Python function between operations."""
        return self.tables["functions"].at((1,)) / CHAIN / FUNCTIONS_PER_LAYER

    @cached_property
    def _jumps(self) -> tuple[float, ...]:
        """Seconds of a jump between pieces of whole vectors, and more for each of ``RESTS``."""

        def each(length: int) -> float:
            more = self.tables["broadcast"].at((BROADCAST_RUNS, length))
            return (more - self.tables["fill"].at((BROADCAST_RUNS * length,))) / BROADCAST_RUNS

        jump = max(0.0, each(WHOLE_VECTORS))
        return jump, *(max(0.0, each(length) - jump) for length in REMAINDER_LENGTHS)

    def of(self, work: Demand) -> float:
        """Return the seconds of a call; RequestError where tables tell of none, or of no end."""
        between = self.between(work).values()
        total_s = sum(map(self.seconds, work.operations)) + sum(seconds for _, seconds in between)
        kernels = sum(o.form != "view" for o in work.operations)
        if kernels and not 0 < total_s < inf:
            raise RequestError(
                f"the calibration gives {total_s:g} s for {plural(kernels, 'operation')}, which is "
                "no time: type attnprof calibrate"
            )
        return total_s

    def between(self, work: Demand) -> dict[str, tuple[int, float]]:
        """Return what comes between the operations: how often, and all seconds of it.

        Calls among others cost more by a share of them, of which functions and nodes have the mean.
        """
        kinds = [(o.name, o.form, o.backward) for o in work.operations]
        shares = CallCosts(self.tables).shares(kinds, work.moved or [0] * len(kinds))
        dearer, calls = 1 + fmean(shares or [0.0]), map(self.call_s_of, work.operations)
        return {
            "autograd nodes": (work.nodes, work.nodes * self.node_s * dearer),
            "Python functions": (work.functions, work.functions * self.function_s * dearer),
            "operations after others": (len(kinds), sum(map(mul, shares, calls))),
            "weights from memory": self._far_weights(work),
        }

    def _far_weights(self, work: Demand) -> tuple[int, float]:
        """Return how many products have weights, and the seconds more that reading these takes.

        A call that is made again finds a weight as far away as all reach that it reads in between;
        tables of products have a factor as far away as it is large.
        """
        weights = [o.weights for o in work.operations if o.weights]
        table = self.tables.get("weights")
        if table is None:
            return 0, 0.0

        def byte_s(together: int) -> float:
            entries = max(WEIGHT_ENTRIES[0], together / self.entry_bytes)
            return table.at((entries,)) / entries / self.entry_bytes

        far_s = byte_s(work.given)
        return len(weights), sum(size * max(0.0, far_s - byte_s(size)) for size in weights)

    def call_s_of(self, o: KernelCall) -> float:
        """Return the seconds of the operation on next to nothing: what code, not memory, takes."""
        if (times := self.in_format_of(o)) is not self:
            return times.call_s_of(o)
        if o.form == "view":
            return self.view_s
        if o.form == "product":
            batch = min(o.sizes[0], 2)
            return self.product(batch, *LEAST_PRODUCT)
        table = self.tables.get(o.form)
        if table is not None and len(o.sizes) > 1 and "strided" not in o.form:
            return table.at([axis[0] for axis in table.axes])
        return self.call_s if o.form in FUSED else self._overhead_s(o)

    def seconds(self, operation: KernelCall) -> float:
        """Return the seconds of one operation, with the page faults of large new memory."""
        if operation not in self._known:
            new = operation.fresh if operation.fresh >= LARGEST_KEPT else 0
            priced = self.in_format_of(operation)._priced(operation)  # noqa: SLF001 - of this class
            self._known[operation] = priced + self.fault_s * new
        return self._known[operation]

    def bound(self, operation: KernelCall) -> str:
        """Return what takes an operation's time: ``compute``, ``memory`` or ``overhead``."""
        if operation.form == "view" or self.seconds(operation) < 2 * self.call_s:
            return "overhead"
        if operation.form == "product" or operation.form in FUSED:
            return "compute"
        if len(operation.sizes) > 1:  # over rows: twice as long as going through them once
            moved = 2 * self.tables["in place"].at((prod(operation.sizes),))
            return "compute" if self.seconds(operation) > moved else "memory"
        arithmetic = self._arithmetic_s(operation, operation.sizes[0] if operation.sizes else 1)
        return "compute" if arithmetic > self.seconds(operation) / 2 else "memory"

    def _of(self, operation: KernelCall) -> str:
        """Return the name of the table with an operation's arithmetic."""
        name = operation.name.rstrip("_")
        if operation.name != name and name == "masked_fill":
            name = "where"  # nothing is copied first
        return f"of {name}" if f"of {name}" in self.tables else "of mul"

    def _priced(self, o: KernelCall) -> float:
        if o.form == "view":
            return self.view_s
        if o.form == "product":
            batch, m, n, k = o.sizes
            seconds = self.product(batch, m, n, k, o.layout)
            if o.name in ("addmm", "baddbmm"):
                added = self.tables["in place"].at((batch * m * n,)) - self.call_s
                seconds += max(0.0, added)
            return seconds + sum(map(self._packing_s, o.packed))
        if o.form in FUSED:
            return self._fused(o)
        if o.form in self.tables and len(o.sizes) > 1:
            return self.tables[o.form].at(o.sizes)
        return self._entries(o)

    def _packing_s(self, copy: KernelCall) -> float:
        """Return the seconds of a copy of a product's factor, which oneDNN makes on a CPU."""
        return self.seconds(copy)

    @cached_property
    def call_s(self) -> float:
        """Seconds of an operation on next to nothing."""
        return self.tables["in place"].at((1,))

    @cached_property
    def _products(self) -> ProductTimes:
        return ProductTimes(self.tables["product"].seconds)

    def product(self, batch: int, m: int, n: int, k: int, layout: int = PLAIN) -> float:
        """Return the seconds of so many products (m, k) by (k, n)."""
        if batch == 1 and 1 in (m, n):
            return self.tables["vector product"].at((1, max(m, n), k))
        return self._products.at(batch, m, n, k, layout)

    def _entries(self, o: KernelCall) -> float:
        """Return the seconds of memory or arithmetic, whichever takes longer, and of the jumps."""
        strided, count = o.form.startswith("strided "), o.sizes[0] if o.sizes else 1
        if strided:
            count *= o.runs
        form = o.form.removeprefix("strided ")
        moved = 0.0
        if form in self.tables:
            moved = self.tables[form].at((count * o.item_bytes / self.entry_bytes,))
            moved -= min(moved, self.tables[form].at((1,)))
        seconds = self._overhead_s(o) + max(moved, self._arithmetic_s(o, count))
        if strided:
            return max(seconds, self._strided_s(o.sizes[0], max(o.sizes[1], 2), o.runs))
        return self._broken_s(seconds, o.runs, count / o.runs) if o.runs > 1 else seconds

    def _strided_s(self, length: int, stride: int, runs: int) -> float:
        """Return the seconds of runs of entries that lie apart, measured with ``stride`` runs."""
        return self.tables["strided"].at((length, stride)) * runs / stride

    def _broken_s(self, seconds: float, runs: int, length: float) -> float:
        """Return the seconds of what takes ``seconds`` in one piece, in pieces of so many entries.

        What a piece has beyond whole vectors is gone through one by one.
        """
        jump, *rests = self._jumps
        rest_s = float(np.interp(length % VECTOR_ENTRIES, (0, *REMAINDERS), (0.0, *rests)))
        return seconds + runs * (jump + rest_s)

    def _overhead_s(self, o: KernelCall) -> float:
        """Return the seconds of a call on next to nothing; a number is made a tensor first."""
        overhead_s = self._of(o)
        alone = self.tables[overhead_s].at((1,))
        made = overhead_s.removeprefix("of ") in POINTWISE_PREPARED
        return alone if made or o.operands < 2 else min(alone, self.tables["binary"].at((1,)))

    def _arithmetic_s(self, o: KernelCall, entries: int) -> float:
        """Return the seconds of arithmetic beyond the call; 0 if as fast as a multiplication.

        Such an operation only waits for memory, which has tables of its own.
        """
        whole, plain = (
            table.at((entries,)) - table.at((1,))
            for table in (self.tables[self._of(o)], self.tables["of mul"])
        )
        return whole if whole > AS_CHEAP * plain else 0.0

    def _fused(self, o: KernelCall) -> float:
        """Return the seconds of a fused kernel, which a calibration times whole."""
        return fused_s(self.tables, o)


#: How products are told apart: batches have kernels of their own, and so have rows and columns of
#: half formats that begin where matrix units want them to. Chosen on products that were left out of
#: the fit.
PRODUCTS = Likeness(rows=0.35, columns=0.3, batched=1.5, as_batch=0.2, left_over=0.5, noise=0.05)
HALF_PRODUCTS = replace(PRODUCTS, aligned=1.0, odd=1.0)
#: Launches that a GPU's queue holds: the host goes on until there are so many, then waits.
QUEUED = 1023


@dataclass(frozen=True)
class FusedKernel:
    """What a fused kernel of attention does, in multiplications at the best product's rate.

    A block of ``rows`` queries goes through all keys: a score takes ``score`` and for each of both
    widths' entries ``width``, at least ``alone`` where a processor has no other block. Starting it
    takes ``calls`` operations' time. As those of an H200 did, not measured by a calibration.
    """

    rows: int
    score: float
    width: float
    alone: float
    calls: int = 1

    def work(self, heads: int, n: int, m: int, widths: int, processors: int) -> float:
        """Return the multiplications that take as long as so many heads (0 processors: any)."""
        each = self.score + self.width * widths
        blocks = heads * ceil(n / self.rows)
        return self.rows * m * max(each * blocks, max(each, self.alone) * processors)


#: Fused kernels of formats of four bytes and of two, forward and backward (``reports/times/h200``).
FUSED_KERNELS = {
    (False, False): FusedKernel(64, 130, 0.65, alone=320),
    (False, True): FusedKernel(64, 330, 1.6, alone=700),
    (True, False): FusedKernel(128, 100, 0.85, alone=240, calls=3),
    (True, True): FusedKernel(128, 420, 1.6, alone=600, calls=7),
}


@dataclass(frozen=True)
class GpuTimes(Times):
    """Seconds of a GPU's own work on operations: launches are hidden behind it.

    What a launch costs the device itself is in every table. The host's calls, functions, autograd
    nodes and views count where it asks for more than the queue holds: the rest, which it asks for
    while the device works, takes as long as it does. ``processors`` are the multiprocessors.
    """

    #: wider than a CPU's: kernels of products differ by shape in ways that are not measured
    spread: ClassVar[float] = 0.3
    ratio_spread: ClassVar[float] = 0.25

    processors: int | None = None

    def between(self, work: Demand) -> dict[str, tuple[int, float]]:
        """Return the time of calls among others, and of waiting for a host with a full queue."""
        others = "operations after others"
        calls = {others: super().between(work)[others]}
        views = sum(o.form == "view" for o in work.operations)
        launches = len(work.operations) - views
        if launches <= QUEUED:
            return calls
        asked_s = launches * self.tables["chain"].at((1,)) / CHAIN
        asked_s += views * self.view_s + work.nodes * self.node_s
        asked_s += work.functions * self.function_s
        own_s = sum(map(self.seconds, work.operations)) + calls[others][1]
        waiting = max(0.0, asked_s * (1 - QUEUED / launches) - own_s)
        return {**calls, "waiting for the host": (launches - QUEUED, waiting)}

    def _priced(self, o: KernelCall) -> float:
        return 0.0 if o.form == "view" else super()._priced(o)

    def _packing_s(self, copy: KernelCall) -> float:
        """Return 0: a GPU's kernels take factors as they lie."""
        return 0.0

    def call_s_of(self, o: KernelCall) -> float:
        """Return the seconds of the operation on next to nothing; a view takes the device none."""
        return 0.0 if o.form == "view" else super().call_s_of(o)

    def _strided_s(self, length: int, stride: int, runs: int) -> float:
        """Return the seconds of runs side by side: as long as one with all their entries."""
        return self.tables["strided"].at((length * runs / stride, stride))

    def _broken_s(self, seconds: float, runs: int, length: float) -> float:
        """Return the seconds of pieces: what finding their places costs, however many there are."""
        pieces = self.tables["in pieces"]
        return max(seconds, pieces.at((runs * max(length, GPU_PIECE),)))

    @cached_property
    def _products(self) -> ProductTimes:
        likeness = PRODUCTS if self.entry_bytes >= SINGLE_BYTES else HALF_PRODUCTS
        return ProductTimes(self.tables["product"].seconds, likeness)

    @cached_property
    def _best_rate(self) -> float:
        """Multiplications a second of the best product."""
        products = self.tables["product"].seconds.items()
        return max(b * m * n * k / seconds for (b, m, n, k, _), seconds in products)

    def _fused(self, o: KernelCall) -> float:
        """Return the seconds of a fused kernel, whose blocks the processors share."""
        heads, n, m, d, v = o.sizes
        half = self.entry_bytes < SINGLE_BYTES
        kernel = FUSED_KERNELS[half, "backward" in o.name]
        start_s = kernel.calls * self.call_s
        if half and n == 1:  # the keys are shared out, and reading them is all
            return start_s + self.tables["unary"].at((heads * m * (d + v) / 2,))
        work = kernel.work(heads, n, m, d + v, self.processors or 0)
        return start_s + work / self._best_rate
