"""Figures 4 and 5: sizes of the efficient form's intermediate results, sampled, and their laws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt
from typing import Any

from attnprof.measure.clocks import threads
from attnprof.papers.measured import measured
from attnprof.papers.taylorshift.checks_sizes import LENGTH, NORMAL, SPHERE
from attnprof.papers.taylorshift.formulas import quoted

#: As Table 1 names them; rows of Q and K lie on the unit sphere, V has a column of ones in front.
EXPRESSIONS = ("A_mod", "(QK^T)^2 V", "QK^T V", "Y_denom", "Y")
#: How rows of V are drawn: entries of unit variance, or unit vectors as the text says.
KINDS = (NORMAL, SPHERE)
WIDTHS = (8, 16, 32, 64)
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
    widths: Sequence[int] = WIDTHS, sizes: Sequence[int] = LENGTHS, samples: int = SAMPLES
) -> list[dict[str, Any]]:
    """Mean norms by expression, head width, length and kind of V, with their standard errors.

    A row's norm for what has a row a query (a number's size for the denominator); the Frobenius
    norm for A_mod, which has one value a draw.
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
    found: dict[tuple[str, str], list[Any]] = {}
    for name, product in _products(d, n, draws, queries, generator):
        for kind, own in zip(KINDS, _by_kind(product, d), strict=True):
            for expression, rows in _vectors(name, own):
                sizes = rows.norm(dim=-1).mean(-1)  # of each draw: queries share its keys
                found.setdefault((expression, kind), []).append(sizes)
    for (expression, kind), parts in found.items():
        sizes = torch.cat(parts)
        yield {
            "expression": expression, "values": kind, "norm": float(sizes.mean()),
            "standard_error": float(sizes.std()) / sqrt(len(sizes)), "draws": len(sizes),
            "queries": 1 if expression == "A_mod" else queries,
        }  # fmt: skip


def _products(
    d: int, n: int, draws: int, queries: int, generator: Any
) -> Iterator[tuple[str, Any]]:
    """What is multiplied with V, some draws at a time; columns for ones and both kinds of V."""
    boxes = min(MOST, max(2, int(OPERATIONS / (2 * n * d**2 * (2 * d + 1)))))
    step = max(1, AT_ONCE // (n * d))
    for start in range(0, draws, step):
        count = min(step, draws - start)
        keys, values = _sphere((count, n, d), generator), _values((count, n, d), generator)
        for one in range(min(count, boxes - start)):
            yield "A_mod", _mixed(keys[one], values[one])
        scores = _sphere((count, queries, d), generator) @ keys.transpose(1, 2)
        linear = scores @ values
        squared = scores.square_() @ values
        yield "QK^T V", linear
        yield "(QK^T)^2 V", squared
        yield "Y", squared / 2 + linear + values.sum(1, keepdim=True)


def _sphere(shape: tuple[int, int, int], generator: Any) -> Any:
    import torch

    return torch.nn.functional.normalize(torch.randn(shape, generator=generator), dim=-1)


def _values(shape: tuple[int, int, int], generator: Any) -> Any:
    """[1, V, V with its rows on the sphere]."""
    import torch

    values = torch.randn(shape, generator=generator)
    rows = torch.nn.functional.normalize(values, dim=-1)
    return torch.cat([torch.ones(*shape[:2], 1), values, rows], -1)


def _mixed(keys: Any, values: Any) -> Any:
    """One draw's box products of its keys with themselves, transposed, times V; a row of all."""
    from attnprof.blocks.taylor import box_product

    size = max(1, AT_ONCE // keys.shape[-1] ** 2)
    parts = zip(keys.split(size), values.split(size), strict=True)
    return sum(box_product(k.unsqueeze(0)).squeeze(0).T @ v for k, v in parts).unsqueeze(0)


def _by_kind(product: Any, d: int) -> tuple[Any, Any]:
    """The columns of ones with those of each kind of V."""
    import torch

    return product[..., : d + 1], torch.cat([product[..., :1], product[..., d + 1 :]], -1)


def _vectors(name: str, product: Any) -> list[tuple[str, Any]]:
    """The vectors whose norms are averaged; the sum of all terms gives denominator and ratio."""
    if name == "A_mod":
        return [(name, product.flatten(1).unsqueeze(1))]
    if name == "Y":
        bottom = product[..., :1]
        return [("Y_denom", bottom), ("Y", product[..., 1:] / bottom)]
    return [(name, product)]


def fit_norms() -> list[dict[str, Any]]:
    """Constants c(d) of sizes c·N^p for large N, by expression, head width and kind of V.

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
