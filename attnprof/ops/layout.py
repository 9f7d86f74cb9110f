"""Where the entries of a tensor lie: strides, and which reshapes have to copy.

Sizes and strides are ints, numpy arrays or sympy expressions. Whether a reshape copies is a
number, 1 or 0: an array of those for arrays of sizes. For symbols it depends on which of them
are 1, so a layout then has several cases, and the number is an expression that becomes 1 or 0.
A reshape groups dimensions of one shape that together become dimensions of the other.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import combinations, pairwise
from typing import Any

from attnprof.costs import Number, factors_of, is_plain, is_symbolic, more_than_one, same_size

Shape = tuple[Number, ...]


class ViewError(ValueError):
    """A shape that cannot be viewed as another: of symbols, as far as can be told from them."""


def product(shape: Iterable[Number]) -> Number:
    """Return the number of entries of a shape."""
    count: Number = 1
    for size in shape:
        count = count * size
    return count


def _are_numbers(*sizes: Number) -> bool:
    """Return whether all are numbers, not torch's symbols: comparing these adds conditions."""
    return all(type(size) is int for size in sizes)


def viewed_strides(shape: Shape, strides: Shape, new: Shape) -> Shape | None:
    """Return strides of a view, for sizes that are numbers; None where torch refuses the view, too.

    Dimensions that follow one another in memory are a chunk; a new dimension lies in one chunk.
    """
    if not shape:
        return (1,) * len(new)
    strided: list[Number] = []  # innermost first
    sizes = list(new)
    step, entries = strides[-1], 1
    for place in reversed(range(len(shape))):
        entries *= shape[place]
        if place and (shape[place - 1] == 1 or strides[place - 1] == entries * step):
            continue
        covered = 1
        while sizes and (covered < entries or sizes[-1] == 1):
            strided.append(covered * step)
            covered *= sizes.pop()
        if covered != entries:
            return None
        step, entries = strides[place - 1] if place else 1, 1
    return tuple(reversed(strided))


#: A dimension, or the outer or inner part of one: its size, its place, by how much its stride
#: is that of the dimension.
_Piece = tuple[Number, int, Number]


def groups(old: Shape, new: Shape) -> list[tuple[list[_Piece], list[int]]]:
    """Return pairs of dimensions of both shapes with equal products, as few as possible a pair."""
    pairs: list[tuple[list[_Piece], list[int]]] = []
    rest: list[_Piece] = [(size, place, 1) for place, size in enumerate(old)]
    dims = list(range(len(new)))
    while rest or dims:
        left, right = rest[:1], dims[:1]
        rest, dims = rest[1:], dims[1:]
        a, b = product(size for size, _, _ in left), product(new[p] for p in right)
        while not same_size(a, b):
            inner = _inner(a, b, left)
            if inner is not None:
                size, place, step = left.pop()
                left.append((size / inner, place, step * inner))
                rest, a = [(inner, place, step), *rest], b
            elif rest and (_is_part(a, b) or not dims):
                left, rest, a = [*left, rest[0]], rest[1:], a * rest[0][0]
            elif dims:
                right, dims, b = [*right, dims[0]], dims[1:], b * new[dims[0]]
            else:
                raise ViewError(f"{old} cannot be viewed as {new}")
        pairs.append((left, right))
    return pairs


def _inner(a: Number, b: Number, left: list[_Piece]) -> Number | None:
    """Return the factor a / b of a product of sizes, if its last size can be split by it."""
    if not left or not is_symbolic(a, b):
        return None
    more = a / b
    size = left[-1][0] / more
    whole = more.as_numer_denom()[1] == 1 and size.as_numer_denom()[1] == 1
    return more if whole and size != 1 else None


def _is_part(a: Number, b: Number) -> bool:
    """Return whether a product of sizes lacks factors of another one."""
    if not is_symbolic(a, b):
        less = a < b if is_plain(a, b) else a <= b
        return bool(less.all() if hasattr(less, "all") else less)
    return bool((b / a).as_numer_denom()[1] == 1)


#: The sizes that a case has above one (True) or at one (False).
Case = tuple[tuple[Number, bool], ...]
#: A function from a size to a flag: whether the size is above one in the case at hand.
Ask = Callable[[Number], Number]
#: A function from a shape to itself without the sizes that are one in the case at hand.
Simple = Callable[[Shape], Shape]
#: Whether entries are copied (1 or 0), and the strides afterwards, in one case.
_Outcome = tuple[Number, Shape]
Decide = Callable[[Shape, Ask, Simple], _Outcome]
#: 1 where entries are copied, else 0, and the layout afterwards.
Copied = tuple[Number, "Layout"]


def is_literally(value: Number, number: int) -> bool:
    """Return whether a size is this number itself, no array or expression that may be it."""
    if isinstance(value, int) or getattr(value, "is_Integer", False):
        return bool(value == number)
    node = getattr(value, "node", None)  # a size of torch's
    return node is not None and node.maybe_as_int() == number


def contiguous(shape: Shape) -> Shape:
    """Return strides of a tensor laid out row by row."""
    strides: list[Number] = []
    step: Number = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))


def once(
    method: "Callable[[Layout, Shape, Any], Copied]",
) -> "Callable[[Layout, Shape, Any], Copied]":
    """Return the method with answers remembered for symbolic sizes, which take far longer."""
    kept = lru_cache(maxsize=4096)(method)
    return lambda self, shape, other: (kept if is_symbolic(*shape) else method)(self, shape, other)


@dataclass(frozen=True)
class Layout:
    """Strides of each dimension, by case; the cases exclude each other and leave none out."""

    cases: tuple[tuple[Case, Shape], ...]
    cut: Number = 0  #: 1 if the tensor is a part of longer rows, or does not lie in rows
    whole: "Layout | None" = None  #: the layout where a part is all, if ``cut`` may be 0 there

    @classmethod
    def rows(cls, shape: Shape) -> "Layout":
        """Return a layout row by row."""
        return cls((((), contiguous(shape)),))

    def permuted(self, order: Sequence[int]) -> "Layout":
        """Return the layout with the dimensions in another order."""
        return self.with_strides(lambda strides: tuple(strides[place] for place in order))

    def with_strides(self, change: Callable[[Shape], Shape]) -> "Layout":
        """Return the layout with other strides in each case."""
        cases = tuple((case, change(strides)) for case, strides in self.cases)
        return Layout(cases, self.cut, self.whole and self.whole.with_strides(change))

    def stretched(self, shape: Shape, new: Shape) -> "Layout":
        """Return the layout expanded: dimensions added in front, those of one entry repeated."""
        added = (0,) * (len(new) - len(shape))

        def lines(strides: Shape) -> Shape:
            kept = zip(shape, new[len(added) :], strides, strict=True)
            repeated = (s if is_literally(b, -1) or same_size(a, b) else 0 for a, b, s in kept)
            return (*added, *repeated)

        return self.with_strides(lines)

    @once
    def reshaped(self, shape: Shape, new: Shape) -> Copied:
        """Return 1 where taking another shape copies, else 0, and the layout of the result."""
        if len(self.cases) == 1 and _are_numbers(*shape, *new, *self.cases[0][1]):
            strides = viewed_strides(shape, self.cases[0][1], new)
            return (1, Layout.rows(new)) if strides is None else (0, Layout((((), strides),)))
        rows = map(same_size, self.cases[0][1], contiguous(shape))
        if len(self.cases) == 1 and not self.cases[0][0] and all(rows):
            return 0, Layout.rows(new)

        def outcome(strides: Shape, ask: Ask, simple: Simple) -> _Outcome:
            viewed: list[Number] = [1] * len(new)
            copies: list[Number] = []
            for left, right in groups(simple(shape), simple(new)):
                sizes = [size for size, _, _ in left]
                steps = [strides[place] * times for _, place, times in left]
                copies.append(_scattered(sizes, steps, ask))
                step: Number = 1  # that of the last dimension of more than one entry
                for size, stride in zip(sizes, steps, strict=True):
                    step = stride if len(sizes) == 1 else _where(ask(size), stride, step)
                for place in reversed(right):
                    viewed[place] = step
                    step = step * new[place]
            flag = _either(copies)
            fresh = contiguous(new)
            return flag, tuple(_where(flag, a, b) for a, b in zip(fresh, viewed, strict=True))

        flag, layout = self._by_case(outcome)
        if self.whole is not None:
            flag = flag * self.cut + (1 - self.cut) * self.whole.reshaped(shape, new)[0]
        return flag, layout

    def dense(self, shape: Shape) -> "Layout":
        """Return the order of these strides without gaps or repetition: how torch lays a result.

        A dimension that repeats one place (stretched) stays where it is among the others.
        """
        strides = [stride for _, strides in self.cases for stride in strides]
        if is_literally(self.cut, 0) and not any(is_literally(stride, 0) for stride in strides):
            return self
        return Layout(tuple((case, _packed(shape, strides)) for case, strides in self.cases))

    def folds(self, shape: Shape) -> bool:
        """Return whether all dimensions but the last follow one another, of one entry or more."""

        def follow(strides: Shape) -> bool:
            lines = [(n, step) for n, step in zip(shape[:-1], strides[:-1], strict=True)]
            if is_symbolic(*shape):  # a dimension that is literally one was laid by a view
                lines = [(n, step) for n, step in lines if not is_literally(n, 1)]
            return all(same_size(a, b * n) for (_, a), (n, b) in pairwise(lines))

        return all(follow(strides) for _, strides in self.cases)

    @once
    def in_rows(self, shape: Shape, group: Number) -> Copied:
        """Return 1 where a copy (if a group is above one) puts it in rows, and the layout then."""
        rows = contiguous(shape)
        first = self.cases[0][1]
        sizes = group, *shape, *first
        if len(self.cases) == 1 and _are_numbers(*sizes) and min(shape, default=1) > 0:
            lines = zip(shape, first, rows, strict=True)
            moved = group > 1 and any(n > 1 and a != b for n, a, b in lines)
            return int(moved), Layout((((), rows if moved else first),))

        def outcome(strides: Shape, ask: Ask, _: Simple) -> _Outcome:
            flag = ask(group)
            if not is_literally(flag, 0):
                lines = zip(shape, strides, rows, strict=True)
                flag = flag * _either([ask(size) * _differ(a, b, ask) for size, a, b in lines])
            return flag, tuple(_where(flag, a, b) for a, b in zip(rows, strides, strict=True))

        return self._by_case(outcome)

    def differs(self, shape: Shape) -> Number:
        """Return 1 where entries do not lie row by row, else 0."""
        return self.in_rows(shape, 2)[0]

    def _by_case(self, outcome: Decide) -> Copied:
        cases = [sub for case, strides in self.cases for sub in _split(case, strides, outcome)]
        layout = Layout(tuple((case, strides) for case, _, strides in cases))
        several = len(cases) > 1
        return _met([case for case, flag, _ in cases if flag]) if several else cases[0][1], layout


class _UnknownError(Exception):
    """An outcome depends on whether a symbolic size is one, and the case does not say."""

    def __init__(self, size: Number) -> None:
        super().__init__(size)
        self.size = size


def _split(case: Case, strides: Shape, outcome: Decide) -> list[tuple[Case, Number, Shape]]:
    """Return a case with its outcome; if it depends on whether a size is 1, both sub-cases."""
    ones = {size: 1 for size, many in case if not many}

    def simple(shape: Shape) -> Shape:
        return tuple(s.xreplace(ones) if ones and is_symbolic(s) else s for s in shape)

    try:
        flag, lines = outcome(strides, lambda size: _is_many(size, case), simple)
    except _UnknownError as error:
        size = error.size
        many = _split((*case, (size, True)), strides, outcome)
        one = _split((*case, (size, False)), strides, outcome)
        alike = len(many) == len(one) == 1 and many[0][1:] == one[0][1:]
        return [(case, *many[0][1:])] if alike else [*many, *one]
    return [(case, flag, lines)]


def _is_many(size: Number, case: Case) -> Number:
    """Return 1 where a size is above one: as a number, or by the case of its factors."""
    if not is_symbolic(size):
        return more_than_one(size)
    facts, factors = dict(case), factors_of(size)
    if any(facts.get(factor) for factor in factors):
        return 1
    unknown = next((factor for factor in factors if factor not in facts), None)
    if unknown is not None:
        raise _UnknownError(unknown)
    return more_than_one(int(size.xreplace(dict.fromkeys(factors, 1))))


def _met(cases: Iterable[Case]) -> Number:
    """Return 1 where one of the cases is met, else 0: a sum over products of sizes above one."""
    terms: dict[frozenset[Number], int] = {}
    for case in cases:
        ones = [size for size, many in case if not many]
        many = frozenset(size for size, many in case if many)
        for length in range(len(ones) + 1):
            for chosen in combinations(ones, length):  # a size is one: 1 - (it is above one)
                term = many.union(chosen)
                terms[term] = terms.get(term, 0) + (-1) ** length
    return sum(count * product(map(_above_one, term)) for term, count in terms.items() if count)


@cache
def _above_one(size: Number) -> Number:
    return more_than_one(size)


def _differ(a: Number, b: Number, ask: Ask) -> Number:
    """Return 1 where two strides differ, 0 where they are equal.

    N rows and the N - 16*floor(N/16) of a last block differ if there is a whole block, N and the
    16 of a whole block if N is not 16.
    """
    if same_size(a, b):
        return 0
    if is_plain(a, b) or is_literally(a, 0) or is_literally(b, 0):
        return 1
    if not is_symbolic(a, b):
        return 1 - (a == b)
    above, below = (a / b).as_numer_denom()
    if (more := _more_rows(above, below)) is not None:
        return ask(1 + more)
    return min(1, ask(above) + ask(below))


def _more_rows(a: Number, b: Number) -> Number | None:
    """Return a number that is 0 where two numbers of rows are equal; None if they are unrelated."""
    if (a.is_Integer and a != 1) or (b.is_Integer and b != 1):
        return abs(a - b)
    more = (a - b).expand().as_coeff_Mul()[1]  # whole blocks
    return more if more.is_Function and more.is_nonnegative and more.is_integer else None


def _either(flags: Sequence[Number]) -> Number:
    """Return 1 where any of the flags is 1, else 0."""
    return 1 - product(1 - flag for flag in flags)


def _where(flag: Number, yes: Number, no: Number) -> Number:
    if isinstance(flag, int):
        return yes if flag else no
    return flag * yes + (1 - flag) * no


def _scattered(sizes: Sequence[Number], strides: Sequence[Number], ask: Ask) -> Number:
    """Return 1 where dimensions of more than one entry do not follow one another in memory."""
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


def _packed(shape: Shape, strides: Shape) -> Shape:
    """Return strides in the same order without gaps; a repeated dimension keeps its neighbours."""
    order: list[int] = []  # innermost first
    for dim in reversed(range(len(shape))):
        at = len(order)
        for place in reversed(range(len(order))):
            inner, outer = strides[order[place]], strides[dim]
            if is_literally(inner, 0) or is_literally(outer, 0):
                continue
            if not _is_more(inner, outer):
                break
            at = place
        order.insert(at, dim)
    packed: dict[int, Number] = {}
    step: Number = 1
    for dim in order:
        packed[dim] = step
        step = step * shape[dim]
    return tuple(packed[dim] for dim in range(len(shape)))


def _is_more(a: Number, b: Number) -> bool:
    """Return whether a stride is larger: as numbers, or as a product with factors more."""
    if not is_symbolic(a, b):
        more = a > b
        return bool(more.all() if hasattr(more, "all") else more)
    return bool(a != b and (a / b).as_numer_denom()[1] == 1)
