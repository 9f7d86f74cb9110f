"""Polynomials in the head width with integer coefficients: quotients, squares, text.

An algebra system takes longer to import; what is written is what ``sympy.sympify`` reads.
"""

import math
from fractions import Fraction
from itertools import zip_longest

#: Coefficients, lowest power first, no zero at the end; the zero polynomial is empty.
Poly = tuple[int, ...]
#: Primes up to here are taken out of a square root.
LARGEST_PRIME = 1000


def trimmed(values: list[int]) -> Poly:
    """Without zeros at the end."""
    while values and not values[-1]:
        values.pop()
    return tuple(values)


def plus(a: Poly, b: Poly) -> Poly:
    """The sum."""
    return trimmed([x + y for x, y in zip_longest(a, b, fillvalue=0)])


def times(a: Poly, b: Poly) -> Poly:
    """The product."""
    values = [0] * (len(a) + len(b))
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            values[i + j] += x * y
    return trimmed(values)


def content(a: Poly) -> int:
    """The greatest common divisor of the coefficients, with the sign of the leading one."""
    return math.gcd(*a) * (-1 if a and a[-1] < 0 else 1)


def primitive(a: Poly) -> Poly:
    """Without its content."""
    factor = content(a)
    return tuple(x // factor for x in a)


def divided(a: Poly, b: Poly) -> tuple[Poly, Poly]:
    """Quotient and remainder, both up to one positive integer factor (the same for both)."""
    rest = [Fraction(x) for x in a]
    found = [Fraction(0)] * max(1, len(a) - len(b) + 1)
    while len(rest) >= len(b):
        factor, shift = rest[-1] / b[-1], len(rest) - len(b)
        found[shift] = factor
        for i, y in enumerate(b):
            rest[shift + i] -= factor * y
        rest.pop()
    scale = math.lcm(*(x.denominator for x in (*found, *rest)))
    whole, left = ([int(x * scale) for x in part] for part in (found, rest))
    return trimmed(whole), trimmed(left)


def exact(a: Poly, b: Poly) -> Poly:
    """The quotient where ``b`` is primitive and divides ``a``: by Gauss it has integers."""
    return divided(a, b)[0]


def common(a: Poly, b: Poly) -> Poly:
    """The primitive greatest common divisor."""
    while b:
        a, b = b, primitive(divided(a, b)[1])
    return primitive(a)


def derivative(a: Poly) -> Poly:
    """The derivative."""
    return tuple(i * x for i, x in enumerate(a))[1:]


def square_split(a: Poly) -> tuple[Poly, Poly]:
    """``(s, r)`` with a = s²·r, every repeated factor moved into s (Yun's algorithm)."""
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
    """The same for an integer, by trial division and one test for a perfect square."""
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
    """Signed terms, highest power first: ``["+d**2/4", "-3*d/2", "+1/2"]``."""
    found = []
    for power in range(len(a) - 1, -1, -1):
        if not a[power]:
            continue
        value = Fraction(a[power], denominator)
        name = {0: "", 1: "d"}.get(power, f"d**{power}")
        top = abs(value.numerator)
        text = name if name and top == 1 else f"{top}*{name}" if name else str(top)
        below = f"/{value.denominator}" if value.denominator > 1 else ""
        found.append(f"{'+' if value > 0 else '-'}{text}{below}")
    return found


def joined(terms: list[str]) -> str:
    """Signed terms as one sum: ``d**2/4 - 3*d/2 + 1/2``."""
    if not terms:
        return "0"
    first = terms[0].removeprefix("+")
    return first + "".join(f" {term[0]} {term[1:]}" for term in terms[1:])


def text(a: Poly) -> str:
    """A polynomial as sympy prints it: highest power first, but ``1 - d``."""
    terms = terms_text(a)
    if len(terms) == 2 and a[0] > 0 and terms[0].startswith("-"):
        terms.reverse()
    return joined(terms)
