"""How long an operation takes on a device, from what was measured there."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, prod
from operator import mul
from statistics import fmean
from typing import ClassVar

import numpy as np

from attnprof.device.benchmarks import (
    CHAIN,
    MANY_RUNS,
    OF_A_LAYER,
    OF_MADE,
    OF_RESTS,
    RESTS,
    VECTOR,
    WEIGHTS,
    WHOLE,
)  # fmt: skip
from attnprof.device.call_costs import CallCosts
from attnprof.device.fused_times import fused_s
from attnprof.device.kernel_calls import FUSED, KernelCall
from attnprof.device.operations import Demand
from attnprof.device.product_times import PLAIN, ProductTimes
from attnprof.device.tables import TimeTable
from attnprof.errors import RequestError
from attnprof.measure.kept_memory import LARGEST_KEPT
from attnprof.units import plural

#: Rows, columns and length of the sums of a product that is all call.
LEAST_PRODUCT = (8, 8, 8)
#: Times of a multiplication that arithmetic may take and still not tell in what memory takes.
AS_CHEAP = 1.3


@dataclass(frozen=True)
class Times:
    """Seconds of operations by the tables of a calibration.

    ``spread`` is the standard deviation, in logarithms, of what a sum of single operations leaves
    out: caches that the operation before filled, and code in between; that of a ratio of two times
    is smaller, as a machine's weather changes both.
    """

    spread: ClassVar[float] = 0.15
    ratio_spread: ClassVar[float] = 0.10

    tables: Mapping[str, TimeTable]
    #: seconds a byte of memory costs when it is used for the first time
    fault_s: float = 0.0
    #: bytes of an entry of what the tables were measured on
    entry_bytes: int = 4
    _known: dict[KernelCall, float] = field(default_factory=dict, compare=False)

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
        return self.tables["functions"].at((1,)) / CHAIN / OF_A_LAYER

    def jumps_s(self, runs: int, length: float) -> float:
        """Return the seconds of jumps between so many pieces of memory, each of so many entries.

        What a piece has beyond whole vectors is gone through one by one.
        """
        jump, *rests = self._jumps
        return runs * (jump + float(np.interp(length % VECTOR, (0, *RESTS), (0.0, *rests))))

    @cached_property
    def _jumps(self) -> tuple[float, ...]:
        """Seconds of a jump between pieces of whole vectors, and more for each of ``RESTS``."""

        def each(length: int) -> float:
            more = self.tables["broadcast"].at((MANY_RUNS, length))
            return (more - self.tables["fill"].at((MANY_RUNS * length,))) / MANY_RUNS

        jump = max(0.0, each(WHOLE))
        return jump, *(max(0.0, each(length) - jump) for length in OF_RESTS)

    @cached_property
    def _costs(self) -> CallCosts:
        return CallCosts(self.tables)

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
        shares = self._costs.shares(kinds, work.moved or [0] * len(kinds))
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
            entries = max(WEIGHTS[0], together / self.entry_bytes)
            return table.at((entries,)) / entries / self.entry_bytes

        far_s = byte_s(work.given)
        return len(weights), sum(size * max(0.0, far_s - byte_s(size)) for size in weights)

    def call_s_of(self, o: KernelCall) -> float:
        """Return the seconds of the operation on next to nothing: what code, not memory, takes."""
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
            self._known[operation] = self._priced(operation) + self.fault_s * new
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
            return seconds
        if o.form in FUSED:
            return self._fused(o)
        if o.form in self.tables and len(o.sizes) > 1:
            return self.tables[o.form].at(o.sizes)
        return self._entries(o)

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
        """Return the seconds of what takes ``seconds`` in one piece, in so many pieces."""
        return seconds + self.jumps_s(runs, length)

    def _overhead_s(self, o: KernelCall) -> float:
        """Return the seconds of a call on next to nothing; a number is made a tensor first."""
        overhead_s = self._of(o)
        alone = self.tables[overhead_s].at((1,))
        made = overhead_s.removeprefix("of ") in OF_MADE
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
