"""Formulas of the strategy "mixed", and the domain in which concrete runs confirm them.

Some sizes were symbols in the runs behind these formulas; the others were numbers, whose ranges
:meth:`Mixed.settle` extends run by run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

from attnprof.trace.events import Trace, totals_by_phase
from attnprof.trace.request.target import Sizes
from attnprof.trace.solve.blocks import Blocks, trimmed
from attnprof.trace.solve.budget import PhaseCounts, Runs, differences
from attnprof.trace.solve.contradictions import Found
from attnprof.trace.solve.domain import SizeConditions
from attnprof.trace.solve.plan import FIRST, SizePlan
from attnprof.trace.solve.reach import (
    LONG,
    SHORT,
    check_large_corner,
    extend_upwards,
    holds_beyond,
    narrow_to_corners,
)
from attnprof.trace.solve.shapes import shapes_in, small_sizes

#: A range that ends at a branch within so many times its start is narrow: of lengths, of layers.
_NARROW, _NARROW_LAYERS = 64, 3
#: Shapes at which formulas and a symbolic run are compared; samples of the sizes that are symbols,
#: and of these where runs are long.
_DRAWN, _OTHERS, _FEW_OTHERS = 60, 4, 1
#: Blocks, beyond the fewest, at which a rest of 1 or 2 is tried; and where runs are long.
_BLOCKS, _FEW_BLOCKS = (0, 1, 3), (0, 3)


@dataclass
class Mixed(Found):
    """Formulas by phase, and the ranges of the sizes that were numbers in the runs behind them.

    A number is from ``least`` to ``ends``, by ``strides`` (step and a number on it). A size in
    blocks of another has at least ``turns`` of these, and its end counts blocks. ``divided``:
    blocks have to be whole; ``left_out``: remainders that are other cases, 1 and 2 (by which powers
    are products). ``borders`` say where the code branches, ``branches`` from which number on;
    ``kinds`` are those of layers. ``points`` are the numbers of the runs, ``start`` the least ones.
    """

    plan: SizePlan
    blocks: Blocks | None
    forms: dict[str, dict[str, Any]]
    trace: Trace
    conditions: SizeConditions
    least: dict[str, int]
    ends: dict[str, int]
    strides: dict[str, tuple[int, int]]
    turns: int
    divided: bool = False
    points: Sequence[Sizes] = ()
    left_out: list[int] = field(default_factory=list)
    borders: list[str] = field(default_factory=list)
    kinds: dict[str, tuple[int, ...]] = field(default_factory=dict)
    branches: dict[str, int] = field(default_factory=dict)
    withheld: dict[str, dict[str, str]] = field(default_factory=dict)
    start: dict[str, int] = field(default_factory=dict)

    def holds(self, sizes: Sizes) -> bool:
        """Return whether a shape lies inside the domain."""
        for name in self.plan.target.symbols:
            size = sizes[name]
            if name not in self.plan.blocks:
                if size == 1 and self.plan.hints[name] != 1:
                    return False
                continue
            stride, rest = self.strides.get(name, (1, 0))
            end = self.ends[name] * self.unit(name, sizes)
            if size > end or size < self.least[name] or size % stride != rest % stride:
                return False
        return self._block_fits(sizes) and self.conditions.holds(sizes)

    def _block_fits(self, sizes: Sizes) -> bool:
        if self.blocks is None:
            return True
        # whole blocks are alike from one more on
        least = self.turns * self.blocks.at(sizes) + (not self.divided)
        if not self.blocks.block.is_Integer and sizes[self.blocks.name] < least:
            return False
        rest = self._remainder(sizes)
        return not (self.divided and rest) and rest not in self.left_out

    def unit(self, name: str, sizes: Sizes) -> int:
        """Return the unit of a size's end: the block, if its length is another size; else 1."""
        counted = self.blocks if self.blocks and self.blocks.name == name else None
        return counted.at(sizes) if counted and not counted.block.is_Integer else 1

    def _remainder(self, sizes: Sizes) -> int:
        return sizes[self.blocks.name] % self.blocks.at(sizes) if self.blocks else 0

    @property
    def domain(self) -> tuple[str, ...]:
        """The conditions and verified ranges in words."""
        free = [x for x in self.plan.target.symbols if x not in self.plan.blocks]
        texts = [f"{', '.join(free)} >= 2"] if free else []
        if self.blocks:
            name, block = self.blocks.name, self.blocks.block
            if self.divided:
                texts.append(f"{block} divides {name}")
            texts += [f"{name} mod {block} != {rest}" for rest in self.left_out]
            if not block.is_Integer and self.turns:
                texts.append(f"{name} {'>=' if self.divided else '>'} {self.turns * block}")
        texts += [
            f"{stride} divides {name}" + f" - {rest % stride}" * bool(rest % stride)
            for name, (stride, rest) in self.strides.items()
        ]
        counted = {self.blocks.name: self.blocks.block} if self.blocks else {}
        counted = {x: block for x, block in counted.items() if not block.is_Integer}
        ends = {x: end * counted.get(x, 1) for x, end in self.ends.items()}
        ranges = [f"{x} from {least} to {ends[x]}" for x, least in self.least.items()]
        verified = [f"verified for {', '.join(ranges)}"] if ranges else []
        return (*texts, *self.conditions.conditions, *self.borders, *verified)

    @property
    def narrow(self) -> bool:
        """Whether a range ends so early at a branch that a larger size is probably meant."""
        return any(
            self.plan.blocks[name] == 1
            and self.ends[name] <= (_NARROW if name in FIRST else _NARROW_LAYERS) * least
            and (name not in FIRST or self.plan.hints[name] > self.ends[name])
            for name, least in self.least.items()
            if self.borders
        )

    def held_out(self) -> Iterator[dict[str, int]]:
        """Yield shapes inside at which a run is short; the same shapes in every call."""
        hints = {**self.plan.hints, **{x: max(2, least) for x, least in self.least.items()}}
        if self.blocks and not self.blocks.block.is_Integer:
            hints[self.blocks.name] = self.blocks.at(hints) * (self.turns + 2)
        return shapes_in(hints, self._quick)

    def _quick(self, sizes: Sizes) -> bool:
        return self.holds(sizes) and self.operations(sizes) <= self._short

    @cached_property
    def _short(self) -> float:
        """Operations of a short run: layers have some hundred each."""
        return max(SHORT, 4 * self.operations(self.near()))

    @cached_property
    def _is_long(self) -> bool:
        """Whether the shortest runs are of many layers."""
        return self.operations(self.near()) > LONG

    # -- how far -------------------------------------------------------------------------
    def settle(self, runs: Runs) -> None:
        """Extend ranges to the smallest and the largest sizes that runs confirm."""
        if self.blocks and not self.divided:
            self._leave_out_rests(self.blocks.name, runs)
        self.start = dict(self.least)
        for name in self.plan.blocks:
            self._extend_downwards(name, runs)
            extend_upwards(self, name, runs)
        if self.plan.concrete:
            narrow_to_corners(self, runs)
        else:
            check_large_corner(self, runs)

    def _leave_out_rests(self, name: str, runs: Runs) -> None:
        """Leave out remainders of 1 and 2 at which runs differ from the formulas."""
        block = self.blocks.at(self.near()) if self.blocks else 1
        for rest in (1, 2):
            more = _FEW_BLOCKS if self._is_long else _BLOCKS
            shapes = [self.near(**{name: block * (self.turns + k) + rest}) for k in more]
            if not all(self.fits(shape, runs) for shape in shapes):
                self.left_out.append(rest)
        self.least[name] += 2 in self.left_out

    def near(self, **sizes: int) -> dict[str, int]:
        """Return a small shape inside, with the given sizes."""
        small = small_sizes(self.plan.hints, self.least, self.conditions.holds)
        shape = {name: small[name] for name in self.plan.target.symbols} | sizes
        if self.blocks and not self.blocks.block.is_Integer and self.blocks.name not in sizes:
            shape[self.blocks.name] = self.blocks.at(shape) * (self.turns + 1)
        return shape

    @cached_property
    def others(self) -> list[dict[str, int]]:
        """Samples of the sizes that are symbols in the runs, of several magnitudes; {} is small."""
        most = _FEW_OTHERS if self._is_long else _OTHERS
        drawn = islice(shapes_in(self.near(), self._quick), most)
        return [{}, *({x: n for x, n in s.items() if x not in self.plan.blocks} for s in drawn)]

    def fits(self, shape: Sizes, runs: Runs) -> bool:
        """Return whether a run gives what the formulas give; True if the remainder is left out."""
        if self._remainder(shape) in self.left_out:
            return True
        trace = runs.tried(shape)
        if trace is None:
            return False
        counted = totals_by_phase(trace, runs.phases)
        wrong = differences(self.forms, counted, shape)
        if wrong and all(quantity == "peak_bytes" for _, quantity in wrong):
            self._trim(shape, counted)
            wrong = differences(self.forms, counted, shape)
        return not wrong

    def _trim(self, shape: Sizes, counted: PhaseCounts) -> None:
        for phase, forms in self.forms.items():
            if "peak_bytes" in forms and not self.blocks:
                seen = counted[phase]["peak_bytes"]
                forms["peak_bytes"] = trimmed(forms["peak_bytes"], seen, shape, self.points)

    def _extend_downwards(self, name: str, runs: Runs) -> None:
        """Lower the least number of a size as far as the formulas hold."""
        stride, rest = self.strides.get(name, (1, 0))
        blocks = self.blocks
        if blocks and name == blocks.name and (self.divided or not blocks.block.is_Integer):
            return
        least = self.least[name]
        near = {*range(least - 1, 1, -1)[:4], *(least // k for k in (2, 4, 16)), 3, 2}
        near = {x + (rest - x) % stride for x in near}
        below = sorted((x for x in near if 1 < x < least), reverse=True)
        if self._is_long:  # the code branches before some sizes: these are few, and not tried twice
            shortest = next((x for x in below[::-1] if self.fits(self.near(**{name: x}), runs)), 0)
            below = [x for x in (least - 1, shortest) if 0 < x < least]
        if below and self._holds_from(name, below[-1], runs):
            between = (self.near(**{name: size}) for size in below[:-1])
            if all(self.fits(x, runs) for x in between if self.conditions.holds(x)):
                self.least[name] = below[-1]
                return
        for size in below[:-1]:
            if not self._holds_from(name, size, runs):
                break
            self.least[name] = size

    def _holds_from(self, name: str, size: int, runs: Runs) -> bool:
        """Return whether the formulas hold at a smaller size, whatever the other sizes are."""
        before = {phase: dict(forms) for phase, forms in self.forms.items()}
        if self._holds_at(name, size, runs) and holds_beyond(self, name, size, runs):
            return True
        self.forms.update(before)  # of peaks a moment may be gone
        return False

    def _holds_at(self, name: str, size: int, runs: Runs) -> bool:
        """Return whether formulas give what runs give at a smaller size; symbolic runs if made."""
        shapes = [self.near(**x, **{name: size}) for x in self.others]
        whole = self.blocks if self.divided and self.blocks and name != self.blocks.name else None
        counts = {**self.least, name: size} | ({whole.name: self.turns} if whole else {})
        if known := self.plan.seen(counts, runs.phases, whole=bool(whole)):
            shapes += [{**x, **counts} for x in islice(shapes_in(shapes[0], known.holds), _DRAWN)]
            if whole:
                shapes = [{**s, whole.name: self.turns * whole.at(s)} for s in shapes]
            fits = not whole or self.fits(self.near(**{name: size}), runs)
            return fits and not any(differences(self.forms, known.numbers(s), s) for s in shapes)
        free = [x for x in self.plan.target.symbols if x not in self.plan.blocks]
        for wide in free:  # one other size is far larger
            shapes.append(self.near(**{**dict.fromkeys(free, 2), name: size, wide: 96}))
            if self.blocks and name != self.blocks.name:
                length = 9 * self.blocks.at(shapes[-1])
                shapes.append({**shapes[-1], self.blocks.name: length})
        inside = [x for x in shapes if self.conditions.holds(x)]
        return bool(inside) and all(self.fits(x, runs) for x in inside)
