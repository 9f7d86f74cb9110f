"""Checks of document 004: Sec 3 (Eq 3, Algorithm 1), Table 1, Fig 4 and 5 (norms of random rows).

Queries and keys are unit vectors in R^d, x = q·k. Values have a column of ones; their rows are
either unit vectors too (``sphere``, as the caption says) or have entries of unit variance
(``normal``). Moments of x: E x² = 1/d, E x⁴ = 3/(d(d+2)).
"""

from collections.abc import Iterator, Sequence
from functools import cache, partial
from math import factorial, sqrt
from typing import Any

import sympy

from attnprof import registry
from attnprof.algebra.expressions import symbol
from attnprof.measure.clocks import threads
from attnprof.papers.checks import Facts, Ours, Printed, formula
from attnprof.papers.documents import measured
from attnprof.papers.taylorshift.checks_costs import DOCUMENT, FORMS, D, N, quoted

#: Sizes that Algorithm 1 is run at: (tokens, head width, temperature).
SIZES = ((1, 1, 1.0), (3, 2, 0.5), (7, 5, 1.0), (40, 8, 2.5))
#: Even orders whose polynomials are searched for real roots.
ORDERS = range(2, 21, 2)
X = symbol("x")
SPHERE, NORMAL = "sphere", "normal"
#: The longest sequence of Fig 4, and widths of Table 2: sizes at which the laws fit (B.2).
LENGTH = int(quoted("fig4_N_max"))
WIDTHS = (16, 32, 64, 128)
#: The relative error that B.2 grants for long sequences; sampling adds twice its standard error.
ERROR = float(quoted("fig5_error_pct_large_N")) / 100


def taylor_map(x: Any, order: int = 2) -> Any:
    """Return the exponential's series up to an order."""
    return sum(x**n / factorial(n) for n in range(order + 1))


def algorithm1(q: Any, k: Any, v: Any, temperature: float) -> Any:
    """Return Algorithm 1 line by line: arrays (N, d) in, (N, d) out."""
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
    """Return Eq 1 on the scores τ·cos(q, k), times √(N/d)."""
    import numpy as np

    n, d = q.shape
    lengths = np.outer(np.linalg.norm(q, axis=-1), np.linalg.norm(k, axis=-1))
    weights = taylor_map(temperature * q @ k.T / lengths)
    return (weights / weights.sum(axis=-1, keepdims=True)) @ v * (n / d) ** 0.5


def forms_agree() -> bool:
    """Return whether Algorithm 1, Eq 1 and this project's modules give the same numbers."""
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
    """Return factors of the square, linear and constant term where x is scaled by the root of d."""
    half = sympy.Rational(1, 2)
    score = D**half * X
    whole = half * score**2 / (X**2 / 2)  # the factor of the square term
    return [str(half), str(whole * X / score), str(whole)]


def moment(power: int) -> Any:
    """Return E x^power of the product of two random unit vectors in R^d; odd ones vanish."""
    factors = (sympy.Integer(i + 1) / (D + i) for i in range(0, power, 2))
    return 0 if power % 2 else sympy.prod(factors)


@cache
def law(expression: str, values: str = SPHERE) -> Any:
    """Return the root of the mean squared size of an expression of Table 1; of Y_denom its mean.

    Exact for every N; only for Y for long sequences, whose denominators hardly vary. A_mod is taken
    as a whole, the others by row.
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
    """Return mean of Σ (1 + x + x²/2) over N keys."""
    return sympy.factor(law("Y_denom"))


def printed_laws() -> dict[str, str]:
    """Return Table 1 as printed."""
    rows = DOCUMENT.rows("table01_intermediate_sizes")
    return {row["expression"]: row["size_printed"] for row in rows}


def printed_sizes(expression: str) -> dict[str, float]:
    """Return a printed law at the widths, for the longest sequence: ``d=16`` and so on."""
    law = formula(printed_laws()[expression])
    return {f"d={d}": float(law.subs({N: LENGTH, D: d})) for d in WIDTHS}


def sizes(expression: str, values: str = SPHERE) -> dict[str, float]:
    """Return :func:`size` at the widths and length of :func:`printed_sizes`."""
    return {f"d={d}": size(expression, values, LENGTH, d) for d in WIDTHS}


def size(expression: str, values: str, length: int, width: int) -> float:
    """Return the mean size in a long sequence: a mean of norms.

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
    """Return e‖z‖ / √E‖z‖² of independent normal z: (variance, how many) each.

    From E√S = ∫ (1 - E e^(-tS)) t^(-3/2) dt / (2√π), with E e^(-tS) = Π (1 + 2at)^(-m/2);
    with t = e^u the integrand falls off like e^(-|u|/2), and equal steps converge fast.
    """
    import numpy as np

    step = 0.05
    u = np.arange(-70, 70, step)
    logarithm = sum(-m / 2 * np.log1p(2 * a * np.exp(u)) for a, m in parts)
    mean = float((-np.expm1(logarithm) * np.exp(-u / 2)).sum()) * step / (2 * np.pi**0.5)
    return float(mean / sum(a * m for a, m in parts) ** 0.5)


def _off(expression: str, said: Any, ours: Any) -> dict[str, float]:
    """Return the printed law over ours, and its largest error for values of unit variance."""
    normal = sizes(expression, NORMAL)
    ratios = [said[width] / ours[width] for width in ours]
    worst = max(abs(said[width] / normal[width] - 1) for width in ours)
    return {"least": min(ratios), "most": max(ratios), "worst": worst}


def dimension_of_sphere() -> str:
    """Return the dimension of unit vectors with d entries: d less the conditions on a small step.

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
FACTS: Facts = {claim: partial(_off, expression) for claim, expression in LAWS.items()}

#: As Table 1 names them; rows of Q and K lie on the unit sphere, V has a column of ones in front.
EXPRESSIONS = ("A_mod", "(QK^T)^2 V", "QK^T V", "Y_denom", "Y")
#: How rows of V are drawn: entries of unit variance, or unit vectors as the text says.
KINDS = (NORMAL, SPHERE)
SAMPLED_WIDTHS = (8, 16, 32, 64)
LENGTHS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, LENGTH)
#: Rows averaged over, as in Fig 4: draws of K and V times queries for each.
SAMPLES = int(quoted("fig4_samples"))
#: Numbers drawn at most at a point, unless the fewest draws (times d) need more; and at once.
DRAWN, FEWEST, AT_ONCE = 2**26, 8192, 2**22
#: Operations spent on A_mod at a point, where two draws do not need more; and its most draws.
OPERATIONS, MOST = 1e10, 512
#: The laws' constants are fitted from here on; sizes grow with these powers of N.
LONG = 1000
POWERS = {"A_mod": 1.0, "(QK^T)^2 V": 1.0, "QK^T V": 0.5, "Y_denom": 1.0, "Y": -0.5}


def measure_norms(
    widths: Sequence[int] = SAMPLED_WIDTHS, sizes: Sequence[int] = LENGTHS, samples: int = SAMPLES
) -> list[dict[str, Any]]:
    """Return mean norms by expression, head width, length and kind of V, with standard errors.

    A_mod has its Frobenius norm, one value a draw, the others a norm for each row, and so for each
    query.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    with threads(1):  # many small products: more threads mostly wait for each other
        return [
            {"d": d, "seq_len": n, **row}
            for d in widths
            for n in sizes
            for row in _point(d, n, samples, generator)
        ]


def _point(d: int, n: int, samples: int, generator: Any) -> Iterator[dict[str, Any]]:
    import torch

    draws = min(samples, max(DRAWN // (n * d), FEWEST // d))
    queries = -(-samples // draws)
    points: dict[tuple[str, str], list[Any]] = {}
    for name, product in _products(d, n, draws, queries, generator):
        ones, normal, sphere = product.split([1, d, d], -1)
        for kind, columns in zip(KINDS, (normal, sphere), strict=True):
            vectors = {name: torch.cat([ones, columns], -1)}
            if name == "A_mod":  # all its entries
                vectors = {name: vectors[name].flatten(1).unsqueeze(1)}
            elif name == "Y":  # the sum of all terms gives denominator and ratio
                vectors = {"Y_denom": ones, "Y": columns / ones}
            for expression, rows in vectors.items():
                sizes = rows.norm(dim=-1).mean(-1)  # of each draw: queries share its keys
                points.setdefault((expression, kind), []).append(sizes)
    for (expression, kind), parts in points.items():
        sizes = torch.cat(parts)
        yield {
            "expression": expression, "values": kind, "norm": float(sizes.mean()),
            "standard_error": float(sizes.std()) / sqrt(len(sizes)), "draws": len(sizes),
            "queries": 1 if expression == "A_mod" else queries,
        }  # fmt: skip


def _products(d: int, n: int, draws: int, queries: int, rng: Any) -> Iterator[tuple[str, Any]]:
    """Yield products with [1, V, V with rows on the sphere] by expression, some draws at a time."""
    import torch

    from attnprof.blocks.taylor import box_product

    def sphere(*shape: int) -> Any:
        return torch.nn.functional.normalize(torch.randn(shape, generator=rng), dim=-1)

    boxes = min(MOST, max(2, int(OPERATIONS / (2 * n * d**2 * (2 * d + 1)))))
    step, tokens = max(1, AT_ONCE // (n * d)), max(1, AT_ONCE // d**2)
    for start in range(0, draws, step):
        count = min(step, draws - start)
        keys: Any = sphere(count, n, d)
        rows = torch.randn((count, n, d), generator=rng)
        on_sphere = torch.nn.functional.normalize(rows, dim=-1)
        values: Any = torch.cat([torch.ones(count, n, 1), rows, on_sphere], -1)
        for one in range(min(count, boxes - start)):
            parts = zip(keys[one].split(tokens), values[one].split(tokens), strict=True)
            yield "A_mod", sum(box_product(k[None])[0].T @ v for k, v in parts)[None]
        scores = sphere(count, queries, d) @ keys.transpose(1, 2)
        linear = scores @ values
        squared = scores.square_() @ values
        yield "QK^T V", linear
        yield "(QK^T)^2 V", squared
        yield "Y", squared / 2 + linear + values.sum(1, keepdim=True)


def fit_norms() -> list[dict[str, Any]]:
    """Return constants c(d) of sizes c·N^p for large N, by expression, head width and kind of V.

    The p are Table 1's. A sum of N terms has squares c²·N^2p·(1 + b/N): a straight line over 1/N
    from ``LONG`` on, whose value at 0 is c².
    """
    import numpy as np

    groups: dict[tuple[str, int, str], tuple[list[float], list[float]]] = {}
    for row in measured("004", "norms"):
        if row["seq_len"] >= LONG:
            key = (row["expression"], row["d"], row["values"])
            scaled = row["norm"] / row["seq_len"] ** POWERS[row["expression"]]
            inverse, squares = groups.setdefault(key, ([], []))
            inverse.append(1 / row["seq_len"])
            squares.append(scaled**2)
    return [
        {"expression": name, "d": d, "values": kind, "power": POWERS[name],
         "constant": float(np.sqrt(np.polyfit(inverse, squares, 1)[1]))}
        for (name, d, kind), (inverse, squares) in groups.items()
    ]  # fmt: skip
