"""Costs as exact polynomials, to solve for crossovers: in one variable (``Poly``), or in two sizes.

A mechanism's text is run once on two :class:`PolynomialSize`, seq_len and head_dim. Its comparisons
(max, min, if) are decided at a sample point and noted in :class:`Branches`; the cost is one
polynomial wherever they are decided alike, and elsewhere the text is run again. sympy could do
this, but takes longer to import than the whole command. ``sympy.sympify`` reads the texts written
here. Entry points: :class:`Branches` and :func:`terms_of`.
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product, zip_longest
from typing import Any

#: Coefficients, lowest power first, no zero at the end; the zero polynomial is empty.
Poly = tuple[int, ...]
#: Primes up to here are taken out of a square root.
LARGEST_PRIME = 1000


def trimmed(values: list[int]) -> Poly:
    """Return the coefficients without zeros at the end."""
    while values and not values[-1]:
        values.pop()
    return tuple(values)


def plus(a: Poly, b: Poly) -> Poly:
    """Return a + b."""
    return trimmed([x + y for x, y in zip_longest(a, b, fillvalue=0)])


def times(a: Poly, b: Poly) -> Poly:
    """Return a * b."""
    values = [0] * (len(a) + len(b))
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            values[i + j] += x * y
    return trimmed(values)


def content(a: Poly) -> int:
    """Return the greatest common divisor of the coefficients, with the sign of the leading one."""
    return math.gcd(*a) * (-1 if a and a[-1] < 0 else 1)


def primitive(a: Poly) -> Poly:
    """Return the polynomial divided by its :func:`content`."""
    factor = content(a)
    return tuple(x // factor for x in a)


def divided(a: Poly, b: Poly) -> tuple[Poly, Poly]:
    """Return quotient and remainder, both times one positive integer that makes them whole."""
    rest = [Fraction(x) for x in a]
    quotient = [Fraction(0)] * max(1, len(a) - len(b) + 1)
    while len(rest) >= len(b):
        factor, shift = rest[-1] / b[-1], len(rest) - len(b)
        quotient[shift] = factor
        for i, y in enumerate(b):
            rest[shift + i] -= factor * y
        rest.pop()
    scale = math.lcm(*(x.denominator for x in (*quotient, *rest)))
    whole, left = ([int(x * scale) for x in part] for part in (quotient, rest))
    return trimmed(whole), trimmed(left)


def exact(a: Poly, b: Poly) -> Poly:
    """Return a / b for a primitive ``b`` that divides ``a``; Gauss's lemma makes it whole."""
    return divided(a, b)[0]


def common(a: Poly, b: Poly) -> Poly:
    """Return the greatest common divisor of two polynomials, without content."""
    while b:
        a, b = b, primitive(divided(a, b)[1])
    return primitive(a)


def derivative(a: Poly) -> Poly:
    """Return the derivative."""
    return tuple(i * x for i, x in enumerate(a))[1:]


def square_split(a: Poly) -> tuple[Poly, Poly]:
    """Return ``(s, r)`` with a = s²·r, every repeated factor moved into s (Yun's algorithm)."""
    outside, inside = _integer_split(content(a))
    root: Poly = (outside,)
    left: Poly = (inside,)
    rest = primitive(a)
    repeated = common(rest, derivative(rest))
    single, power = exact(rest, repeated), 1
    while len(single) > 1:
        shared = common(single, repeated)
        factor = exact(single, shared)
        for _ in range(power // 2):
            root = times(root, factor)
        if power % 2:
            left = times(left, factor)
        single, repeated, power = shared, exact(repeated, shared), power + 1
    return root, left


def _integer_split(number: int) -> tuple[int, int]:
    """Return ``(s, r)`` with number = s²·r, by trial division and one test for a perfect square."""
    outside, inside = 1, number
    for k in range(2, LARGEST_PRIME):
        while inside % (k * k) == 0:
            outside, inside = outside * k, inside // (k * k)
    whole = math.isqrt(abs(inside))
    if whole > 1 and whole * whole == abs(inside):
        return outside * whole, inside // (whole * whole)
    return outside, inside


def divisors(size: int) -> list[int]:
    """Return all divisors of a size, ascending: the numbers of heads that share a model width."""
    small = [h for h in range(1, math.isqrt(size) + 1) if size % h == 0]
    return sorted({*small, *(size // h for h in small)})


def terms_text(a: Poly, denominator: int = 1) -> list[str]:
    """Return signed terms in d, highest power first: ``["+d**2/4", "-3*d/2", "+1/2"]``."""
    texts = []
    for power in range(len(a) - 1, -1, -1):
        if not a[power]:
            continue
        value = Fraction(a[power], denominator)
        name = {0: "", 1: "d"}.get(power, f"d**{power}")
        top = abs(value.numerator)
        text = name if name and top == 1 else f"{top}*{name}" if name else str(top)
        below = f"/{value.denominator}" if value.denominator > 1 else ""
        texts.append(f"{'+' if value > 0 else '-'}{text}{below}")
    return texts


def joined(terms: list[str]) -> str:
    """Return signed terms as one sum: ``d**2/4 - 3*d/2 + 1/2``."""
    if not terms:
        return "0"
    first = terms[0].removeprefix("+")
    return first + "".join(f" {term[0]} {term[1:]}" for term in terms[1:])


def text(a: Poly) -> str:
    """Return a polynomial in d as sympy prints it: highest power first, but ``1 - d``."""
    terms = terms_text(a)
    if len(terms) == 2 and a[0] > 0 and terms[0].startswith("-"):
        terms.reverse()
    return joined(terms)


#: Exponents of (seq_len, head_dim) to their coefficient.
Polynomial = dict[tuple[int, int], Any]
#: The most residues (sizes modulo a divisor) that are tried to see if the divisor always divides.
MOST_RESIDUES = 4096


class NotPiecewisePolynomialError(Exception):
    """Raised if a cost is no polynomial on any range of sizes; it is then computed size by size."""


class Branches:
    """The point (seq_len, head_dim) at which comparisons are decided, and the decided polynomials.

    ``n > d`` is decided by the sign of n - d at the sample. The cost that follows is the same
    wherever all ``decided`` polynomials have the signs they have at the sample.
    """

    def __init__(self, sample: tuple[int, int]) -> None:
        self._results: dict[Any, list[tuple[Any, dict[Any, int]]]] = {}
        self.move(sample)

    def move(self, sample: tuple[int, int]) -> None:
        """Decide comparisons at another point from here on."""
        self.sample = sample
        self.decided: list[Polynomial] = []

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return ``make()``, remembered for samples at which its comparisons have the same signs.

        A :class:`NotPiecewisePolynomialError` that it raises is remembered, too.
        """
        before, kept = len(self.decided), self._results.setdefault(key, [])
        for result, signs in kept:
            if all(self.sign(dict(terms)) == sign for terms, sign in signs.items()):
                return _raised(result)
            del self.decided[before:]
        try:
            result = make()
        except NotPiecewisePolynomialError as error:
            result = error
        compared = {tuple(terms.items()): terms for terms in self.decided[before:]}
        kept.append((result, {items: self.sign(terms) for items, terms in compared.items()}))
        return _raised(result)

    def size(self, which: int) -> "PolynomialSize":
        """Return a variable as a size: 0 is seq_len, 1 is head_dim."""
        return PolynomialSize({(1, 0) if which == 0 else (0, 1): 1}, self)

    def sign(self, terms: Polynomial) -> int:
        """Return the sign (-1, 0, 1) at the sample; note the polynomial unless it is a constant."""
        value = value_of(terms, *self.sample)
        if any(map(any, terms)):
            self.decided.append(terms)
        return int(value > 0) - int(value < 0)


class PolynomialSize:
    """A polynomial used like an int; operations without a polynomial result raise an error."""

    __slots__ = ("branches", "terms")
    __hash__ = None  # type: ignore[assignment]  # equality is decided at a sample, see __eq__

    def __init__(self, terms: Polynomial, branches: Branches) -> None:
        self.terms = terms
        self.branches = branches

    def __add__(self, other: Any) -> "PolynomialSize":
        terms = dict(self.terms)
        others = other.terms if type(other) is PolynomialSize else _terms(other)
        for exponents, factor in others.items():
            whole = terms.get(exponents, 0) + factor
            if whole:
                terms[exponents] = whole
            else:
                terms.pop(exponents, None)
        return PolynomialSize(terms, self.branches)

    __radd__ = __add__

    def __neg__(self) -> "PolynomialSize":
        return PolynomialSize({e: -c for e, c in self.terms.items()}, self.branches)

    def __sub__(self, other: Any) -> "PolynomialSize":
        return self.__add__(-other)

    def __rsub__(self, other: Any) -> "PolynomialSize":
        return (-self).__add__(other)

    def __mul__(self, other: Any) -> "PolynomialSize":
        others = other.terms if type(other) is PolynomialSize else _terms(other)
        terms: Polynomial = {}
        if len(others) == 1:
            (((k, m), b),) = others.items()
            for (i, j), a in self.terms.items():
                terms[i + k, j + m] = a * b
            return PolynomialSize(terms, self.branches)
        for (i, j), a in self.terms.items():
            for (k, m), b in others.items():
                terms[i + k, j + m] = terms.get((i + k, j + m), 0) + a * b
        return PolynomialSize({e: factor for e, factor in terms.items() if factor}, self.branches)

    __rmul__ = __mul__

    def __pow__(self, power: Any) -> "PolynomialSize":
        if not isinstance(power, int) or power < 0:
            raise NotPiecewisePolynomialError(f"a power of {power}")
        return math.prod([self] * power, start=PolynomialSize({(0, 0): 1}, self.branches))

    def __truediv__(self, other: Any) -> "PolynomialSize":
        """Divide by a number or by one term (h, 2·h·d) that divides every term; sizes are not 0."""
        divisor = _terms(other)
        if len(divisor) != 1:
            raise NotPiecewisePolynomialError("a quotient by a sum of sizes")
        ((k, m), factor) = next(iter(divisor.items()))
        if any(i < k or j < m for i, j in self.terms):
            raise NotPiecewisePolynomialError("a quotient that is no polynomial")
        terms = {(i - k, j - m): _quotient(c, factor) for (i, j), c in self.terms.items()}
        return PolynomialSize(terms, self.branches)

    def __floordiv__(self, other: Any) -> "PolynomialSize":
        quotient = self.__truediv__(other)
        if quotient._fractions() != {0}:
            raise NotPiecewisePolynomialError(f"a floor of a quotient by {other}")
        return quotient

    def __mod__(self, other: Any) -> int:
        left, divisor = (self / other)._fractions(), _terms(other)
        if left == {0}:
            return 0
        if len(left) != 1 or set(divisor) != {(0, 0)}:
            raise NotPiecewisePolynomialError("a remainder that depends on the size")
        return int(left.pop() * divisor[0, 0])

    def _fractions(self) -> set[Any]:
        """Return the fractional parts of the values at all whole sizes: {0, 1/2} for d/2.

        They repeat with the least common multiple of the denominators, so one period is enough.
        """
        period = math.lcm(*(c.denominator for c in self.terms.values()))
        if period == 1:
            return {0}
        used = [max((e[axis] for e in self.terms), default=0) > 0 for axis in (0, 1)]
        if period ** sum(used) > MOST_RESIDUES:
            raise NotPiecewisePolynomialError(f"a quotient by {period}")
        axes = [range(period) if on else range(1) for on in used]
        return {value_of(self.terms, n, d) % 1 for n, d in product(*axes)}

    def _sign(self, other: Any) -> int:
        return self.branches.sign((self - other).terms)

    def __lt__(self, other: Any) -> bool:
        return self._sign(other) < 0

    def __le__(self, other: Any) -> bool:
        return self._sign(other) <= 0

    def __gt__(self, other: Any) -> bool:
        return self._sign(other) > 0

    def __ge__(self, other: Any) -> bool:
        return self._sign(other) >= 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (int, Fraction, PolynomialSize)) and self._sign(other) == 0

    def __bool__(self) -> bool:
        return self._sign(0) != 0


def _raised(result: Any) -> Any:
    """Return a remembered result of :meth:`Branches.once`, or raise it if it is an error."""
    if isinstance(result, NotPiecewisePolynomialError):
        raise result
    return result


def _terms(value: Any) -> Polynomial:
    if isinstance(value, PolynomialSize):
        return value.terms
    if isinstance(value, (int, Fraction)):
        return {(0, 0): value} if value else {}
    raise NotPiecewisePolynomialError(f"{type(value).__name__} in a size")


def _quotient(value: Any, divisor: Any) -> Any:
    """Return the quotient, as an int if it is whole: fractions take ten times as long to add."""
    whole, rest = divmod(value, divisor)
    return Fraction(value) / divisor if rest else whole


def terms_of(run: Callable[[], Any]) -> Polynomial:
    """Return the polynomial that a run on sizes returns; NotPiecewisePolynomialError if it fails.

    ``range`` or ``math`` refuse a polynomial where they would take an int, so any exception only
    says that there is no polynomial. A mistake in the text raises again when it is run on integers.
    """
    try:
        return _terms(run())
    except NotPiecewisePolynomialError:
        raise
    except Exception as error:
        raise NotPiecewisePolynomialError(str(error)) from error


def value_of(terms: Polynomial, seq_len: int | Fraction, head_dim: int | Fraction) -> Any:
    """Return the polynomial's value, exactly."""
    value: Any = 0
    for (i, j), c in terms.items():
        value += c * seq_len**i * head_dim**j
    return value


def at_width(terms: Polynomial, head_dim: int) -> tuple[int, ...]:
    """Return the coefficients in seq_len at one width, times a factor that makes them whole."""
    values = [Fraction(0)] * (1 + max((i for i, _ in terms), default=0))
    for (i, j), factor in terms.items():
        values[i] += factor * head_dim**j
    return trimmed(list(in_integers(values)))


def in_integers(values: Sequence[Fraction]) -> tuple[int, ...]:
    """Return the values times the least positive number that makes all of them whole."""
    scale = math.lcm(*[value.denominator for value in values], 1)
    return tuple([int(value * scale) for value in values])
