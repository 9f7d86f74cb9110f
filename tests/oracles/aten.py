"""Counts what torch dispatches: one small rule per ATen operation, forward and backward.

It knows nothing of mechanisms or of the tape. Real and fake tensors both work. An operation
without a rule is named in ``Counts.unknown``; a test that finds one there must fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

KINDS = ("multiplications", "additions", "divisions", "exponentials", "other", "matmul_flops")
M, A, D, E, OTHER, MM = KINDS


@dataclass
class Counts:
    """What was executed, in the fields of ``attnprof.costs.Cost`` that an operation can show."""

    counts: Counter[str] = field(default_factory=Counter)
    bytes_moved: int = 0
    unknown: set[str] = field(default_factory=set)
    operations: Counter[str] = field(default_factory=Counter)

    def __getattr__(self, name: str) -> int:
        if name in KINDS:
            return self.counts[name]
        raise AttributeError(name)

    @property
    def flops(self) -> int:
        return sum(self.counts[kind] for kind in KINDS if kind != MM)

    def by_kind(self) -> dict[str, int]:
        return {kind: self.counts[kind] for kind in KINDS}


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def numel(tensor: torch.Tensor) -> int:
    return prod(tensor.shape)


def size(tensor: torch.Tensor) -> int:
    return numel(tensor) * tensor.element_size()


def products(macs: int) -> dict[str, int]:
    return {M: macs, A: macs, MM: 2 * macs}


def _mm(_out: Any, a: Any, b: Any) -> dict[str, int]:
    return products(numel(a) * b.shape[-1])


def _mv(_out: Any, a: Any, _b: Any) -> dict[str, int]:
    return products(numel(a))


def _added_mm(out: Any, bias: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Counter:
    return (
        Counter(products(numel(a) * b.shape[-1]))
        + Counter({A: numel(out) if beta else 0})
        + Counter({M: (beta not in (0, 1)) * numel(bias) + (alpha != 1) * numel(out)})
    )


def _sum_like(_out: Any, a: Any, *_rest: Any, **_named: Any) -> dict[str, int]:
    if not (a.is_floating_point() or a.is_complex()):
        return {}
    return {A: numel(a) * (2 if a.is_complex() else 1)}


def _mul(out: Any, *_factors: Any) -> dict[str, int]:
    if out.is_complex():
        return {M: 4 * numel(out), A: 2 * numel(out)}
    return {M: numel(out)} if out.is_floating_point() else {}


def _fft(out: Any, a: Any, *_rest: Any) -> dict[str, int]:
    """Half of radix 2: points/2·log2(points) butterflies of 4 products and 6 sums a line."""
    real = a if out.is_complex() else out
    points = real.shape[-1]
    butterflies = numel(real) * (points.bit_length() - 1) // 2
    return {M: 4 * butterflies // 2, A: 6 * butterflies // 2}


def _mean(out: Any, a: Any, *_rest: Any, **_named: Any) -> dict[str, int]:
    return {A: numel(a), D: numel(out)}


def _norm(out: Any, a: Any, order: Any = 2, *_rest: Any, **_named: Any) -> dict[str, int]:
    return {M: numel(a), A: numel(a), OTHER: numel(out)} if order == 2 else {}


def _plus(out: Any, _a: Any, _b: Any, *, alpha: float = 1) -> dict[str, int]:
    if not out.is_floating_point() and not out.is_complex():
        return {}
    return {A: numel(out), M: numel(out) if alpha != 1 else 0}


def _rsub(out: Any, a: Any, b: Any, alpha: float = 1) -> dict[str, int]:
    return _plus(out, a, b, alpha=alpha)


def _pow(out: Any, _a: Any, exponent: Any) -> dict[str, int]:
    if isinstance(exponent, (int, float)) and exponent == int(exponent) and exponent > 0:
        return {M: numel(out) * (int(exponent) - 1)}
    return {D: numel(out)} if exponent == -1 else {OTHER: numel(out)}


def _pairs(q: Any, k: Any, causal: bool) -> int:
    heads, n, m = prod(q.shape[:-2]), q.shape[-2], k.shape[-2]
    return heads * (n * (n + 1) // 2 if causal else n * m)


def _flash(_out: Any, q: Any, k: Any, v: Any, _dropout: float = 0.0, is_causal: bool = False,
           **_rest: Any) -> Counter:  # fmt: skip
    pairs = _pairs(q, k, is_causal)
    softmax = Counter({M: pairs, OTHER: pairs, A: 2 * pairs, E: pairs, D: pairs})
    return softmax + Counter(products(pairs * (q.shape[-1] + v.shape[-1])))


def _flash_backward(_out: Any, grad: Any, q: Any, k: Any, v: Any, _y: Any, _lse: Any, _p: float,
                    is_causal: bool, **_rest: Any) -> Counter:  # fmt: skip
    pairs = _pairs(q, k, is_causal)
    # scale, shift by logsumexp, exp; subtract the row's sum, times weights, times scale
    entry = Counter({M: 3 * pairs, A: 2 * pairs, E: pairs})
    row_sums = Counter({M: numel(grad), A: numel(grad)})
    five = Counter(products(pairs * (3 * q.shape[-1] + 2 * v.shape[-1])))
    return entry + row_sums + five


def _compare(out: Any, a: Any, *_rest: Any, **_named: Any) -> dict[str, int]:
    return {OTHER: numel(out)} if a.is_floating_point() else {}


def _extreme(_out: Any, a: Any, *_rest: Any, **_named: Any) -> dict[str, int]:
    return {OTHER: numel(a)} if a.is_floating_point() else {}


def per_entry(**kinds: int) -> Callable[..., dict[str, int]]:
    """So many operations for each entry of the result."""

    def rule(out: Any, *_args: Any, **_named: Any) -> dict[str, int]:
        first = out[0] if isinstance(out, (tuple, list)) else out
        floating = first.is_floating_point()
        return {kind: times * numel(first) for kind, times in kinds.items()} if floating else {}

    return rule


RULES: dict[str, Callable[..., Any]] = {
    "mm": _mm,
    "bmm": _mm,
    "addmm": _added_mm,
    "baddbmm": _added_mm,
    "mv": _mv,
    "dot": _mv,
    **dict.fromkeys(
        ("_softmax", "softmax"), per_entry(other=1, additions=2, exponentials=1, divisions=1)
    ),
    "_softmax_backward_data": per_entry(multiplications=2, additions=2),
    "_scaled_dot_product_flash_attention_for_cpu": _flash,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _flash_backward,
    "sum": _sum_like,
    "cumsum": _sum_like,
    "scatter_add": lambda _out, _a, _dim, _index, source: {A: numel(source)},
    "mean": _mean,
    "linalg_vector_norm": _norm,
    "amax": _extreme,
    "amin": _extreme,
    "max": _extreme,
    "min": _extreme,
    "add": _plus,
    "sub": _plus,
    "rsub": _rsub,
    "pow": _pow,
    "mul": _mul,
    "_fft_r2c": _fft,
    "_fft_c2r": _fft,
    "div": per_entry(divisions=1),
    "reciprocal": per_entry(divisions=1),
    "exp": per_entry(exponentials=1),
    "rsqrt": per_entry(other=1, divisions=1),
    "sigmoid": per_entry(exponentials=1, additions=1, divisions=1),
    "sigmoid_backward": per_entry(additions=1, multiplications=2),
    "tanh_backward": per_entry(additions=1, multiplications=2),
    "addcmul": per_entry(multiplications=1, additions=1),
    "lerp": per_entry(multiplications=1, additions=2),
    **dict.fromkeys(
        words(
            "cummax neg abs sqrt log tanh erf "
            "relu threshold_backward maximum minimum clamp clamp_min"
        ),
        per_entry(other=1),
    ),
    **dict.fromkeys(("ge", "gt", "le", "lt", "eq", "ne"), _compare),
}

VIEWS = words(
    """
    promote_types
    view _unsafe_view reshape t transpose permute expand unsqueeze squeeze slice select
    split split_with_sizes unbind alias detach as_strided narrow chunk diagonal unfold
    _reshape_alias lift_fresh view_as unsqueeze_ squeeze_ t_ transpose_ detach_ empty
    empty_like empty_strided new_empty new_empty_strided
    """
)

#: Work without real operations: their bytes count.
MOVES = words(
    """
    clone copy _to_copy fill zero zeros ones full arange zeros_like ones_like full_like
    scalar_tensor new_zeros new_ones new_full masked_fill where tril triu cat stack repeat
    repeat_interleave constant_pad_nd slice_backward select_backward slice_scatter
    select_scatter gather scatter index index_select index_put index_fill flip roll
    unfold_backward bitwise_and bitwise_or bitwise_not logical_and logical_or logical_not
    remainder searchsorted index_copy
    eye embedding argsort sort topk diagonal_backward as_strided_scatter conj_physical
    """
)

#: In-place operations that do not read what they overwrite.
OVERWRITES = frozenset({"copy_", "fill_", "zero_"})


class OperationCounter(TorchDispatchMode):
    """Counts every ATen operation that runs inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.result = Counts()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.record(func._schema.name.removeprefix("aten::"), out, args, kwargs)
        return out

    def record(self, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        base = name.removesuffix("_")
        if name in VIEWS:
            return
        if base in RULES:
            scalars = {k: v for k, v in kwargs.items() if k not in ("dtype", "out")}
            self.result.counts.update(RULES[base](out, *args, **scalars))
        elif base not in MOVES:
            self.result.unknown.add(name)
        self.result.operations[name] += 1
        self.result.bytes_moved += sum(map(size, _operands(name, args, kwargs)))
        self.result.bytes_moved -= _untouched(base, out, args)
        self.result.bytes_moved += sum(map(size, _tensors(out)))


def _untouched(name: str, out: Any, args: tuple[Any, ...]) -> int:
    """Bytes of operands and result that picking or placing whole rows leaves alone."""
    if name == "index_select":
        return size(args[0]) - size(out)
    if name == "index_copy":  # the source is read, and written
        return 2 * size(args[0]) - size(args[3])
    return 0


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _operands(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    if name.endswith("_like") or name.startswith("new_"):
        return iter(())
    read = {key: value for key, value in kwargs.items() if key not in ("out", "grad_input")}
    return _tensors((args[1:] if name in OVERWRITES else args, read))


def count(run: Callable[[], Any]) -> Counts:
    """What a call executes."""
    with OperationCounter() as counter:
        run()
    return counter.result


def count_layer(layer: torch.nn.Module, x: torch.Tensor, phase: str, **options: Any) -> Counts:
    """Counts of a layer on x: ``forward``, ``backward`` or ``train``, gradients not yet filled."""
    return count_core(layer, (x,), phase, **options)


def count_core(
    module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], phase: str, **options: Any
) -> Counts:
    """The same for a module of several inputs, which all need a gradient."""
    module.zero_grad(set_to_none=True)
    if phase == "forward":
        with torch.no_grad():
            return count(lambda: module(*inputs, **options))
    leaves = [x.detach().requires_grad_() for x in inputs]
    forward, backward = OperationCounter(), OperationCounter()
    with forward:
        y = module(*leaves, **options)
    ones = torch.ones_like(y)
    with forward if phase == "train" else backward:
        y.backward(ones)
    return (forward if phase == "train" else backward).result
