"""Softmax attention over scores that are written out, one text for torch and for the counter."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attnprof.ops.function import Function
from attnprof.ops.functional import square_root


@dataclass
class KeyValueState:
    """What softmax attention keeps: keys and values of every token so far, (b·g, t, d)."""

    keys: Any
    values: Any


def causal_mask(n: Any, like: Any) -> Any:
    """(n, n) booleans, True above the diagonal: what a row must not see."""
    return like.new_ones(n, n, dtype=bool).triu_(1)


def score_products(q: Any, k: Any) -> Any:
    """Q kᵀ; the gradient of k comes as columns."""
    scores = q.bmm(k.transpose(1, 2))
    return scores  # noqa: RET504 - the stage is called so


def weighted_values(
    q: Any, k: Any, v: Any, mask: Any = None, products: Callable[[Any, Any], Any] = score_products
) -> Any:
    """Rows of softmax((q / sqrt d) kᵀ) v; q (b, r·n, d), k (b, m, d), v (b, m, dv).

    ``mask`` (r·n, m) is True where a row must not look. Queries are scaled and not scores: d
    entries a row, forward and backward, where scores would be m.
    """
    scaling = q / square_root(q.shape[-1])
    scores = products(scaling, k)
    del scaling
    if mask is not None:
        scores.masked_fill_(mask, float("-inf"))
    softmax = scores.softmax(-1)
    del scores
    return softmax.bmm(v)


def _products_grads(saved: tuple[Any, ...], grad: Any) -> tuple[Any, ...]:
    q, k = saved
    return grad.bmm(k), grad.transpose(1, 2).bmm(q)


#: Q kᵀ; the gradient of k comes as rows.
row_products = Function(lambda q, k: (score_products(q, k), (q, k)), _products_grads)
