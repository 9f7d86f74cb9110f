"""Costs: counts of an operation, stages with the memory they hold, tables of stages that add up.

Every size is a Python int, a numpy integer array or a sympy expression; the same
code serves all three. No heavy import happens here: sympy and numpy are only used
where the caller already brought a value of theirs.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache, partial, reduce
from math import isqrt
from operator import add, attrgetter
from typing import Any

Number = Any  # int | float | numpy.ndarray | sympy.Expr: one code for all of them
_PLAIN = frozenset({int, float, bool})


def _library(name: str, kind: str, *values: Number) -> Any:
    """Return the library of this name, if one of the values is of its type; None otherwise."""
    if _PLAIN.issuperset(map(type, values)):  # most are, and this is quick
        return None
    library = sys.modules.get(name)
    for value in values if library else ():
        if isinstance(value, getattr(library, kind)):
            return library
    return None


_sympy, _numpy = partial(_library, "sympy", "Basic"), partial(_library, "numpy", "ndarray")


def _sum(values: Sequence[Number]) -> Number:
    """Return the sum; of expressions at once: one by one, sympy sorts all terms each time."""
    sympy = _sympy(*values)
    return sympy.Add(*values) if sympy else sum(values)


def is_symbolic(*values: Number) -> bool:
    """Return whether any value is a sympy expression that is not a plain number."""
    return bool(_sympy(*values)) and any(getattr(x, "free_symbols", None) for x in values)


def is_plain(*values: Number) -> bool:
    """Return whether all values are plain Python numbers, so that they can be compared."""
    return _PLAIN.issuperset(map(type, values)) or not (_sympy(*values) or _numpy(*values))


def floor_div(a: Number, b: Number) -> Number:
    """Return ⌊a/b⌋."""
    if isinstance(b, int) and b == 1:
        return a
    sympy = _sympy(a, b)
    return sympy.floor(a / b) if sympy else a // b


def ceil_sqrt(n: Number) -> Number:
    """Return ⌈sqrt n⌉, exactly."""
    if is_plain(n):
        return isqrt(n - 1) + 1
    if sympy := _sympy(n):
        return sympy.ceiling(sympy.sqrt(n))
    return _numpy(n).vectorize(ceil_sqrt, otypes=["int64"])(n)


def ceil_div(a: Number, b: Number) -> Number:
    """Return ⌈a/b⌉."""
    if isinstance(b, int) and b == 1:
        return a
    sympy = _sympy(a, b)
    return sympy.ceiling(a / b) if sympy else -(-a // b)


def exact_div(a: Number, b: Number) -> Number:
    """Return a/b where b is known to divide a; a ValueError where it does not."""
    if _sympy(a, b):
        return a / b
    if not _numpy(a, b) and a % b:
        raise ValueError(f"{b} does not divide {a}")
    return a // b


@lru_cache(maxsize=4096)
def factors_of(size: Number) -> tuple[Number, ...]:
    """Return the factors of an expression that have symbols."""
    powers = size.as_powers_dict().items()
    return tuple(a**b if b.free_symbols else a for a, b in powers if (a**b).free_symbols)


@lru_cache(maxsize=4096, typed=True)
def _extreme(function: Callable[[Number, Number], Number], a: Number, b: Number) -> Number:
    """Return Max or Min of two expressions, remembered, since sympy takes long to compare."""
    return function(a, b)


def scaled(count: Number, times: Number) -> Number:
    """Return count · times; zero apart: sympy may take minutes to expand 0·expression."""
    return 0 if _sympy(times) and not _numpy(count) and count == 0 else count * times


def maximum(a: Number, b: Number) -> Number:
    """Return the larger of two sizes."""
    sympy, numpy = _sympy(a, b), _numpy(a, b)
    if sympy:
        return _extreme(sympy.Max, a, b)
    return numpy.maximum(a, b) if numpy else max(a, b)


def minimum(a: Number, b: Number) -> Number:
    """Return the smaller of two sizes."""
    sympy, numpy = _sympy(a, b), _numpy(a, b)
    if sympy:
        return _extreme(sympy.Min, a, b)
    return numpy.minimum(a, b) if numpy else min(a, b)


def same_size(a: Number, b: Number) -> bool:
    """Return whether two sizes are the same: everywhere, for arrays; as written, for symbols."""
    if a is b:
        return True
    numpy = _numpy(a, b)
    return bool(numpy.equal(a, b).all() if numpy else a == b)


def more_than_one(size: Number) -> Number:
    """Return 1 where a size is above one, 0 where it is one: min(1, size - 1)."""
    return minimum(1, size - 1)


def at_least_one(size: Number) -> Number:
    """Return 1 where a size is one or more, 0 where it is zero: min(1, size)."""
    return minimum(1, size)


def not_dearer(a: Number, b: Number) -> Number:
    """Return 1 where a <= b, 0 elsewhere: how a closed form says which branch is taken."""
    sympy, numpy = _sympy(a, b), _numpy(a, b)
    if sympy:
        return sympy.Piecewise((1, sympy.Le(a, b)), (0, True))
    return numpy.less_equal(a, b).astype("int64") if numpy else int(a <= b)


@dataclass(slots=True, unsafe_hash=True)
class Cost:
    """Additive counts; ``+`` joins two costs, ``*`` repeats one.

    A product (m×k)(k×n) counts m·k·n multiplications and as many additions, and its
    m·n results as ``dot_outputs``; a sum of n values counts n additions and one
    ``reduction_outputs``. ``bytes_moved`` is every operand read and result written once.

    >>> (3 * Cost(multiplications=8, additions=8, dot_outputs=2)).operations
    42
    """

    multiplications: Number = 0
    additions: Number = 0
    divisions: Number = 0
    exponentials: Number = 0
    other: Number = 0
    matmul_flops: Number = 0
    dot_outputs: Number = 0
    reduction_outputs: Number = 0
    bytes_moved: Number = 0

    def __add__(self, more: "Cost") -> "Cost":
        return Cost(*map(add, _counts(self), _counts(more)))

    def __mul__(self, times: Number) -> "Cost":
        if type(times) is int:
            return Cost(*[count * times for count in _counts(self)])
        return Cost(*[scaled(count, times) for count in _counts(self)])

    __rmul__ = __mul__

    @property
    def flops(self) -> Number:
        """Real operations: each multiply, add, divide, exponential and other counts 1."""
        return (
            self.multiplications + self.additions + self.divisions + self.exponentials + self.other
        )

    @property
    def operations(self) -> Number:
        """The Extractors document's convention (002): k-1 additions a dot, n-1 a sum."""
        return self.flops - self.dot_outputs - self.reduction_outputs

    @property
    def macs(self) -> Number:
        """Multiply-accumulates of the matrix products: half of ``matmul_flops``."""
        return self.matmul_flops / 2 if _sympy(self.matmul_flops) else self.matmul_flops // 2


COST_FIELDS = tuple(item.name for item in fields(Cost))
_counts: Callable[[Cost], tuple[Number, ...]] = attrgetter(*COST_FIELDS)


@dataclass(slots=True, unsafe_hash=True)
class Stage:
    """One tensor operation: its result's shape, its cost, and the memory that it holds.

    ``allocates`` come alive with the operation, ``frees`` die after it, ``workspace`` lives
    only during it; all three in bytes.

    >>> Stage("scores", (8, 1024, 1024), Cost(additions=5), allocates=2**25).cost.flops
    5
    """

    name: str
    shape: tuple[Number, ...]
    cost: Cost
    allocates: Number = 0
    frees: Number = 0
    workspace: Number = 0
    part: str = "forward"
    #: identifies the operation in its text, whatever the sizes
    place: tuple[object, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class CostTable:
    """The stages of one workload, in the order they run.

    ``live_before`` are the bytes already held when the first stage starts (tensors that autograd
    saved, for a backward pass); ``parameters`` and ``state_entries`` are counts.

    >>> cut = Stage("cut", (4,), Cost(additions=4), allocates=16, frees=16)
    >>> table = CostTable((cut, Stage("sum", (), Cost(additions=3), allocates=4)))
    >>> table.flops, table.live(), table.peak()
    (7, [16, 4], 16)
    """

    stages: tuple[Stage, ...]
    parameters: Number = 0
    state_entries: Number = 0
    live_before: Number = 0
    notes: tuple[str, ...] = field(default=())

    def mapped(self, change: Callable[[Number], Number]) -> "CostTable":
        """Return the table with ``change`` applied to every number: ``table.mapped(float)``."""
        stages = tuple(
            replace(
                stage,
                shape=tuple(map(change, stage.shape)),
                cost=Cost(*map(change, _counts(stage.cost))),
                allocates=change(stage.allocates),
                frees=change(stage.frees),
                workspace=change(stage.workspace),
            )
            for stage in self.stages
        )
        totals = {name: change(getattr(self, name)) for name in ("parameters", "live_before")}
        return replace(self, stages=stages, **totals)

    def __iter__(self) -> Iterator[Stage]:
        return iter(self.stages)

    @property
    def total(self) -> Cost:
        """The sum of all stages."""
        return Cost(*map(_sum, zip(*[_counts(stage.cost) for stage in self.stages], strict=True)))

    @property
    def flops(self) -> Number:
        """Real operations of all stages."""
        return self.total.flops

    @property
    def matmul_flops(self) -> Number:
        """Operations of the matrix products of all stages."""
        return sum(stage.cost.matmul_flops for stage in self.stages)

    @property
    def operations(self) -> Number:
        """Operations with k-1 additions a dot product and n-1 a sum (002)."""
        return self.total.operations

    def live(self) -> list[Number]:
        """Return bytes held while each stage runs: live before + allocates + workspace."""
        before, during = self.live_before, []
        for stage in self.stages:
            during.append(before + stage.allocates + stage.workspace)
            before = before + stage.allocates - stage.frees
        return during

    def peak(self) -> Number:
        """Return the largest of :meth:`live`, in bytes; a max of polynomials for symbols."""
        steps = [(stage.allocates, stage.workspace, stage.frees) for stage in self.stages]
        if _sympy(self.live_before, *(size for step in steps for size in step)):
            from attnprof.algebra.maxima import running_maximum

            return running_maximum(self.live_before, steps)
        return reduce(maximum, self.live() or [self.live_before])

    def to_frame(self) -> Any:
        """Return the stages as a pandas DataFrame: counts, and the bytes ``held`` while each runs.

        Raises :class:`attnprof.errors.CannotRunError` where pandas is not installed.
        """
        from attnprof.record.report import data_frame, stage_row

        return data_frame([*map(stage_row, self.stages, self.live())])

    def _repr_html_(self) -> str:
        from attnprof.record.report import stages_html

        return stages_html(self)
