"""A tensor that counts: torch's names, shapes that may be symbols, no values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from attnprof.costs import Cost
from attnprof.errors import RequestError
from attnprof.ops import pointwise, products
from attnprof.ops.counter import variable
from attnprof.ops.groups import product
from attnprof.ops.indexed import Indexed
from attnprof.ops.pointwise import (
    ADD,
    EXP,
    NUMBER,
    OTHER,
    OVER,
    SIGMOID,
    SILU_BACKWARD,
    SQUASHED,
    TIMES,
    without,
)


def _function(
    name: str, cost: Cost, grad_cost: Cost | None = None, *, in_place: bool = False,
    saves: str = "result",
) -> Callable[..., Any]:  # fmt: skip
    """A method: a function of each entry, the stage of that name; numbers change no count.

    The gradient costs ``grad_cost`` an entry of x (or the result) that it is made from; without
    one there is none.
    """

    def method(self: Tensor, *_numbers: float, **_bounds: float | None) -> Tensor:
        into = self if in_place else None
        return pointwise.mapped(variable(name), self, cost, grad_cost, into, saves=saves)

    method.__doc__ = f"The {name} of every entry{', in place' if in_place else ''}."
    return method


def _operation(
    name: str, run: Callable[..., Any], *, in_place: bool = False, **settings: Any
) -> Callable[..., Any]:
    """A method: an operation with a tensor that broadcasts, or with a number.

    Of a sum or difference ``alpha`` times the tensor.
    """

    def method(self: Tensor, other: Any, **more: float) -> Any:
        return run(variable(name), self, other, self if in_place else None, **settings, **more)

    method.__doc__ = f"{run.__doc__}{' In place.' if in_place else ''}"
    return method


class Tensor(Indexed):
    """What a mechanism's text is run with to be counted; methods do what torch's of the name do.

    A stage is called as the variable that its result is stored in, else as the operation. A
    method with an underscore at its end writes where the tensor lies. What torch computes in a
    mask (comparisons, triangles) costs no FLOPs.
    """

    __slots__ = ()

    @classmethod
    def __torch_function__(cls, function: Any, _types: Any, args: Any, named: Any = None) -> Any:
        """What torch calls for one of its functions: the method of that name."""
        name = "join" if function.__name__ in ("cat", "concat") else function.__name__
        if not hasattr(cls, name):
            raise RequestError(
                f"the counter has no torch.{function.__name__}; it has the methods of "
                "attnprof.ops.tensor.Tensor"
            )
        given = {key: value for key, value in (named or {}).items() if key not in _WITHOUT}
        return getattr(cls, name)(*args, **given)

    @staticmethod
    def join(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
        """Tensors one after the other along an axis (torch.cat); gradients are slices."""
        first = parts[0]
        dim = dim % first.dim()
        before, after = first.shape[:dim], first.shape[dim + 1 :]
        lengths = [x.shape[dim] for x in parts]
        return first.result(
            variable("join"), (*before, sum(lengths), *after), Cost(), parts,
            backward=lambda grad: [
                grad.alias((*before, length, *after), grad.layout) for length in lengths
            ],
        )  # fmt: skip

    # -- products --------------------------------------------------------------------------
    def bmm(self, other: Tensor) -> Tensor:
        """Products of (batch, m, k) and (batch, k, n)."""
        return products.product_of(variable("bmm"), self, other)

    def mm(self, other: Tensor) -> Tensor:
        """The product of (m, k) and (k, n)."""
        return products.product_of(variable("mm"), self, other)

    def __matmul__(self, other: Tensor) -> Tensor:
        """Products of the last two dimensions; those before broadcast."""
        return products.matmul(variable("matmul"), self, other)

    matmul = __matmul__

    def baddbmm(self, a: Tensor, b: Tensor) -> Tensor:
        """The same of two others, added to itself, which broadcasts; no gradient."""
        shape, cost = products.product_cost(a.shape, b.shape)
        cost = cost + Cost(additions=product(shape))
        return self.result(variable("baddbmm"), shape, cost, [self, a, b])

    def linear(self, weight: Tensor, bias: Tensor | None = None, name: str = "") -> Tensor:
        """(…, k) times weight (n, k) transposed, plus bias."""
        return products.linear(name or variable("linear"), self, weight, bias)

    # -- arithmetic ------------------------------------------------------------------------
    add = _operation("add", pointwise.added)
    add_ = _operation("add", pointwise.added, in_place=True)
    sub = _operation("subtract", pointwise.added, minus=True)
    sub_ = _operation("subtract", pointwise.added, in_place=True, minus=True)
    mul_ = _operation("multiply", pointwise.multiplied, in_place=True)
    div_ = _operation("divide", pointwise.divided, in_place=True)
    __mul__ = __rmul__ = _operation("multiply", pointwise.multiplied)
    __truediv__ = _operation("divide", pointwise.divided)
    __add__ = __radd__ = add
    __sub__ = sub

    def __rsub__(self, other: float) -> Tensor:
        """A number less every entry; no gradient."""
        return pointwise.entrywise(variable("subtract"), ADD, self)

    def lerp(self, end: Tensor, weight: float) -> Tensor:
        """Itself plus ``weight`` times what another exceeds it by; no gradient."""
        return pointwise.entrywise(variable("lerp"), pointwise.LERP, self, end)

    # -- functions of an entry ---------------------------------------------------------------
    __neg__ = _function("negative", OTHER, OTHER, saves="")
    neg_ = _function("negative", OTHER, OTHER, saves="", in_place=True)
    exp = _function("exponential", EXP, TIMES)
    exp_ = _function("exponential", EXP, TIMES, in_place=True)
    sigmoid = _function("sigmoid", SIGMOID, SQUASHED)
    tanh = _function("tanh", OTHER, SQUASHED)
    relu = _function("relu", OTHER, OTHER)
    relu_ = _function("relu", OTHER, OTHER, in_place=True)
    silu = _function("silu", SIGMOID, SILU_BACKWARD, saves="operand")
    reciprocal = _function("reciprocal", OVER)
    reciprocal_ = _function("reciprocal", OVER, in_place=True)
    abs = _function("absolute", OTHER)
    log_ = _function("logarithm", OTHER, in_place=True)
    sqrt_ = _function("root", OTHER, in_place=True)
    clamp = _function("clamp", OTHER)  # min= or max=, a number
    clamp_ = _function("clamp", OTHER, in_place=True)
    gt_ = _function("is larger", OTHER, in_place=True)  # than a number: 1, else 0

    def addcmul_(self, a: Tensor, b: Tensor, *, value: float = 1) -> Tensor:
        """Plus a product, or with ``value=-1`` minus one, in place."""
        return pointwise.entrywise(variable("add product"), ADD + TIMES, self, a, b, into=self)

    def norm(self, *, dim: int, keepdim: bool = False) -> Tensor:
        """The root of the sum of squares along an axis; no gradient."""
        shape, count = without(self.shape, [dim], keepdim), self.count
        rows = product(shape)
        cost = Cost(multiplications=count, additions=count, other=rows, reduction_outputs=rows)
        return self.result(variable("norm"), shape, cost, [self])

    def minimum(self, other: Tensor) -> Tensor:
        """The smaller of two entries."""
        return pointwise.entrywise(variable("minimum"), OTHER, self, other)

    def maximum(self, other: Tensor) -> Tensor:
        """The larger of two entries."""
        return pointwise.entrywise(variable("maximum"), OTHER, self, other)

    def softmax(self, dim: int) -> Tensor:
        """Softmax along an axis."""
        return pointwise.softmax(variable("softmax"), self)

    def masked_fill(self, mask: Tensor, value: float) -> Tensor:
        """Overwritten where a mask is set."""
        return pointwise.masked(variable("masked fill"), self, mask)

    def masked_fill_(self, mask: Tensor, value: float) -> Tensor:
        """The same in place."""
        return pointwise.masked(variable("masked fill"), self, mask, into=self)

    def tril(self, diagonal: int = 0) -> Tensor:
        """Without what lies above a diagonal."""
        return pointwise.triangle(variable("lower triangle"), self)

    def tril_(self, diagonal: int = 0) -> Tensor:
        """The same in place."""
        return pointwise.triangle(variable("lower triangle"), self, into=self)

    def triu_(self, diagonal: int = 0) -> Tensor:
        """Without what lies below a diagonal, in place."""
        return pointwise.triangle(variable("upper triangle"), self, into=self)

    # -- along axes --------------------------------------------------------------------------
    def sum(self, dim: Any, keepdim: bool = False, dtype: type | None = None) -> Tensor:
        """The sum over an axis, or over several; ``dtype=int`` counts what is set in a mask."""
        if dtype is int:
            shape, size = without(self.shape, _dims(dim), keepdim), self.counter.bytes_of(NUMBER)
            name = variable("count")
            return self.result(name, shape, Cost(), [self], item_size=size, whole=True)
        return pointwise.summed(variable("sum"), self, _dims(dim), keepdim)

    def mean(self, dim: Any, keepdim: bool = False) -> Tensor:
        """The mean over an axis, or over several."""
        return pointwise.summed(variable("mean"), self, _dims(dim), keepdim, mean=True)

    def amax(self, dim: Any, keepdim: bool = False) -> Tensor:
        """The largest entry along an axis: a comparison an entry; no gradient."""
        shape = without(self.shape, _dims(dim), keepdim)
        return self.result(variable("largest"), shape, Cost(other=self.count), [self])

    def cummax(self, dim: int) -> _Cumulative:
        """Running maximum; the positions that torch gives with it live while it runs."""
        positions = self.count * self.counter.bytes_of(8)
        cost = Cost(other=self.count, bytes_moved=positions)
        name = variable("running maximum")
        return _Cumulative(self.result(name, self.shape, cost, [self], workspace=positions))


#: Arguments that torch's functions hand on and that change no count.
_WITHOUT = ("inplace", "_stacklevel", "dtype")


class _Cumulative(NamedTuple):
    values: Tensor


def _dims(dim: Any) -> Sequence[int]:
    return dim if isinstance(dim, tuple | list) else (dim,)
