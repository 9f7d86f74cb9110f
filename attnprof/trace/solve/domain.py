"""The domain of a symbolic run: the conditions (torch's guards) on sizes that it relied on.

A condition that leaves a size a single value pins that size: its formulas would hold there alone.
Formulas are verified at shapes inside the domain, of all magnitudes and where code likes to branch
(:func:`shapes_in`).
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain, cycle, product
from math import isqrt, log2
from typing import Any

import sympy

from attnprof.algebra.values import evaluate
from attnprof.trace.request.target import largest
from attnprof.trace.sizes import translated
from attnprof.trace.solve.conditions import (
    as_division,
    as_ranges,
    condition_text,
    division_in,
    fewest_of_remainders,
    is_whole,
    is_wider,
    octave,
    remainder,
    rounded,
    rounds_to_none,
)

#: Shapes that are drawn to find those inside a domain; sizes of a class that are all run.
_TRIES, _FEW_SIZES = 1500, 20
#: Shapes at which conditions are compared, to find equal ones.
_SHAPES = 400
#: What code rounds lengths up to.
_BLOCK = 64
#: Functions that draw a size, given a random generator, the largest size and the hint.
_KINDS: tuple[Callable[[random.Random, int, int], int], ...] = (
    lambda chance, _, __: chance.randint(2, 9),
    lambda chance, _, hint: chance.randint(max(2, hint // 2), hint + max(2, hint // 2)),
    lambda chance, most, _: 2 ** chance.randint(2, int(log2(most))) + chance.randint(-1, 1),
    lambda chance, most, _: int(2 ** chance.uniform(1, log2(most))),
    lambda chance, most, _: chance.randint(2, isqrt(most)) ** 2 + chance.randint(-1, 1),
)


def shapes_in(
    hints: Mapping[str, int], inside: Callable[[Mapping[str, int]], bool]
) -> Iterator[dict[str, int]]:
    """Yield shapes inside a domain, each once and none the hints; hints of 1 stay 1.

    Every size is in turn small, near its hint, a power of two, a square, any, or next to one of
    these; every third shape is in the hint's class modulo 64. The same shapes in every call.
    """
    chance = random.Random(0)  # noqa: S311 - no secret
    shapes = [dict(hints)]
    for attempt in range(_TRIES):
        shape = dict(hints)
        for place, (name, hint) in enumerate(hints.items()):
            if hint == 1:
                continue
            most = largest(name, hint)
            size = _KINDS[(attempt + 2 * place) % len(_KINDS)](chance, most, hint)
            if attempt % 3 == 2:
                size -= (size - hint) % _BLOCK
            shape[name] = size if 2 <= size <= most else hint
        if shape not in shapes and inside(shape):
            shapes.append(shape)
            yield shape


@lru_cache(maxsize=64)
def of_all_magnitudes(names: tuple[str, ...]) -> list[dict[str, int]]:
    """Return shapes of the named sizes, half of them multiples of a power of two."""
    chance, shapes = random.Random(0), []  # noqa: S311 - no secret
    for count in range(_SHAPES):
        most = 34 if count % 4 == 3 else 14
        sizes = [max(2, int(2 ** chance.uniform(1, most))) for _ in names]
        unit = 2 ** chance.randint(0, 8) if count % 2 else 1
        shapes.append({name: -(-x // unit) * unit for name, x in zip(names, sizes, strict=True)})
    return shapes


def telling_sizes(sizes: range, most: int) -> list[int]:
    """Return ``most`` sizes of a class, or all if they are few, in order; the same in every call.

    Both ends, powers of two, squares and sizes next to these, and at least a third of random ones:
    where code rounds a float of a size, it differs at sizes that have nothing in common.
    """
    if len(sizes) <= min(_FEW_SIZES, most):
        return [*sizes]
    chance = random.Random(len(sizes))  # noqa: S311 - no secret
    low, high = sizes[0], sizes[-1]
    powers = [2**k for k in range(1, high.bit_length()) if low <= 2**k]
    roots = range(isqrt(low) + 1, isqrt(high) + 1)
    squares = [chance.choice(roots) ** 2 for _ in range(2)] if roots else []
    neighbours = [size + step for size in (*powers[-3:], *squares) for step in (-1, 1)]
    chance.shuffle(neighbours)
    others = [int(2 ** chance.uniform(log2(low), log2(high))) for _ in range(most)]
    likely = (low, high, *powers[::-1], *neighbours[:3], sizes[1], *squares)
    wanted = (*likely[: most - most // 3], *others, *likely)
    indexes = (min(max(round((size - low) / sizes.step), 0), len(sizes) - 1) for size in wanted)
    return sorted([*dict.fromkeys(sizes[place] for place in indexes)][:most])


def small_sizes(
    hints: Mapping[str, int], least: Mapping[str, int], holds: Callable[[Mapping[str, int]], bool]
) -> dict[str, int]:
    """Return sizes of short runs, at the first width inside: code may make 1 of a smaller one."""
    shapes = ({**hints, "B": 2, "h": 2, "d": width, **least} for width in (8, 16, 32))
    return next(filter(holds, shapes), {**hints, "B": 2, "h": 2, "d": 8, **least})


#: Fewer shapes are too few to compare conditions; sizes that more are made with: 2, 4, 5, … 46340.
_FEW, _MAGNITUDES = 40, [int(2 ** (power / 2)) for power in range(2, 32)]
#: Torch's checks for overflow compare with numbers above this, which no size reaches.
_OVERFLOW = 2**60
#: In code that marks its loops, an equation that holds at more shapes than this share pins no size.
_USUAL = 0.6


class SizeConditions:
    """Conditions (``relations``) on sizes; ``rests`` has each remainder's block."""

    def __init__(self, relations: Iterable[Any], rests: Mapping[str, Any] | None = None) -> None:
        self.relations = list(relations)
        self._rests = rests or {}

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Return whether all conditions hold at a shape."""
        return all(bool(evaluate(condition, sizes)) for condition in self.relations)

    @cached_property
    def conditions(self) -> tuple[str, ...]:
        """The conditions in words, the shortest first, without any that the others imply."""
        wider = {x for x in self.essential for y in self.essential if is_wider(x, y)}
        narrow = as_ranges(x for x in self.essential if x not in wider)
        return tuple(map(condition_text, fewest_of_remainders(narrow)))

    def least_of(self, names: Iterable[str]) -> list[str]:
        """Return ``B, h >= 2`` for those named sizes that no condition has a larger bound of."""
        bounds = [text.rpartition(" ") for text in self.conditions]
        bounded = {bound for bound, _, number in bounds if number.isdigit()}
        free = [x for x in names if bounded.isdisjoint((f"{x} >", f"{x} >=", f"{x} ="))]
        return [f"{', '.join(free)} >= 2"] if free else []

    @cached_property
    def essential(self) -> list[Any]:
        """The conditions that exclude a shape which all shorter ones allow, in a large sample.

        Torch records one condition in many forms.
        """
        names = sorted({s.name for c in self.relations for s in c.free_symbols})
        shapes = [*self.sample(names), *self._shapes_at_borders(names)]
        kept = []
        for condition in sorted(self.relations, key=lambda c: (len(str(c)), str(c))):
            inside = [shape for shape in shapes if evaluate(condition, shape)]
            if len(inside) < len(shapes) or not shapes:
                kept.append(condition)
                shapes = inside
                if 0 < len(shapes) < _FEW:  # too few to test the next condition
                    shapes = [*shapes, *self._rescaled(shapes[:_FEW], kept)]
        return kept

    def _rescaled(self, shapes: Sequence[dict[str, int]], kept: Sequence[Any]) -> Iterator[Any]:
        """Yield shapes with one size of another magnitude at which the ``kept`` conditions hold."""
        for name in [] if self._rests else shapes[0]:
            for shape, size in product(shapes, [*_MAGNITUDES, *self._border_sizes(name)]):
                other = {**shape, name: size}
                if all(evaluate(condition, other) for condition in kept):
                    yield other

    def _shapes_at_borders(self, names: Sequence[str]) -> Iterator[dict[str, int]]:
        """Yield shapes with one size next to a number it is compared with, or a multiple of one.

        A sample of all magnitudes misses conditions that differ at few sizes.
        """
        for name in names:
            sizes = self._border_sizes(name)
            for shape, size in zip(cycle(self.sample(names)), sizes, strict=False):
                yield {**shape, name: size}

    def _border_sizes(self, name: str) -> list[int]:
        """Return sizes next to the numbers that a size is compared with, and to their multiples."""
        alone = [c for c in self.relations if {s.name for s in c.free_symbols} == {name}]
        numbers = {abs(int(x)) for c in alone for x in c.atoms(sympy.Integer)} - {0, 1}
        multiples = product(numbers, (1, *numbers), (-1, 0, 1))
        sizes = {x // unit * unit + turn * unit for x, unit, turn in multiples}
        return [max(2, size) for size in sorted(sizes)]

    def sample(self, names: Sequence[str]) -> Iterator[dict[str, int]]:
        """Yield shapes of the named sizes, of all magnitudes; the same in every call."""
        blocks = {name: block for name, block in self._rests.items() if name in names}
        others = {symbol.name for block in blocks.values() for symbol in block.free_symbols}
        for sizes in of_all_magnitudes(tuple(sorted({*names, *others}))):
            shape = dict(sizes)
            for name, block in blocks.items():
                shape[name] = 2 + shape[name] % max(evaluate(block, shape) - 2, 1)
            yield shape


class Domain(SizeConditions):
    """Guards of a symbolic run, as conditions on the user's symbols.

    Make it inside :func:`attnprof.trace.sizes.user_symbols`. ``relations`` are the conditions that
    do not hold for all sizes. ``pins`` are conditions that leave a size a single value: the formula
    would be wrong at other values. Rounded quotients of sizes in the run's classes may be fixed.
    """

    def __init__(self, environment: Any, rests: Mapping[str, Any] | None = None) -> None:
        super().__init__([], rests)
        self._written: dict[Any, Any] = {}
        self._floors: dict[Any, Any] = {}  # what ``written`` puts in place of a floor
        self.pins: list[Any] = [
            sympy.Eq(translated(old), translated(new), evaluate=False)
            for old, new in environment.replacements.items()
            if old.free_symbols - new.free_symbols
        ]
        self._classes = environment.learned_classes().named(translated)
        guards = [as_division(x) for guard in environment.guards for x in _conditions(guard.expr)]
        guards = [*self._classes.conditions, *map(self._classes.rounded, guards)]
        equations = [x for x in guards if isinstance(x, sympy.Eq)]
        #: Rounded quotients that are exact, since one size divides another: floor(N/64) → N/64.
        self._exact_quotients: dict[Any, Any] = {}
        self._zeros: dict[Any, Any] = {}
        for _ in range(2):  # a quotient may hide another: twice
            divisions = filter(None, map(division_in, equations))
            self._exact_quotients |= {floor: number / by for number, by, floor in divisions}
            equations = [*map(self._canonical, equations)]
            guards += filter(division_in, equations)
        #: Rounded quotients that are 0, and never negative: floor(N/64) → 0 where N < 64.
        zeros = [x for x in map(rounds_to_none, guards) if x is not None]
        self._zeros = {x: sympy.S.Zero for x in zeros if self._share(x.args[0] >= 0) == 1}
        for condition in chain.from_iterable(map(self._unrounded_conditions, guards)):
            is_equation = isinstance(condition, sympy.Eq)
            of_torch = any(number > _OVERFLOW for number in condition.atoms(sympy.Integer))
            if of_torch or condition is sympy.true or condition in self.relations:
                continue
            share = self._share(condition) if is_equation else 0
            if share == 1:
                continue  # it excludes nothing
            self.relations.append(condition)
            # a remainder, like that of odd sizes, leaves many values
            leaves_many = is_equation and condition.rhs.is_Integer and remainder(condition)
            is_usual = environment.loops_in_blocks and share > _USUAL
            if is_equation and not leaves_many and not is_usual:
                self.pins.append(condition)

    def _share(self, condition: Any) -> float:
        """Return the share of sampled shapes at which a condition holds."""
        return _share(condition, tuple(self._rests.items()))

    @property
    def pinned(self) -> tuple[str, ...]:
        """The conditions that leave a size one value, in words."""
        return tuple(dict.fromkeys(map(condition_text, self.pins)))

    def simplified(self, value: Any) -> Any:
        """Return a size without roundings of quotients that are exact where the conditions hold."""
        has_rules = self._exact_quotients or self._zeros or self._classes.ends
        if not has_rules or not hasattr(value, "xreplace"):
            return value
        value = self._classes.rounded(value).xreplace(self._zeros)
        simple = self._unrounded(self._unrounded(value))  # one may be inside another
        return simple if simple.is_Boolean or simple.is_Relational else simple.expand()

    def written(self, value: Any) -> Any:
        """Return a simplified size with ``ceiling(x)`` for ``-floor(-x)``.

        Rounded quotients are then never negative, as maxima assume.
        """
        if value not in self._written:
            simple = self.simplified(value)
            if getattr(simple, "has", lambda _: False)(sympy.floor):
                simple = self._without_floors(simple.expand()).expand()
            self._written[value] = simple
        return self._written[value]

    def _without_floors(self, value: Any) -> Any:
        """Return a value with ``-ceiling(x)`` for ``floor(-x)``, and integers without floor."""
        for part in value.atoms(sympy.floor):
            if part not in self._floors:
                inside = sympy.floor(self._without_floors(part.args[0]))
                is_floor = isinstance(inside, sympy.floor)
                self._floors[part] = self._rounded(inside.args[0]) if is_floor else inside
        return value.xreplace(self._floors)

    def _rounded(self, quotient: Any) -> Any:
        """Return the floor of a quotient; the quotient itself if it is an integer, as 2**n is."""
        powers = {
            power
            for power in quotient.atoms(sympy.Pow)
            if power.base.is_Integer and power.exp.is_integer and self._share(power.exp >= 0) == 1
        }
        integers = {size: sympy.Dummy(integer=True) for size in powers | quotient.free_symbols}
        return quotient if quotient.xreplace(integers).is_integer else rounded(quotient)

    def _unrounded(self, value: Any) -> Any:
        """Return a value with exact quotients in place of their roundings.

        An exact quotient plus less than one rounds to it: ``floor(d/2 + 1/2)`` is d/2 for even d.
        Multiples of exact quotients are exact, too.
        """
        quotients = {
            part: quotient if rest.is_Rational else part.args[0]
            for part in value.atoms(sympy.floor, sympy.ceiling)
            for sign in [1 if isinstance(part, sympy.floor) else -1]
            for quotient in self._exact_quotients.values()
            if ((rest := part.args[0] - quotient).is_Rational and 0 <= sign * rest < 1)
            or is_whole(part.args[0] / quotient)
        }
        return value.xreplace(quotients)

    def _unrounded_conditions(self, condition: Any) -> list[Any]:
        """Return the conditions that make up this one, without roundings of exact quotients."""
        canonical = self._canonical(condition)
        if not isinstance(canonical, sympy.Eq):  # sympy makes two of "a product is not 0"
            parts = list(sympy.And.make_args(canonical))
            return sorted(parts, key=str) if len(parts) > 1 else parts  # texts take their time
        strides = _stride_conditions(canonical.lhs - canonical.rhs, self.simplified)
        return (octave(canonical) or [canonical]) if strides is None else strides

    def _canonical(self, condition: Any) -> Any:
        """Return ``N - 64*floor(N/64) = 0`` for "64 divides N"; other conditions simplified.

        ``floor(N/64) = 0`` becomes ``N < 64``, "N mod 2 is 1" becomes "2 does not divide N".
        """
        parts = division_in(condition)
        if (zero := rounds_to_none(condition)) in self._zeros:
            number, by = zero.args[0].as_numer_denom()
            return number < by if by.is_Integer else zero.args[0] < 1
        if parts is None:
            is_one = isinstance(condition, sympy.Eq | sympy.Ne) and condition.rhs == 1
            odd = remainder(condition) if is_one else None
            if odd is None or odd[1] != 2:
                simple = self.simplified(condition)
                return simple if simple == condition else self._canonical(simple)
            number = odd[0]
            even = sympy.Eq if isinstance(condition, sympy.Ne) else sympy.Ne
            return even(number - 2 * sympy.floor(number / 2), 0, evaluate=False)
        number, divisor, _ = parts
        floor = sympy.floor(number / divisor)
        return condition.func(number - divisor * floor, 0, evaluate=False)


@lru_cache(maxsize=4096)
def _share(condition: Any, rests: tuple[tuple[str, Any], ...]) -> float:
    """Return the share of sampled shapes that meet a condition; cached, as a run asks it often."""
    names = sorted(symbol.name for symbol in condition.free_symbols)
    shapes = SizeConditions([], dict(rests)).sample(names)
    met = [bool(evaluate(condition, shape)) for shape in shapes]
    return sum(met) / len(met)


def _conditions(guard: Any) -> list[Any]:
    """Return a guard of torch as conditions on the user's symbols; none if it always holds."""
    if isinstance(guard, sympy.Eq):
        strides = _stride_conditions(sympy.sympify(translated(guard.lhs)) - translated(guard.rhs))
        if strides is not None:
            return strides
    condition = translated(guard)
    return [] if condition is sympy.true else [condition]  # symbols are positive


def _stride_conditions(
    difference: Any, simplified: Callable[[Any], Any] = sympy.sympify
) -> list[Any] | None:
    """Return an equation of strides as bounds of sizes; None for other equations.

    Strides are made of ``max(1, size)``: one that equals the size itself says ``size >= 1``.
    """
    bounded = [part for part in difference.atoms(sympy.Max) if 1 in part.args]
    if not bounded:
        return None
    sizes = {part: sympy.Max(*(arg for arg in part.args if arg != 1)) for part in bounded}
    without = difference.xreplace(sizes)
    if simplified(without).expand() != 0:
        return None
    return [sympy.Ge(size, 1) for size in sizes.values()]
