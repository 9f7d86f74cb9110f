"""004: Sec 3 (Eq 3, Algorithm 1), and Table 1 and Fig 4, mean sizes for rows drawn at random.

Queries and keys are unit vectors in R^d, x = q·k. Values have a column of ones; their rows are
either unit vectors too (``sphere``, as the caption says) or have entries of unit variance
(``normal``). Moments of x: E x² = 1/d, E x⁴ = 3/(d(d+2)).
"""

from functools import cache, partial
from math import factorial
from typing import Any

import sympy

from attnprof import registry
from attnprof.algebra.expressions import symbol
from attnprof.papers.checks import Facts, Ours, Printed, formula
from attnprof.papers.taylorshift.formulas import DOCUMENT, FORMS, D, N, quoted

#: Sizes that Algorithm 1 is run at: (tokens, head width, temperature).
SIZES = ((1, 1, 1.0), (3, 2, 0.5), (7, 5, 1.0), (40, 8, 2.5))
#: Even orders whose polynomials are searched for real roots.
ORDERS = range(2, 21, 2)
X = symbol("x")


def taylor_map(x: Any, order: int = 2) -> Any:
    """The exponential's series up to an order."""
    return sum(x**n / factorial(n) for n in range(order + 1))


def algorithm1(q: Any, k: Any, v: Any, temperature: float) -> Any:
    """Algorithm 1 line by line: arrays (N, d) in, (N, d) out."""
    import numpy as np

    n, d = q.shape
    alpha = d**0.25
    v = np.hstack([np.full((n, 1), (d / n) ** 0.5), v]) / n
    q = alpha * temperature * q / np.linalg.norm(q, axis=-1, keepdims=True)
    k = alpha * k / np.linalg.norm(k, axis=-1, keepdims=True)
    boxed_q, boxed_k = ((x[:, :, None] * x[:, None]).reshape(n, d * d) for x in (q, k))
    y = boxed_q @ (boxed_k.T @ v)
    y = y / 2 + alpha**2 * q @ (k.T @ v) + alpha**4 * v.sum(axis=0)
    return y[:, 1:] / y[:, :1]


def normalised_direct(q: Any, k: Any, v: Any, temperature: float) -> Any:
    """Eq 1 on the scores τ·cos(q, k), times √(N/d)."""
    import numpy as np

    n, d = q.shape
    lengths = np.outer(np.linalg.norm(q, axis=-1), np.linalg.norm(k, axis=-1))
    weights = taylor_map(temperature * q @ k.T / lengths)
    return (weights / weights.sum(axis=-1, keepdims=True)) @ v * (n / d) ** 0.5


def forms_agree() -> bool:
    """Whether Algorithm 1, Eq 1 and this project's modules give the same numbers."""
    import numpy as np
    import torch

    from attnprof.blocks.core import attend_core

    draw = np.random.default_rng(4)
    for n, d, temperature in SIZES:
        q, k, v = draw.normal(size=(3, n, d))
        wanted, others = algorithm1(q, k, v, temperature), [normalised_direct(q, k, v, temperature)]
        tq, tk, tv = (torch.from_numpy(x)[None, None] for x in (q, k, v))
        for name in FORMS:
            spec = registry.get(name, temperature=temperature)
            y = attend_core(spec, registry.module_of(name), tq, tk, tv, False, 0, None)
            others.append(y[0, 0].detach().numpy())
        if not all(np.allclose(wanted, other, rtol=1e-10, atol=1e-12) for other in others):
            return False
    return True


def coefficients() -> list[str]:
    """Factors of the square, linear and constant term where x is scaled by the root of d."""
    half = sympy.Rational(1, 2)
    score = D**half * X
    whole = half * score**2 / (X**2 / 2)  # what the square term is multiplied by
    return [str(half), str(whole * X / score), str(whole)]


SPHERE, NORMAL = "sphere", "normal"
#: The longest sequence of Fig 4, and widths of Table 2: where B.2 says the laws fit.
LENGTH = int(quoted("fig4_N_max"))
WIDTHS = (16, 32, 64, 128)
#: What B.2 grants for long sequences.
ERROR = 0.01


def moment(power: int) -> Any:
    """E x^power of the product of two random unit vectors in R^d; odd ones vanish."""
    factors = (sympy.Integer(i + 1) / (D + i) for i in range(0, power, 2))
    return 0 if power % 2 else sympy.prod(factors)


@cache
def law(expression: str, values: str = SPHERE) -> Any:
    """The root of the mean squared size of an expression of Table 1; of Y_denom its mean.

    Exact for every N, except for Y: there for long sequences, whose denominators hardly vary.
    A_mod is taken as a whole, the others by row.
    """
    more = D if values == NORMAL else 1  # the mean squared length of a row of values
    taylor = sympy.Poly([sympy.Rational(1, 2), 1, 1], symbol("x"))

    def mean(polynomial: Any) -> Any:
        return sum(c * moment(i) for (i,), c in polynomial.terms())

    squared = {
        # (k·k')² for each pair of tokens, times 1 + v·v' whose mean is 1 for different ones.
        "A_mod": N * (1 + more) + N * (N - 1) * moment(2),
        # Different keys are independent given the query: only the column of ones sees them.
        "(QK^T)^2 V": N * (1 + more) * moment(4) + N * (N - 1) * moment(2) ** 2,
        "QK^T V": N * (1 + more) * moment(2),
        "Y_denom": (N * mean(taylor)) ** 2,
        "Y": more * mean(taylor**2) / (N * mean(taylor) ** 2),
    }
    return sympy.sqrt(sympy.factor(squared[expression]))


def denominator() -> Any:
    """Mean of Σ (1 + x + x²/2) over N keys."""
    return sympy.factor(law("Y_denom"))


def printed_laws() -> dict[str, str]:
    """Table 1 as printed."""
    rows = DOCUMENT.rows("table01_intermediate_sizes")
    return {row["expression"]: row["size_printed"] for row in rows}


def printed_sizes(expression: str) -> dict[str, float]:
    """A printed law at the widths, for the longest sequence: ``d=16`` and so on."""
    law = formula(printed_laws()[expression])
    return {f"d={d}": float(law.subs({N: LENGTH, D: d})) for d in WIDTHS}


def sizes(expression: str, values: str = SPHERE) -> dict[str, float]:
    """What :func:`size` gives at the same widths and length."""
    return {f"d={d}": size(expression, values, LENGTH, d) for d in WIDTHS}


def size(expression: str, values: str, length: int, width: int) -> float:
    """The mean size in a long sequence: a mean of norms.

    Sums over many tokens are as good as normal, so the norm of a row of QKᵀV or Y has the mean
    of a norm of normal variables; the others hardly vary around their root mean square.
    """
    rms = float(law(expression, values).subs({N: length, D: width}))
    spreads = {
        # column of ones, then d columns, each with its variance
        "QK^T V": ((1.0, 1), (1.0 if values == NORMAL else 1 / width, width)),
        "Y": ((1.0, width),),
    }
    parts = spreads.get(expression)
    return rms if parts is None else rms * mean_to_root_mean_square(parts)


def mean_to_root_mean_square(parts: tuple[tuple[float, int], ...]) -> float:
    """E‖z‖ / √E‖z‖² of independent normal z: (variance, how many) each.

    From E√S = ∫ (1 - E e^(-tS)) t^(-3/2) dt / (2√π), with E e^(-tS) = Π (1 + 2at)^(-m/2);
    with t = e^u the integrand falls off like e^(-|u|/2), and equal steps converge fast.
    """
    import numpy as np

    step = 0.05
    u = np.arange(-70, 70, step)
    logarithm = sum(-m / 2 * np.log1p(2 * a * np.exp(u)) for a, m in parts)
    mean = float((-np.expm1(logarithm) * np.exp(-u / 2)).sum()) * step / (2 * np.pi**0.5)
    return float(mean / sum(a * m for a, m in parts) ** 0.5)


def off(expression: str, printed: Any, ours: Any) -> dict[str, float]:
    """How far the printed law is off, and that entries of unit variance explain it."""
    normal = sizes(expression, NORMAL)
    ratios = [printed[width] / ours[width] for width in ours]
    worst = max(abs(printed[width] / normal[width] - 1) for width in ours)
    return {"least": min(ratios), "most": max(ratios), "worst": worst}


def dimension_of_sphere() -> str:
    """Of the unit vectors among rows with d entries: d less the conditions on a small step.

    |x|² = 1 binds a step by its gradient 2x; the rank of that row counts.
    """
    import numpy as np

    row = np.random.default_rng(0).normal(size=(1, 8))
    return f"d - {int(np.linalg.matrix_rank(2 * row))}"


#: Claims of Table 1's laws, and the expressions.
LAWS = {
    "004-T1-Amod": "A_mod", "004-T1-sq": "(QK^T)^2 V", "004-T1-lin": "QK^T V", "004-T1-Y": "Y",
}  # fmt: skip

PRINTED: Printed = {
    **{claim: printed_sizes(expression) for claim, expression in LAWS.items()},
    "004-T1-den": printed_laws()["Y_denom"],
}
OURS: Ours = {
    "004-EQ3": lambda: [[int(taylor_map(0))] * 3 for _ in range(3)],
    "004-TSM-pos": lambda: (
        not any(  # at 0 each sum is 1
            sympy.Poly(taylor_map(X, order), X).count_roots() for order in ORDERS
        )
    ),
    "004-ALG1": forms_agree,
    "004-FN2": coefficients,
    **{claim: partial(sizes, expression) for claim, expression in LAWS.items()},
    "004-T1-den": lambda: str(denominator()),
    "004-SPHERE": dimension_of_sphere,
}
FACTS: Facts = {claim: partial(off, expression) for claim, expression in LAWS.items()}
