"""Formulas of the strategy "mixed", and the domain in which concrete runs confirm them.

Some sizes were symbols in the runs behind these formulas; the others were numbers, whose ranges
:meth:`Mixed.extend_ranges` extends run by run.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, product
from typing import Any

import sympy

from attnprof.algebra.expressions import symbol
from attnprof.algebra.maxima import covering
from attnprof.algebra.values import evaluate
from attnprof.trace.events import Trace, totals_by_phase
from attnprof.trace.request.target import Sizes
from attnprof.trace.solve.accounts import terms
from attnprof.trace.solve.domain import SizeConditions, shapes_in, small_sizes, telling_sizes
from attnprof.trace.solve.lattice import of_every_kind
from attnprof.trace.solve.plan import FIRST, SizePlan
from attnprof.trace.solve.smaller_sizes import extend_downwards
from attnprof.trace.solve.symbolic import Blocks
from attnprof.trace.solve.verification import (
    A_LONG_RUN,
    NoFormulaError,
    Runs,
    Solution,
    differences,
)

#: A range that ends at a branch within so many times its start is narrow: of lengths, of layers.
_NARROW, _NARROW_LAYERS = 64, 3
#: Samples of the sizes that are symbols, and of these where runs are long.
_OTHERS, _FEW_OTHERS = 4, 1
#: Blocks, beyond the fewest, at which a rest of 1 or 2 is tried; and where runs are long.
_BLOCKS, _FEW_BLOCKS = (0, 1, 3), (0, 3)
#: Operations of a run that verifies formulas, and of one that shows how far they hold.
SHORT, LONG = 400, 4_000
#: How many times as many turns of a loop as the runs behind formulas had are tried.
_TIMES = 2
#: Sizes at which a range is tried: of long runs, at least and at most; operations of all of them.
_CHECKS, _ALL_CHECKS = (3, 5, 60), 2_500
#: The same at most, once a size inside has differed.
_MORE_CHECKS = 400
#: A size at which large arrays that code makes outside of torch show.
_REAL = 2048
#: Most steps of a search for a border.
_STEPS = 12
#: How often ranges are halved until formulas hold at all corners; why peaks may hold at none.
_HALVES, _MOVING = 6, "which moment is the worst changes inside the range"
#: Most layers that are tried, and most operations of such a run.
_LAYERS, _DEEP = 64, 8_500


@dataclass
class Mixed(Solution):
    """Formulas by phase, and the ranges of the sizes that were numbers in the runs behind them.

    A number is from ``least`` (at first ``start``) to ``ends``, by ``strides`` (step and a number
    on it). A size in blocks of another has at least ``turns`` of these, and its end counts blocks.
    ``whole_only``: blocks have to be whole; ``left_out``: remainders that are other cases, 1 and 2.
    ``borders`` say where the code branches, ``branches`` from which number on. ``points`` are the
    numbers of the runs.
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
    whole_only: bool = False
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
        if blocks := self.sized_blocks:
            least = self.turns * blocks.at(sizes) + (not self.whole_only)  # else one block more
            if sizes[blocks.name] < least:
                return False
        rest = self._remainder(sizes)
        left_out = rest in self.left_out or (self.whole_only and rest)
        return not left_out and self.conditions.holds(sizes)

    @property
    def sized_blocks(self) -> Blocks | None:
        """The blocks if their length is another size."""
        return self.blocks if self.blocks and not self.blocks.block.is_Integer else None

    def unit(self, name: str, sizes: Sizes) -> int:
        """Return the unit of a size's end: the block, if its length is another size; else 1."""
        blocks = self.sized_blocks
        return blocks.at(sizes) if blocks and blocks.name == name else 1

    def end_at(self, name: str, size: int) -> None:
        """End a range at a size, or at the whole blocks in it: none larger was tried."""
        self.ends[name] = size // self.unit(name, self.near())

    def reach(self, sizes: Sizes) -> None:
        """Extend ranges to sizes at which a run confirms the formulas."""
        for name, end in self.ends.items():
            self.ends[name] = max(end, -(-sizes[name] // self.unit(name, sizes)))

    def _remainder(self, sizes: Sizes) -> int:
        return sizes[self.blocks.name] % self.blocks.at(sizes) if self.blocks else 0

    @property
    def domain(self) -> tuple[str, ...]:
        """The conditions and verified ranges in words."""
        free = (x for x in self.plan.target.symbols if x not in self.plan.blocks)
        texts = self.conditions.least_of(free)
        if self.blocks:
            name, block = self.blocks.name, self.blocks.block
            if self.whole_only:
                texts.append(f"{block} divides {name}")
            texts += [f"{name} mod {block} != {rest}" for rest in self.left_out]
            if self.sized_blocks and self.turns:
                texts.append(f"{name} {'>=' if self.whole_only else '>'} {self.turns * block}")
        texts += [
            f"{stride} divides {name}" + f" - {rest % stride}" * bool(rest % stride)
            for name, (stride, rest) in self.strides.items()
        ]
        units = {self.sized_blocks.name: self.sized_blocks.block} if self.sized_blocks else {}
        ends = {x: end * units.get(x, 1) for x, end in self.ends.items()}
        ranges = ", ".join(f"{x} from {least} to {ends[x]}" for x, least in self.least.items())
        return (*texts, *self.conditions.conditions, *self.borders, f"verified for {ranges}")

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
        """Yield shapes inside at which a run is short: the same ones in every call."""
        hints = {**self.plan.hints, **{x: max(2, least) for x, least in self.least.items()}}
        if blocks := self.sized_blocks:
            hints[blocks.name] = blocks.at(hints) * (self.turns + 2)
        return shapes_in(hints, self._quick)

    def _quick(self, sizes: Sizes) -> bool:
        return self.holds(sizes) and self.operations(sizes) <= self._short

    @cached_property
    def _short(self) -> float:
        """Operations of a short run: a layer has some hundred."""
        return max(SHORT, 4 * self.operations(self.near()))

    @cached_property
    def is_long(self) -> bool:
        """Whether the shortest runs are of many layers."""
        return self.operations(self.near()) > LONG

    # -- how far -------------------------------------------------------------------------
    def extend_ranges(self, runs: Runs) -> None:
        """Extend ranges to the smallest and the largest sizes that runs confirm."""
        if self.blocks and not self.whole_only:
            self._leave_out_rests(self.blocks, runs)
        self.start = dict(self.least)
        for name in self.plan.blocks:
            extend_downwards(self, name, runs)
            extend_upwards(self, name, runs)
        if self.plan.concrete:
            narrow_to_corners(self, runs)
        else:
            check_large_corner(self, runs)

    def _leave_out_rests(self, blocks: Blocks, runs: Runs) -> None:
        """Leave out remainders of 1 and 2 at which runs differ from the formulas."""
        block, name = blocks.at(self.near()), blocks.name
        for rest in (1, 2):
            more = _FEW_BLOCKS if self.is_long else _BLOCKS
            shapes = [self.near(**{name: block * (self.turns + k) + rest}) for k in more]
            if not all(self.fits(shape, runs) for shape in shapes):
                self.left_out.append(rest)
        self.least[name] += 2 in self.left_out

    def near(self, **sizes: int) -> dict[str, int]:
        """Return a small shape inside, with the given sizes."""
        small = small_sizes(self.plan.hints, self.least, self.conditions.holds)
        shape = {name: small[name] for name in self.plan.target.symbols} | sizes
        if (blocks := self.sized_blocks) and blocks.name not in sizes:
            shape[blocks.name] = blocks.at(shape) * (self.turns + 1)
        return shape

    @cached_property
    def others(self) -> list[dict[str, int]]:
        """Samples of the sizes that are symbols in the runs, of several magnitudes; {} is small."""
        most = _FEW_OTHERS if self.is_long else _OTHERS
        drawn = islice(shapes_in(self.near(), self._quick), most)
        return [{}, *({x: n for x, n in s.items() if x not in self.plan.blocks} for s in drawn)]

    def fits(self, shape: Sizes, runs: Runs) -> bool:
        """Return whether a run confirms the formulas; True if the remainder is left out."""
        if self._remainder(shape) in self.left_out:
            return True
        trace = runs.run_or_none(shape)
        if trace is None:
            return False
        counted = totals_by_phase(trace, runs.phases)
        wrong = differences(self.forms, counted, shape)
        if wrong and not self.blocks and {quantity for _, quantity in wrong} == {"peak_bytes"}:
            for phase, _ in wrong:
                forms, peak = self.forms[phase], counted[phase]["peak_bytes"]
                forms["peak_bytes"] = trimmed(forms["peak_bytes"], peak, shape, self.points)
            wrong = differences(self.forms, counted, shape)
        return not wrong


# -- how far up ------------------------------------------------------------------------
def extend_upwards(formulas: Mixed, name: str, runs: Runs) -> None:
    """Extend a size's range to the largest number that runs confirm; record a border before it."""
    stride, rest = formulas.strides.get(name, (1, 0))
    if formulas.blocks and name == formulas.blocks.name and formulas.whole_only:
        stride, rest = formulas.blocks.at(formulas.near()), 0
    first = low = (least := formulas.near()[name]) + (rest - least) % stride
    high, bad = _furthest(formulas, name, low, stride, runs), None
    while high > low and not formulas.fits(formulas.near(**{name: high}), runs):
        bad, high = high, low + (high - low) // 2 // stride * stride
    low = max(low, high)
    for _ in range(_STEPS):
        middle = low + ((bad or low) - low) // 2 // stride * stride
        if middle in (low, bad):
            break
        if formulas.fits(formulas.near(**{name: middle}), runs):
            low = middle
        else:
            bad = middle
    if low == first and bad:
        raise NoFormulaError(f"the formulas hold for no other {name} than {first}")
    if bad and runs.run_or_none(formulas.near(**{name: bad})):
        formulas.borders.append(f"the code branches between {name} = {low} and {bad}")
        formulas.branches[name] = bad
    formulas.end_at(name, low)
    _check_all_over(formulas, name, range(first, low + 1, stride), runs)


def check_large_corner(formulas: Mixed, runs: Runs) -> None:
    """Withhold formulas that a run contradicts in which all numbers are large."""
    for part in range(_STEPS if len(formulas.least) > 1 else 0):
        share = 1 - part / _STEPS
        sizes = {x: int(n * (formulas.ends[x] / n) ** share) for x, n in formulas.least.items()}
        for name, (stride, rest) in formulas.strides.items():
            sizes[name] -= (sizes[name] - rest) % stride
        if blocks := formulas.blocks:
            many = max(formulas.turns + 1, sizes[blocks.name])
            one = blocks.at(formulas.near(**{**sizes, blocks.name: many}))
            sizes[blocks.name] = one * (many if formulas.sized_blocks else -(-many // one))
        shape = formulas.near(**sizes)
        if formulas.holds(shape) and formulas.operations(shape) <= LONG:
            if not formulas.fits(shape, runs) and (trace := runs.run_or_none(shape)):
                formulas.check_against(trace, shape)
            return


def narrow_to_corners(formulas: Mixed, runs: Runs) -> None:
    """Halve ranges until formulas hold at all their corners; if need be without peaks.

    Borders between branches may move with other sizes. Raises :class:`NoFormulaError` if hardly any
    size is left.
    """
    ends = dict(formulas.ends)
    for peaks in (True, False):
        formulas.ends.update(ends)
        for phase, forms in formulas.forms.items() if not peaks else ():
            if forms.pop("peak_bytes", None) is not None:
                formulas.withheld.setdefault(phase, {})["peak_bytes"] = _MOVING
        for _ in range(_HALVES):
            sides = ({formulas.least[x], formulas.ends[x]} for x in formulas.least)
            corners = [dict(zip(formulas.least, x, strict=True)) for x in product(*sides)]
            if all(formulas.fits(x, runs) or runs.run_or_none(x) is None for x in corners):
                return
            for name, end in formulas.ends.items():
                least, step = formulas.least[name], formulas.strides.get(name, (1, 0))[0]
                formulas.ends[name] = least + (end - least) // 2 // step * step
    raise NoFormulaError("the polynomials hold nowhere but where they were fitted")


def _furthest(formulas: Mixed, name: str, low: int, stride: int, runs: Runs) -> int:
    """Return the largest size to try: of layers as many as models have, or as are asked for."""

    def is_long(size: int, most: float = LONG) -> bool:
        return formulas.operations(formulas.near(**{name: size})) > most

    end = high = formulas.ends[name] - (formulas.ends[name] - low) % stride
    real = formulas.near(**{name: _REAL})
    if high > _REAL > low and formulas.operations(real) <= SHORT and runs.makes_arrays(real):
        high = low + (_REAL - low) // stride * stride
    while high > low and is_long(high):
        high = low + (high - low) // 2 // stride * stride
    if high == end:
        return high
    fitted = max((point[name] for point in formulas.points), default=0)
    if formulas.blocks and formulas.blocks.name == name:  # in tokens
        fitted *= formulas.blocks.at(formulas.near())
    further = low + _TIMES * fitted // stride * stride
    if high < further <= end and not is_long(further, A_LONG_RUN // 2):
        high = further
    if name in FIRST:
        return high
    most = min(_DEEP * (1 + bool(runs.on_meta)), runs.left / 9)
    deep = (x for x in range(_LAYERS, high, -1) if (x - low) % stride == 0)
    high = next((x for x in deep if not is_long(x, most)), high)
    hint = int(formulas.plan.hints[name])
    fits = high < hint <= end and (hint - low) % stride == 0
    return hint if fits and not is_long(hint, A_LONG_RUN) else high


def _check_all_over(formulas: Mixed, name: str, sizes: range, runs: Runs) -> None:
    """Try sizes all over a range, where code likes to branch; end it before one that differs.

    What is left of the range is then tried at more sizes: where code rounds a float of a size, as
    in ``int(n * (64 / n))``, the sizes that differ lie anywhere.
    """
    longest = formulas.operations(formulas.near(**{name: sizes[-1]}))
    few, least, most = _CHECKS
    least = few if longest > LONG else least
    affordable = int(_ALL_CHECKS / max(longest, 1))
    many = max(least, min(most, affordable))
    probes = telling_sizes(sizes, many)
    if name not in FIRST and longest > SHORT:  # layers of every kind
        probes = of_every_kind(sizes, formulas.kinds.get(name, (0,)))
    border: int | None = None
    while (size := _first_that_differs(formulas, name, probes, runs)) is not None:
        last = max(x for x in sizes if x < size) if size > sizes[0] else 0
        if last <= sizes[0] + sizes.step:
            raise NoFormulaError(f"the formulas do not hold at {name} = {size}")
        border, sizes = size, sizes[: sizes.index(last) + 1]
        more = min(_MORE_CHECKS, affordable)
        probes = telling_sizes(sizes, more) if more > many else []
    if border is not None:
        formulas.borders.append(f"the code branches at {name} = {border}")
        formulas.branches[name] = border
        formulas.end_at(name, sizes[-1])


def _first_that_differs(
    formulas: Mixed, name: str, probes: Iterable[int], runs: Runs
) -> int | None:
    """Return the smallest of the sizes at which a run contradicts the formulas, or None."""
    usual = formulas.unit(name, formulas.near())
    for place, size in enumerate(sorted(probes)):
        shape = formulas.near(**formulas.others[place % len(formulas.others)])
        unit = formulas.unit(name, shape)  # a length keeps its number of blocks
        shape[name] = size // usual * unit + min(size % usual, unit - 1) if unit > 1 else size
        if formulas.holds(shape) and not formulas.fits(shape, runs):
            return size
    return None


def most(sides: Any) -> Any:
    """Return the maximum of expressions, not evaluated."""
    distinct = list(dict.fromkeys(sides))
    return distinct[0] if len(distinct) == 1 else sympy.Max(*distinct, evaluate=False)


def trimmed(peak: Any, counted_bytes: int, shape: Sizes, points: Sequence[Sizes]) -> Any:
    """Return a peak without sides above the bytes that a run at a shape held (``counted_bytes``).

    Return it unchanged if such a side is the maximum at one of the ``points`` that the peak was
    fitted to.
    """
    sides = peak.args if isinstance(peak, sympy.Max) else ()
    kept = [x for x in sides if evaluate(x, shape) <= counted_bytes]
    for point in points if kept else ():
        numbers = {symbol(name): sympy.Integer(size) for name, size in point.items()}
        covered = covering([terms(x.xreplace(numbers)) for x in kept])
        if not all(x in kept or covered(terms(x.xreplace(numbers))) for x in sides):
            return peak
    return most(kept) if kept else peak
