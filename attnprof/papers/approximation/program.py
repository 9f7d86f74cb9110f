"""What the document's four attention classes compute, in our own words, with their costs.

One head as wide as the model, no projections, (batch, tokens, width) in and out: as its code has
it, which is not always as its text does. Counts are derived from these functions as they run.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import elu

from attnprof.algebra.orders import fitted
from attnprof.papers.documents import document

if TYPE_CHECKING:
    from attnprof.trace.report.derivation import Derivation

DOCUMENT = document("003")
#: What the document calls the number of tokens, the widths and its constants.
SETTINGS = {row["key"]: row["value"] for row in DOCUMENT.rows("settings")}
TOKENS, TEST_TOKENS, WIDTH = (int(SETTINGS[key]) for key in ("N", "N_TEST", "D_MODEL"))
LENGTH, FEATURES = int(SETTINGS["L_LINFORMER"]), int(SETTINGS["m_PERFORMER"])
WINDOW = int(SETTINGS["w_LONGFORMER"])
MASKED, EPSILON = float(SETTINGS["neg_inf_longformer"]), float(SETTINGS["performer_epsilon"])


def standard(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt d) v."""
    weights: Tensor = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
    return weights @ v


def linformer(compress: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Keys and values compressed to L rows by the first rows of one matrix, then standard."""
    used = compress[: k.shape[1]].mT
    return standard(q, used @ k, used @ v)


def features(directions: Tensor, x: Tensor) -> Tensor:
    """elu(x Omega) + 1."""
    return elu(x @ directions) + 1


def performer(directions: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """phi(q) (phi(k)^T v), divided by phi(q) summed over all phi(k)."""
    rows, columns = features(directions, q), features(directions, k)
    total = rows @ columns.sum(1, keepdim=True).mT
    return rows @ (columns.mT @ v) / (total + EPSILON)


def longformer(q: Tensor, k: Tensor, v: Tensor, *, window: int = WINDOW) -> Tensor:
    """All scores; those further than a window away are set to -1e9 before the softmax."""
    place = torch.arange(q.shape[1], device=q.device)
    far = (place[:, None] - place).abs() > window
    scores = q @ k.mT * q.shape[-1] ** -0.5
    weights: Tensor = scores.masked_fill(far, MASKED).softmax(-1)
    return weights @ v


def attention(
    name: str, tokens: int, width: int, length: int = LENGTH, count: int = FEATURES
) -> Callable[..., Tensor]:
    """A class as it is built: for so many tokens at most, with weights drawn as it draws them."""
    made = torch.Generator().manual_seed(0)
    if name == "linformer":
        return partial(linformer, torch.randn(tokens, length, generator=made))
    if name == "performer":
        return partial(performer, torch.randn(width, count, generator=made) / count**0.5)
    return CLASSES[name]


def derived(name: str, quantity: str = "flops") -> Any:
    """What one call costs, by running it on symbolic sizes: B, N, d, and L or m."""
    return _derivation(name).phases["forward"].formulas[quantity].expression


@cache
def _derivation(name: str) -> "Derivation":
    from attnprof.trace.solve.derive import derive_anything

    own = {"linformer": {"compress": "N, L"}, "performer": {"directions": "d, m"}}
    inputs = {**own.get(name, {}), **dict.fromkeys(("q", "k", "v"), "B, N, d")}
    return derive_anything(CLASSES[name], inputs=inputs, phases=("forward",))


CLASSES: dict[str, Callable[..., Tensor]] = {
    "standard": standard, "linformer": linformer, "performer": performer,
    "longformer": longformer,
}  # fmt: skip
STUDENTS = [name for name in CLASSES if name != "standard"]

Features = Callable[[Tensor, Tensor], Tensor]
SAMPLE_TOKENS, SAMPLE_WIDTH, DRAWS = 16, 4, 64
COUNTS = tuple(16 * 4**power for power in range(5))
SPREAD = 0.3


def listed(directions: Tensor, x: Tensor) -> Tensor:
    """Those of the document's class: elu(x Omega) + 1, Omega divided by the root of m."""
    return features(directions / directions.shape[-1] ** 0.5, x)


def error_power(feature_map: Features = listed) -> float:
    """The power of the number of features with which the weights' relative RMS error falls."""
    made = torch.Generator().manual_seed(4)
    q, k = (SPREAD * torch.randn(SAMPLE_TOKENS, SAMPLE_WIDTH, generator=made) for _ in range(2))
    exact = (q @ k.T).softmax(-1)
    found = []
    for count in COUNTS:
        total = 0.0
        for _ in range(DRAWS):
            directions = torch.randn(SAMPLE_WIDTH, count, generator=made)
            scores = feature_map(directions, q) @ feature_map(directions, k).T
            weights = scores / scores.sum(-1, keepdim=True)
            total += float((weights - exact).square().sum() / exact.square().sum())
        found.append((total / DRAWS) ** 0.5)
    return fitted(COUNTS, found)
