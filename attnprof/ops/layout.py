"""Where the entries of a tensor lie: strides, and which reshapes have to copy.

Sizes and strides are ints, numpy arrays or sympy expressions. Whether a reshape copies is a
number, 1 or 0: an array of those for arrays of sizes. For symbols it depends on which of them
are 1, so a layout then has several cases, and the number is an expression that becomes 1 or 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import combinations

from attnprof.costs import Number, exact_div, is_plain, is_symbolic, more_than_one, same_size

Shape = tuple[Number, ...]
#: Sizes known to be above one (True) or one (False).
Known = tuple[tuple[Number, bool], ...]
#: What of a case is looked for: from the question "is this size above one?" to a flag and strides.
Ask = Callable[[Number], Number]
#: A shape without the sizes that a case knows to be one.
Simple = Callable[[Shape], Shape]
Outcome = tuple[Number, Shape]
Decide = Callable[[Shape, Ask, Simple], Outcome]


def product(shape: Iterable[Number]) -> Number:
    """The number of entries of a shape."""
    count: Number = 1
    for size in shape:
        count = count * size
    return count


def is_literally(value: Number, number: int) -> bool:
    """Whether a size is this number itself, no array or expression that may be it."""
    return isinstance(value, int) and value == number


def contiguous(shape: Shape) -> Shape:
    """Strides of a tensor laid out row by row."""
    strides: list[Number] = []
    step: Number = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))


def full_shape(shape: Sequence[Number], count: Number) -> Shape:
    """The shape with its -1, if it has one, as what is left of so many entries."""
    if not any(is_literally(size, -1) for size in shape):
        return tuple(shape)
    rest = exact_div(count, product(size for size in shape if not is_literally(size, -1)))
    return tuple(rest if is_literally(size, -1) else size for size in shape)


@dataclass(frozen=True)
class Layout:
    """Strides of each dimension, by case; the cases exclude each other and leave none out."""

    cases: tuple[tuple[Known, Shape], ...]

    @classmethod
    def rows(cls, shape: Shape) -> Layout:
        """Row by row."""
        return cls((((), contiguous(shape)),))

    def permuted(self, order: Sequence[int]) -> Layout:
        """With the dimensions in another order."""
        return Layout(
            tuple((known, tuple(strides[p] for p in order)) for known, strides in self.cases)
        )

    def stretched(self, shape: Shape, new: Shape) -> Layout:
        """Under a shape with dimensions added in front and those of one entry repeated."""
        added = (0,) * (len(new) - len(shape))

        def lines(strides: Shape) -> Shape:
            kept = zip(shape, new[len(added) :], strides, strict=True)
            own = (s if is_literally(b, -1) or same_size(a, b) else 0 for a, b, s in kept)
            return (*added, *own)

        return Layout(tuple((known, lines(strides)) for known, strides in self.cases))

    def reshaped(self, shape: Shape, new: Shape) -> tuple[Number, Layout]:
        """1 where taking another shape copies, else 0, and the layout of the result."""

        def outcome(strides: Shape, ask: Ask, simple: Simple) -> Outcome:
            viewed: list[Number] = [1] * len(new)
            copies: list[Number] = []
            own = simple(shape)
            for left, right in _groups(own, simple(new)):
                sizes = [size for size, _, _ in left]
                steps = [strides[place] * times for _, place, times in left]
                copies.append(_scattered(sizes, steps, ask))
                step = _innermost(sizes, steps, ask)
                for place in reversed(right):
                    viewed[place] = step
                    step = step * new[place]
            flag = _either(copies)
            fresh = contiguous(new)
            return flag, tuple(_where(flag, a, b) for a, b in zip(fresh, viewed, strict=True))

        return self._by_case(outcome)

    def in_rows(self, shape: Shape, group: Number) -> tuple[Number, Layout]:
        """1 where a copy makes it lie row by row, made for a group above one; what it is then."""
        rows = contiguous(shape)

        def outcome(strides: Shape, ask: Ask, _: Simple) -> Outcome:
            flag = ask(group)
            if not is_literally(flag, 0):
                lines = zip(shape, strides, rows, strict=True)
                flag = flag * _either([ask(size) * _differ(a, b, ask) for size, a, b in lines])
            return flag, tuple(_where(flag, a, b) for a, b in zip(rows, strides, strict=True))

        return self._by_case(outcome)

    def differs(self, shape: Shape) -> Number:
        """1 where entries do not lie row by row, else 0."""
        return self.in_rows(shape, 2)[0]

    def _by_case(self, outcome: Decide) -> tuple[Number, Layout]:
        found = [case for known, strides in self.cases for case in _split(known, strides, outcome)]
        layout = Layout(tuple((known, strides) for known, _, strides in found))
        if len(found) == 1:
            return found[0][1], layout
        return _met([known for known, flag, _ in found if flag]), layout


class _UnknownError(Exception):
    """Whether a symbolic size is one decides, and the case does not say."""

    def __init__(self, size: Number) -> None:
        super().__init__(size)
        self.size = size


def _split(known: Known, strides: Shape, outcome: Decide) -> list[tuple[Known, Number, Shape]]:
    """A case with its outcome, or its sub-cases with theirs where a size must be told apart."""
    try:
        flag, lines = outcome(strides, lambda size: _is_many(size, known), partial(_simple, known))
    except _UnknownError as error:
        size = error.size
        many = _split((*known, (size, True)), strides, outcome)
        one = _split((*known, (size, False)), strides, outcome)
        alike = len(many) == len(one) == 1 and many[0][1:] == one[0][1:]
        return [(known, *many[0][1:])] if alike else [*many, *one]
    return [(known, flag, lines)]


def _simple(known: Known, shape: Shape) -> Shape:
    ones = {size: 1 for size, many in known if not many}
    if not ones:
        return shape
    return tuple(size.xreplace(ones) if is_symbolic(size) else size for size in shape)


def _is_many(size: Number, known: Known) -> Number:
    """1 where a size is above one: a number, or what the case knows of a product's factors."""
    if not is_symbolic(size):
        return more_than_one(size)
    told = dict(known)
    factors = [factor for factor in size.as_powers_dict() if factor.free_symbols]
    if any(told.get(factor) for factor in factors):
        return 1
    unknown = next((factor for factor in factors if factor not in told), None)
    if unknown is not None:
        raise _UnknownError(unknown)
    return more_than_one(int(size.xreplace(dict.fromkeys(factors, 1))))


def _met(cases: Iterable[Known]) -> Number:
    """1 where one of the cases is met, else 0: a sum over products of sizes above one."""
    terms: dict[frozenset[Number], int] = {}
    for known in cases:
        ones = [size for size, many in known if not many]
        many = frozenset(size for size, many in known if many)
        for chosen in _subsets(ones):  # a size is one: 1, less what it is where it is above
            term = many | chosen
            terms[term] = terms.get(term, 0) + (-1) ** len(chosen)
    return sum(count * product(map(_above_one, term)) for term, count in terms.items() if count)


def _subsets(sizes: Sequence[Number]) -> Iterator[frozenset[Number]]:
    for length in range(len(sizes) + 1):
        yield from map(frozenset, combinations(sizes, length))


def as_flag(value: Number) -> Number:
    """A product or sum of flags as one: 1 or 0 to any power is itself."""
    if not is_symbolic(value):
        return value
    powers = value.expand().as_coefficients_dict()
    terms = (
        count * product(base for base in term.as_powers_dict()) for term, count in powers.items()
    )
    return sum(terms, 0)


@cache
def _above_one(size: Number) -> Number:
    return more_than_one(size)


def _differ(a: Number, b: Number, ask: Ask) -> Number:
    """1 where two strides differ, 0 where they are equal."""
    if same_size(a, b):
        return 0
    if is_plain(a, b) or is_literally(a, 0) or is_literally(b, 0):
        return 1
    if not is_symbolic(a, b):
        return (a != b).astype("int64")
    above, below = (a / b).as_numer_denom()
    return min(1, ask(above) + ask(below))


def _either(flags: Sequence[Number]) -> Number:
    """1 where any of the flags is."""
    return 1 - product(1 - flag for flag in flags)


def _where(flag: Number, yes: Number, no: Number) -> Number:
    if isinstance(flag, int):
        return yes if flag else no
    return flag * yes + (1 - flag) * no


def _scattered(sizes: Sequence[Number], strides: Sequence[Number], ask: Ask) -> Number:
    """1 where dimensions do not follow one another in memory; those of one entry do not count."""
    flags: list[Number] = []
    for i in range(len(sizes) - 1):
        between: Number = ask(sizes[i])
        for j in range(i + 1, len(sizes)):
            if is_literally(between, 0):
                break
            many = ask(sizes[j])
            if not is_literally(many, 0):
                flags.append(between * many * _differ(strides[i], strides[j] * sizes[j], ask))
            between = between * (1 - many)
    return _either(flags)


def _innermost(sizes: Sequence[Number], strides: Sequence[Number], ask: Ask) -> Number:
    """The stride of the last dimension of more than one entry."""
    found: Number = 1
    for size, stride in zip(sizes, strides, strict=True):
        found = stride if len(sizes) == 1 else _where(ask(size), stride, found)
    return found


#: A dimension, or the outer or inner part of one: its size, its place, by how much its stride
#: is that of the dimension.
Piece = tuple[Number, int, Number]


def _groups(old: Shape, new: Shape) -> list[tuple[list[Piece], list[int]]]:
    """Which dimensions together become which others, in the smallest possible groups."""
    found: list[tuple[list[Piece], list[int]]] = []
    rest: list[Piece] = [(size, place, 1) for place, size in enumerate(old)]
    places = list(range(len(new)))
    while rest or places:
        left, right = rest[:1], places[:1]
        rest, places = rest[1:], places[1:]
        a, b = product(size for size, _, _ in left), product(new[p] for p in right)
        while not same_size(a, b):
            inner = _inner(a, b, left)
            if inner is not None:
                size, place, step = left.pop()
                left.append((size / inner, place, step * inner))
                rest, a = [(inner, place, step), *rest], b
            elif rest and (_is_part(a, b) or not places):
                left, rest, a = [*left, rest[0]], rest[1:], a * rest[0][0]
            elif places:
                right, places, b = [*right, places[0]], places[1:], b * new[places[0]]
            else:
                raise ValueError(f"{old} cannot be viewed as {new}")
        found.append((left, right))
    return found


def _inner(a: Number, b: Number, left: list[Piece]) -> Number | None:
    """What a product of symbols has too much of, if its last factor can be cut there."""
    if not left or not is_symbolic(a, b):
        return None
    more = a / b
    size = left[-1][0] / more
    whole = more.as_numer_denom()[1] == 1 and size.as_numer_denom()[1] == 1
    return more if whole and size != 1 else None


def _is_part(a: Number, b: Number) -> bool:
    """Whether a product of sizes lacks factors of another one."""
    if is_plain(a, b):
        return bool(a < b)
    if not is_symbolic(a, b):
        less = a <= b
        return bool(less.all() if hasattr(less, "all") else less)
    return bool((b / a).as_numer_denom()[1] == 1)
