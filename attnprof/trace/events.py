"""The record of one run: operations in order, with what each counts, moves and holds.

A size is an int in a run at a concrete shape and a sympy expression in a symbolic one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Self

from attnprof.algebra.maxima import running_maximum
from attnprof.units import grouped

Size = Any  # int | sympy.Expr

PHASES = ("forward", "backward", "train", "decode")
#: Counts of a run by kind.
KINDS = ("multiplications", "additions", "divisions", "exponentials", "other", "matmul_flops")
#: The quantities that formulas are derived for.
QUANTITIES = (*KINDS[:5], "flops", "matmul_flops", "bytes_moved", "peak_bytes", "parameters")
#: Quantities that lack what an uncounted operation would add.
COUNTS = frozenset(QUANTITIES[:7])
#: Quantities that uneven routing changes: some experts get more rows than others.
UNEVEN = ("bytes_moved", "peak_bytes")


@dataclass(frozen=True, slots=True)
class Call:
    """One operation: its ATen name, counts by kind, bytes, and the storages it brought to life.

    ``part`` is ``forward`` or ``backward``; ``line`` the place in the user's code and ``module``
    the innermost submodule; a backward operation has those of the forward one it differentiates.
    ``takes`` are bytes of storages allocated with it, ``gives`` of storages freed since the
    operation before; ``workspace`` is scratch memory that lives only while it runs. ``uncounted``
    names an operation that the counts leave out, ``touched`` are its bytes; ``scratch`` names one
    whose kernel takes memory that ``workspace`` does not contain. ``born`` are the storages behind
    ``takes``, (number, bytes) each, ``died`` the numbers of those behind ``gives``. ``dtype`` and
    ``shape`` are those of the (first) result. A call may stand for all turns of a loop, or, in an
    interpolated run, for all operations of one name at one line: ``times`` is how many these are,
    None if that is no polynomial.
    """

    op: str
    counts: Mapping[str, Size]
    bytes_moved: Size
    part: str
    line: str
    takes: Size = 0
    gives: Size = 0
    workspace: Size = 0
    uncounted: str = ""
    touched: Size = 0
    scratch: str = ""
    born: tuple[tuple[int, Size], ...] = ()
    died: tuple[int, ...] = ()
    dtype: str = ""
    shape: tuple[Size, ...] = ()
    times: Size = 1
    module: str = ""

    def mapped(self, change: Callable[[Size], Size]) -> Self:
        """Return the call with ``change`` applied to every size."""
        sizes = ("bytes_moved", "takes", "gives", "workspace", "touched", "times")
        return replace(
            self,
            counts={kind: change(count) for kind, count in self.counts.items()},
            born=tuple((number, change(size)) for number, size in self.born),
            shape=tuple(map(change, self.shape)),
            **{name: change(getattr(self, name)) for name in sizes},
        )

    def repeated(self, times: Size) -> Self:
        """Return a call for so many calls, one after the other, which hold no more than one."""
        return replace(
            self,
            counts={kind: count * times for kind, count in self.counts.items()},
            bytes_moved=self.bytes_moved * times,
            touched=self.touched * times,
            times=self.times * times,
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """A number, or a shape, that the code took from the values of a tensor.

    ``by_values``: the tensor was made of inputs or weights, whose values may differ in other runs;
    ``yes_or_no``: it was a truth value; ``shapes``: it was the size of a result, not a number.
    """

    op: str
    line: str
    by_values: bool
    yes_or_no: bool
    shapes: bool


@dataclass
class Trace:
    """The calls of one run, in order, and the entries of the module's parameters.

    ``notes`` are sentences for the reader; ``decisions`` those of a run on real tensors;
    ``modules`` the submodules by name, with the entries of the parameters that each holds itself;
    ``routes`` pairs of all rows and the experts that they are spread over evenly. ``has_loops``: a
    call may stand for several turns. ``before``: operations of an earlier call of the module;
    ``other_calls`` say how the costs of other calls of the module differ; ``is_steady``: later
    calls cost the same. ``ungraded``: names of parameters that take a gradient and got none.
    """

    calls: list[Call] = field(default_factory=list)
    parameters: Size = 0
    notes: list[str] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    modules: dict[str, Size] = field(default_factory=dict)
    routes: list[tuple[Size, Size]] = field(default_factory=list)
    has_loops: bool = False
    before: int = 0
    other_calls: list[str] = field(default_factory=list)
    is_steady: bool = True
    ungraded: frozenset[str] = frozenset()

    @property
    def operations(self) -> int:
        """How many operations ran, the module's call before included."""
        return self.before + len(self.calls)

    def part(self, phase: str) -> Iterator[Call]:
        """Return the calls that a phase counts: those of its part, or all of them."""
        return (call for call in self.calls if phase in {"train", "decode", call.part})


# -- summed up: every quantity of a phase, as an int or an expression ---------------------


def trains(phases: Iterable[str]) -> bool:
    """Return whether these phases need a run with a backward pass."""
    return not {"backward", "train"}.isdisjoint(phases)


def totals(trace: Trace, phase: str) -> dict[str, Size]:
    """Return every quantity of a phase: counts by kind, flops, bytes moved, peak, parameters."""
    calls = list(trace.part(phase))
    counts = {kind: added([c.counts[kind] for c in calls if kind in c.counts]) for kind in KINDS}
    return {
        **counts,
        "flops": added([count for kind, count in counts.items() if kind != "matmul_flops"]),
        "bytes_moved": added([call.bytes_moved for call in calls]),
        "peak_bytes": peak(trace, phase),
        "parameters": trace.parameters,
    }


def totals_by_phase(trace: Trace, phases: Iterable[str]) -> dict[str, dict[str, Size]]:
    """Return the totals of several phases that one run shows."""
    return {phase: totals(trace, phase) for phase in phases}


def added(values: list[Size]) -> Size:
    """Return the sum of sizes, expanded if it is symbolic."""
    if all(isinstance(value, int) for value in values):
        return sum(values)
    import sympy

    return sympy.expand(sympy.Add(*values))


def flops_of(calls: Iterable[Call]) -> Size:
    """Return the FLOPs of calls, as an int or an expression."""
    return added([call.counts.get(kind, 0) for call in calls for kind in KINDS[:5]])


def peak(trace: Trace, phase: str) -> Size:
    """Return the most bytes held at once; backward begins with all that forward left alive."""
    before: list[Size] = []
    steps: list[tuple[Size, Size, Size]] = []
    for call in trace.calls:
        if phase == "backward" and call.part == "forward":
            before += [call.takes, -call.gives]
            continue
        steps += [(-call.gives, 0, 0), (call.takes, call.workspace, 0)]
    start = added(before)
    if not all(isinstance(x, int) for x in chain([start], *steps)):
        return running_maximum(start, steps)
    now, most = start, 0 if steps else start  # the first step frees what died before it
    for takes, workspace, _ in steps:
        now += takes
        most = max(most, now + workspace)
    return most


def unnumbered(module: str) -> str:
    """Return ``layers.*.linear1`` for ``layers.3.linear1``."""
    return ".".join("*" if part.isdigit() else part for part in module.split("."))


def times_of(calls: Iterable[Call]) -> Size | None:
    """Return how many operations calls stand for; None if that is not known."""
    times = [call.times for call in calls]
    return None if None in times else added(times)


def uncounted(trace: Trace, phase: str) -> Mapping[str, tuple[Size, Size]]:
    """Return operations that counts leave out: how many (``several`` if not known), and bytes."""
    return {
        name: (times_of(calls) or "several", added([call.touched for call in calls]))
        for name, calls in grouped(trace.part(phase), lambda call: call.uncounted).items()
        if name
    }


def left_out(trace: Trace, phase: str) -> tuple[str, ...]:
    """Return each operation that the counts leave out, with how often it runs and its bytes."""
    gaps = uncounted(trace, phase).items()
    return tuple(f"{op} ×{times} ({size} bytes)" for op, (times, size) in gaps)


def assumed(trace: Trace) -> tuple[str, ...]:
    """Return conditions of the domain without sizes: one call of a module, even routing."""
    one_call = () if trace.is_steady else ("one call of a module, which changes between calls",)
    if not trace.routes:
        return one_call
    import sympy

    each = dict.fromkeys(str(sympy.sympify(rows) / experts) for rows, experts in trace.routes)
    start = "tokens are spread evenly over the experts: every expert gets"
    return (*one_call, *(f"{start} {rows} rows" for rows in each))


def at_least(trace: Trace, phase: str) -> tuple[str, ...]:
    """Return a sentence if kernels take memory of their own that the peak does not contain."""
    names = sorted({call.scratch for call in trace.part(phase) if call.scratch})
    sentence = (
        f"the peak is at least this: what {', '.join(names)} takes inside itself is not known"
    )
    return (sentence,) if names else ()


def bound(trace: Trace, phase: str, quantity: str) -> str:
    """Return ``at least`` if a quantity leaves something out, else ``exact``.

    ``even routing`` if the quantity changes where some experts get more rows than others.
    """
    lacks_counts = quantity in COUNTS and uncounted(trace, phase)
    if lacks_counts or (quantity == "peak_bytes" and at_least(trace, phase)):
        return "at least"
    return "even routing" if trace.routes and quantity in UNEVEN else "exact"


#: Operations that compare entries with each other: how often depends on the method.
ORDERS = (
    "sort", "argsort", "msort", "topk", "kthvalue", "median", "nanmedian", "mode", "searchsorted",
    "bucketize", "unique_consecutive", "unique_dim", "_unique", "_unique2",
)  # fmt: skip


def orders(trace: Trace, phase: str) -> tuple[str, ...]:
    """Return a sentence on operations that put entries in an order, if there are any."""
    names = dict.fromkeys(call.op for call in trace.part(phase) if call.op in ORDERS)
    listed = ", ".join(f"aten.{name}" for name in names)
    return (f"{listed}: comparisons, which are 0 FLOPs by convention",) if names else ()


def reservations(trace: Trace, phase: str) -> Iterator[str]:
    """Yield a sentence for each thing that the numbers of a phase leave out or rely on."""
    names = [name for name in uncounted(trace, phase) if not name.startswith("higher_order.")]
    if names:
        rules = ", ".join(f'@attnprof.rule("{name.replace(".", "::")}")' for name in names)
        yield f"to count what has no rule, write one in Python: {rules}"
    yield from at_least(trace, phase)
    if trace.routes:
        yield (
            "peak and bytes moved are those of even routing; where some experts get more rows the "
            "peak is higher: by some per cent as a rule, by far more where most rows go to one "
            "expert"
        )
