"""Figures 4 and 5: sizes of the efficient form's intermediate results, sampled, and their laws."""

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
        ones, normal, sphere = product.split([1, d, d], -1)
        for kind, columns in zip(KINDS, (normal, sphere), strict=True):
            vectors = {name: torch.cat([ones, columns], -1)}
            if name == "A_mod":  # all its entries
                vectors = {name: vectors[name].flatten(1).unsqueeze(1)}
            elif name == "Y":  # the sum of all terms gives denominator and ratio
                vectors = {"Y_denom": ones, "Y": columns / ones}
            for expression, rows in vectors.items():
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
    """What is multiplied with [1, V, V with its rows on the sphere], some draws at a time."""
    import torch

    from attnprof.blocks.taylor import box_product

    def sphere(*shape: int) -> Any:
        return torch.nn.functional.normalize(torch.randn(shape, generator=generator), dim=-1)

    boxes = min(MOST, max(2, int(OPERATIONS / (2 * n * d**2 * (2 * d + 1)))))
    step, tokens = max(1, AT_ONCE // (n * d)), max(1, AT_ONCE // d**2)
    for start in range(0, draws, step):
        count = min(step, draws - start)
        keys: Any = sphere(count, n, d)
        rows = torch.randn((count, n, d), generator=generator)
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
