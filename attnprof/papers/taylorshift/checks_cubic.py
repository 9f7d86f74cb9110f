"""004, A.2: how 8d³ + 10d² = 3 is solved."""

from __future__ import annotations

from typing import Any

from attnprof.papers.agreement import formula, same_formula
from attnprof.papers.checks import Check
from attnprof.papers.taylorshift.formulas import efficient_flops, slope_in_heads, symbol, text

#: Digits to which a root in radicals and the isolated root are compared.
DIGITS = 40


def equation(name: str) -> Any:
    """8d³ + 10d² of the equation 8d³ + 10d² = 3, in a symbol of this name."""
    import sympy

    N, d = symbol("N"), symbol("d")
    return sympy.expand(3 - slope_in_heads(efficient_flops()) / N).subs(d, symbol(name))


def depressed() -> Any:
    """The equation's left side minus 3 with d = x - 5/12, which has no square."""
    import sympy

    x = symbol("x")
    return sympy.expand(equation("d").subs(symbol("d"), x - sympy.Rational(5, 12)) - 3)


def monic() -> Any:
    """The same with leading coefficient 1."""
    import sympy

    return sympy.Poly(depressed(), symbol("x")).monic().as_expr()


def substituted() -> Any:
    """The same with x = y + 25/(144y)."""
    import sympy

    y = symbol("y")
    return sympy.expand(monic().subs(symbol("x"), y + sympy.Rational(25, 144) / y))


def cube() -> Any:
    """The larger solution for u = y³ of the substituted equation times u."""
    import sympy

    y, u = symbol("y"), symbol("u")
    quadratic = sympy.expand(substituted() * y**3).subs({y**6: u**2, y**3: u})
    a, b, c = sympy.Poly(quadratic, u).all_coeffs()
    return (-b + sympy.sqrt(b**2 - 4 * a * c)) / (2 * a)


def real_solutions() -> list[Any]:
    """All real solutions of the equation, isolated exactly."""
    import sympy

    found: list[Any] = sympy.Poly(equation("d") - 3, symbol("d")).real_roots()
    return found


def same_number(published: Any, ours: Any) -> bool:
    """Whether two constants agree to forty digits, of which the last is rounded."""
    import sympy

    apart = (formula(published) - formula(ours)).evalf(DIGITS + 5)
    return bool(abs(apart) < sympy.Float(0.6, DIGITS) * sympy.Integer(10) ** -DIGITS)


CHECKS = [
    Check(
        "004-A2-first",
        "10*z**3 + 11*z**2",
        lambda: text(equation("z")),
        how="the derivative by h of our count, set to zero and ordered as Eq 8",
        agree=same_formula,
        why="Eq 8, which this line repeats, is 8d³ + 10d² = 3; the chain that follows solves Eq 8.",
    ),
    Check(
        "004-A2-depressed",
        "10*x**3 - 25/6*x - 199/108",
        lambda: text(depressed()),
        how="Eq 8 with d = x - 5/12, multiplied out",
        agree=same_formula,
        why="The leading coefficient stays 8: 8x³ - 25/6·x - 199/108 = 0 (the right side is "
        "missing too). The next line, with 25/48 = 25/(6·8), is right.",
    ),
    Check(
        "004-A2-monic",
        "x**3 - 25/48*x - 199/864",
        lambda: text(monic()),
        how="Eq 8 with d = x - 5/12, over its leading coefficient",
        agree=same_formula,
    ),
    Check(
        "004-A2-vieta",
        "y**3 - 199/864 + 15625/(2985984*y**3)",
        lambda: text(substituted()),
        how="the same with x = y + 25/(144y), multiplied out",
        agree=same_formula,
    ),
    Check(
        "004-A2-u",
        "(199 + 18*sqrt(74))/1728",
        lambda: text(cube()),
        how="the larger solution of the quadratic in u = y³",
        agree=same_formula,
    ),
    Check(
        "004-h0-closed",
        "cbrt(199 + 18*sqrt(74))/12 + 25/(12*cbrt(199 + 18*sqrt(74))) - 5/12",
        lambda: str(real_solutions()[0].evalf(DIGITS)),
        how="the real root of Eq 8, isolated exactly and evaluated to forty digits",
        agree=same_number,
    ),
    Check(
        "004-h0-onlyreal",
        {"real solutions": 1},
        lambda: {"real solutions": len(real_solutions())},
        how="real roots of Eq 8, isolated exactly",
        note="Sec 4.3 says 'single positive solution', A.2 'only real solution'; both hold.",
    ),
]
