"""What one run left behind: operations in order, with what each counts, moves and holds.

A size is an int in a run at a concrete shape and a sympy expression in a symbolic one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Size = Any  # int | sympy.Expr

#: Counts of a run by kind.
KINDS = ("multiplications", "additions", "divisions", "exponentials", "other", "matmul_flops")
#: Everything a formula is derived for.
QUANTITIES = (*KINDS[:5], "flops", "matmul_flops", "bytes_moved", "peak_bytes", "parameters")


@dataclass(frozen=True, slots=True)
class Call:
    """One operation: its ATen name, counts by kind, bytes, and the storages it brought to life.

    ``part`` is ``forward`` or ``backward``; ``line`` the place in the user's code, of a backward
    operation that of the forward one it differentiates. ``takes`` are bytes of storages that come
    to life with it, ``gives`` of those that died since the operation before; ``workspace`` lives
    only while it runs. ``uncounted`` names what the counts leave out; ``touched`` is its bytes.
    ``scratch`` names an operation whose kernel takes memory of its own that ``workspace`` does not
    know. ``born`` are the storages behind ``takes``, (number, bytes) each, and ``died`` the
    numbers of those behind ``gives``. ``dtype`` and ``shape`` are those of its (first) result.
    Of an interpolated run a call may stand for all operations of one name at one line: ``times``
    is how many these are, None where that is no polynomial.
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

    def mapped(self, change: Callable[[Size], Size]) -> Call:
        """The same with every size changed."""
        sizes = ("bytes_moved", "takes", "gives", "workspace", "touched")
        return replace(
            self,
            counts={kind: change(count) for kind, count in self.counts.items()},
            born=tuple((number, change(size)) for number, size in self.born),
            shape=tuple(map(change, self.shape)),
            **{name: change(getattr(self, name)) for name in sizes},
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """A number, or a shape, that the code took from the values of a tensor.

    ``by_values``: the tensor was made of inputs or weights, so that others would give another one;
    ``yes_or_no``: it was a truth value; ``shapes``: the size of a result, not a number.
    """

    op: str
    line: str
    by_values: bool
    yes_or_no: bool
    shapes: bool


@dataclass
class Trace:
    """The calls of one run, in order, and the entries of the module's parameters.

    ``notes`` say what else to know of it; ``decisions`` are those of a run on real tensors.
    """

    calls: list[Call] = field(default_factory=list)
    parameters: Size = 0
    notes: list[str] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)

    def mapped(self, change: Callable[[Size], Size]) -> Trace:
        """The same run with every size changed."""
        return replace(
            self,
            calls=[call.mapped(change) for call in self.calls],
            parameters=change(self.parameters),
        )

    def part(self, phase: str) -> Iterator[Call]:
        """The calls that a phase counts: those of its part, or all of them."""
        return (call for call in self.calls if phase in {"train", "decode", call.part})
