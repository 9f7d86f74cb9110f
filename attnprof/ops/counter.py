"""Record the stages of a text in order, with their cost and the memory that they take and free.

Memory that two tensors hold under conditions a and b is alive where 1 - (1 - a)*(1 - b) is 1. Such
a flag to any power is itself, so a sum of products has few terms (:func:`as_flag`).
"""

import dis
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from types import CodeType

from attnprof.costs import Cost, CostTable, Number, Stage, at_least_one, is_symbolic
from attnprof.ops.layout import Shape, is_literally


def as_flag(value: Number) -> Number:
    """Return a product or sum of flags as a sum of products without powers."""
    return _as_flag(value) if is_symbolic(value) else value


@lru_cache(maxsize=4096)
def _as_flag(value: Number) -> Number:
    import sympy

    return sympy.Add(*(factor * sympy.Mul(*flags) for flags, factor in _flags(value).items()))


@lru_cache(maxsize=4096)
def _flags(value: Number) -> dict[frozenset[Number], Number]:
    """Return the products of flags in a sum, and their factors.

    Sympy would expand (1 - a)*(1 - a*b) to four terms, and further products to hundreds before
    powers of flags meet: 1 - a*b - a + a**2*b is 1 - a here, as soon as both are multiplied.
    """
    if value.is_Number:
        return {frozenset(): value}
    is_power = value.is_Pow and value.exp.is_Integer and value.exp > 0
    if not (value.is_Add or value.is_Mul or is_power):
        plain = value.expand()
        return _flags(plain) if plain.is_Add or plain.is_Mul else {frozenset((plain,)): 1}
    # a power of a sum is multiplied out: the sum need not be a flag itself
    parts = map(_flags, [value.base] * int(value.exp) if is_power else value.args)
    total: dict[frozenset[Number], Number] = next(parts)
    for part in parts:
        pairs = (
            [*total.items(), *part.items()] if value.is_Add
            else [(a | b, x * y) for a, x in total.items() for b, y in part.items()]
        )  # fmt: skip
        total = {}
        for flags, factor in pairs:
            total[flags] = total.get(flags, 0) + factor
        total = {flags: factor for flags, factor in total.items() if factor}
    return total


_HERE = str(Path(__file__).parent)


class Storage:
    """Memory that tensors share, which dies with the last of them; ``external`` is the caller's.

    A tensor that shares it only under a condition (a reshape that may have copied) holds it with
    that condition, 1 or 0, as its weight.
    """

    __slots__ = ("external", "holders", "size")

    def __init__(self, size: Number, *, external: bool = False) -> None:
        self.size = size
        self.external = external
        self.holders: list[Number] = []

    @property
    def alive(self) -> Number:
        """1 while anything holds it, else 0."""
        none: Number = 1
        for weight in self.holders:
            if is_literally(weight, 1):
                return 1
            none = none * (1 - weight)
        return 1 - none


@dataclass(frozen=True, slots=True)
class _Turn:
    """One turn of a loop, run for ``times`` equal ones; ``present`` is 0 if there are none."""

    times: Number
    present: Number
    name: str
    place: tuple[int, str]


@dataclass(slots=True)
class Counter:
    """The stages of a run so far. ``item_size``: bytes of an element; ``grad``: autograd records.

    ``part`` is the pass that stages belong to, ``forward`` or ``backward``.
    """

    item_size: int
    grad: bool = False
    part: str = "forward"
    stages: list[Stage] = field(default_factory=list)
    nodes: int = 0
    operations: int = 0
    _turns: list[_Turn] = field(default_factory=list)

    def record(
        self, name: str, shape: Shape, cost: Cost, allocates: Number = 0, workspace: Number = 0
    ) -> None:
        """Append one operation with the shape of its result."""
        if self._turns:
            present = self.present
            allocates, workspace = allocates * present, workspace * present
            name = ", ".join([name, *(turn.name for turn in self._turns if turn.name)])
        for turn in self._turns:
            cost = cost * turn.times
        place = (*(turn.place for turn in self._turns), self.operations)
        self.stages.append(Stage(name, shape, cost, allocates, 0, workspace, self.part, place))

    @property
    def present(self) -> Number:
        """1, or 0 inside of something that is repeated no time."""
        present: Number = 1
        for turn in self._turns:
            present = present * turn.present
        return present

    def bytes_of(self, size: int) -> int:
        """Return a number's size in the counter's unit: its bytes, or 1 if it counts elements."""
        return size if self.item_size > 1 else 1

    def release(self, storage: Storage, weight: Number) -> None:
        """Remove one holder; memory without holders is free after the latest stage."""
        counts = self.stages and not storage.external
        before = storage.alive if counts else 0
        holders = storage.holders
        del holders[next(place for place, holder in enumerate(holders) if holder is weight)]
        if not counts:
            return
        died = as_flag(before - storage.alive)
        if not is_literally(died, 0):
            s = self.stages[-1]  # made anew by its class, which is faster than dataclasses.replace
            frees = s.frees + storage.size * died
            self.stages[-1] = Stage(
                s.name, s.shape, s.cost, s.allocates, frees, s.workspace, s.part, s.place
            )

    def table(self, parameters: Number, only: str | None = None) -> CostTable:
        """Return the stages; ``only`` keeps one part, with the bytes that live before it."""
        if only is None:
            return CostTable(tuple(self.stages), parameters)
        first = next((i for i, s in enumerate(self.stages) if s.part == only), len(self.stages))
        before = sum((s.allocates - s.frees for s in self.stages[:first]), 0)
        return CostTable(tuple(self.stages[first:]), parameters, live_before=before)

    @contextmanager
    def repeat(
        self, times: Number, name: str = "", *, present: Number = None, instead: bool = False
    ) -> Iterator[None]:
        """Count the operations inside ``times`` times; their memory must be free at the end.

        That memory counts at the peak if ``present`` is 1, by default if ``times`` is at least 1.
        Within another ``repeat`` both factors multiply, with ``instead`` this one replaces the
        other's. ``name`` is part of the stages' names, and their places are counted from here.
        """
        before, outer = self.operations, self._turns
        present = at_least_one(times) if present is None else present
        turn = _Turn(times, present, name, (before, name))
        self._turns = [*(outer[:-1] if instead else outer), turn]
        self.operations = 0
        try:
            yield
        finally:
            self._turns = outer
            self.operations = before


def variable(operation: str) -> str:
    """Return the name that a mechanism's code gives the result of the operation that runs now.

    That is the variable it is assigned to, or else the function that returns it or runs it as a
    statement, or else the operation. It becomes the name of the stage.
    """
    frame = sys._getframe(1)  # noqa: SLF001 - the only way to the caller's frame
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return _stored(frame.f_code, frame.f_lasti) or operation


@cache
def _stored(code: CodeType, offset: int) -> str:
    """Return the name that the next instruction stores to, with spaces for underscores."""
    following = (item for item in dis.get_instructions(code) if item.offset > offset)
    stored = next((item for item in following if item.opname not in _SILENT), None)
    if stored is None or not stored.opname.startswith(("STORE_FAST", "RETURN_VALUE", "POP_TOP")):
        return ""
    name = stored.argval if stored.opname.startswith("STORE_FAST") else code.co_name
    name = name[0] if isinstance(name, tuple) else name  # two stores as one instruction
    return str(name).strip("_").replace("_", " ")


_SILENT = ("CACHE", "EXTENDED_ARG", "NOP", "RESUME")
