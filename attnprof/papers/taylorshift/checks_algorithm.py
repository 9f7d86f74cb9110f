"""004, Sec 3: the Taylor softmax, Eq 3, Algorithm 1 and its coefficients."""

from math import factorial
from typing import Any

import sympy

from attnprof import registry
from attnprof.algebra.expressions import symbol
from attnprof.papers.checks import Ours
from attnprof.papers.taylorshift.formulas import FORMS, D

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

    from attnprof.blocks.assemble import attend_core

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


OURS: Ours = {
    "004-EQ3": lambda: [[int(taylor_map(0))] * 3 for _ in range(3)],
    "004-TSM-pos": lambda: (
        not any(  # at 0 each sum is 1
            sympy.Poly(taylor_map(X, order), X).count_roots() for order in ORDERS
        )
    ),
    "004-ALG1": forms_agree,
    "004-FN2": coefficients,
}
