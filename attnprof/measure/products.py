"""Which matrix products a call executes, and how many FLOPs each is by our own convention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

#: FLOPs by operation name, ``aten.bmm`` and so on.
Products = Counter[str]


def product_flops(name: str, arguments: Sequence[Any], named: dict[str, Any]) -> int | None:
    """FLOPs of one operation if it is a matrix product (2·m·k·n), else None.

    Fused attention counts N(N+1)/2 pairs where causal; its backward five products, scores
    recomputed (flash, efficient and their CPU kin).
    """
    rule = _RULES.get(name)
    if rule is not None:
        return rule(arguments)
    if "scaled_dot_product" in name or name in _FUSED_KERNELS:
        return _fused(name, arguments, named)
    return None


_FUSED_KERNELS = ("aten._flash_attention_forward", "aten._efficient_attention_forward")


def _matrices(a: int, b: int) -> Callable[[Sequence[Any]], int]:
    """The rule of (…, m, k) times (…, k, n) at these argument positions; vectors count as n=1."""

    def rule(arguments: Sequence[Any]) -> int:
        left, right = arguments[a].shape, arguments[b].shape
        columns = right[-1] if len(right) > 1 else 1
        return 2 * _count(left) * int(columns)

    return rule


def _count(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= int(size)
    return count


_RULES = {
    "aten.mm": _matrices(0, 1),
    "aten.bmm": _matrices(0, 1),
    "aten.mv": _matrices(0, 1),
    "aten.dot": _matrices(0, 1),
    "aten.vdot": _matrices(0, 1),
    "aten.addmm": _matrices(1, 2),
    "aten.addmm_": _matrices(1, 2),
    "aten.baddbmm": _matrices(1, 2),
    "aten.baddbmm_": _matrices(1, 2),
    "aten.addbmm": _matrices(1, 2),
    "aten.addmv": _matrices(1, 2),
}


def _fused(name: str, arguments: Sequence[Any], named: dict[str, Any]) -> int:
    backward = name.endswith("_backward")
    first = 1 if backward else 0  # the backward's first argument is the output's gradient
    q, k, v = (arguments[first + i].shape for i in range(3))
    batch, heads, rows, width = (int(size) for size in q)
    keys, value_width = int(k[-2]), int(v[-1])
    causal = bool(_causal_flag(arguments[first + 3 :], named))
    pairs = rows * (rows + 1) // 2 if causal else rows * keys
    if backward:  # scores again, dV, dP, dQ, dK
        return 2 * batch * heads * pairs * (3 * width + 2 * value_width)
    return 2 * batch * heads * pairs * (width + value_width)


def _causal_flag(rest: Sequence[Any], named: dict[str, Any]) -> Any:
    """``is_causal``: by name, or the one true boolean that follows the dropout probability.

    The kernels' signatures differ in order; of their positional booleans after a float the
    first is ``is_causal`` in each of them.
    """
    if "is_causal" in named:
        return named["is_causal"]
    floats = [i for i, value in enumerate(rest) if type(value) is float]
    after = rest[floats[0] :] if floats else rest
    return next((value for value in after if type(value) is bool), False)


def watch_products() -> tuple[Any, Products, Counter[str]]:
    """A dispatch mode, and what it will have found: FLOPs and calls by product operation."""
    from torch.utils._python_dispatch import TorchDispatchMode

    flops: Products = Counter()
    calls: Counter[str] = Counter()

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch leaves it untyped
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = str(func.overloadpacket)
            found = product_flops(name, args, kwargs or {})
            if found is not None:
                flops[name] += found
                calls[name] += 1
            return func(*args, **(kwargs or {}))

    mode: Any = Watch
    return mode(), flops, calls
