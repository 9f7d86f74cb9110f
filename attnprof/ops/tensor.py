"""The counting tensor: torch's method names, shapes that may be symbols, no values."""

from collections.abc import Callable, Sequence
from typing import Any

from attnprof.costs import Cost
from attnprof.errors import RequestError
from attnprof.ops import arithmetic
from attnprof.ops.counter import variable
from attnprof.ops.layout import product
from attnprof.ops.shaped import Ordered, Shaped


def _function(
    name: str, cost: Cost, grad_cost: Cost | None = None, *, in_place: bool = False,
    saves: str = "result", **options: Any,
) -> Callable[..., Any]:  # fmt: skip
    """Return a method that computes each entry from those of its operands; numbers cost nothing.

    The stage has that name. The gradient costs ``grad_cost`` an entry; ``saves`` says whether it is
    made from the operand or the result. Without a cost there is none.
    """

    def method(self: "Tensor", *others: Any, **_numbers: float | None) -> "Tensor":
        stage = variable(name)
        kept: list[Tensor] = []

        def backward(grad: "Tensor") -> "list[Tensor]":
            return [arithmetic.entrywise(f"{stage}: grad", grad_cost or Cost(), grad, *kept)]

        operands = [self, *(x for x in others if isinstance(x, Tensor))]
        into, run = self if in_place else None, backward if grad_cost else None
        out = arithmetic.entrywise(stage, cost, *operands, into=into, backward=run, **options)
        if out.requires_grad and saves:
            kept.append(out.detach() if saves == "result" else self)
        return out

    method.__doc__ = f"The {name} of every entry{', in place' if in_place else ''}."
    return method


def _operation(
    name: str, run: Callable[..., Any], *, in_place: bool = False, **settings: Any
) -> Callable[..., Any]:
    """Return a method that calls ``run`` with the stage's name, the tensor and arguments."""

    def method(self: "Tensor", *others: Any, **more: Any) -> Any:
        into = {"into": self} if in_place else {}
        return run(variable(name), self, *others, **into, **settings, **more)

    method.__doc__ = f"{run.__doc__}{' In place.' if in_place else ''}"
    return method


class Tensor(Shaped):
    """The tensor with which a mechanism's text is run to be counted; its methods are torch's.

    A stage is called as the variable that its result is stored in, else as the operation. A
    method with an underscore at its end writes to the tensor's memory. Comparisons and triangles of
    masks cost no FLOPs.
    """

    __slots__ = ()

    @classmethod
    def __torch_function__(cls, function: Any, _types: Any, args: Any, named: Any = None) -> Any:
        """Run the method named like a torch function; torch calls this for its functions."""
        name = "join" if function.__name__ in ("cat", "concat") else function.__name__
        if not hasattr(cls, name):
            raise RequestError(
                f"the counter has no torch.{function.__name__}; it has the methods of "
                "attnprof.ops.tensor.Tensor"
            )
        options = {key: value for key, value in (named or {}).items() if key not in _WITHOUT}
        return getattr(cls, name)(*args, **options)

    @staticmethod
    def join(parts: "Sequence[Tensor]", dim: int = 0) -> "Tensor":
        """Return tensors one after the other along an axis (torch.cat); gradients are slices."""
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
    bmm = _operation("bmm", arithmetic.product_of)
    mm = _operation("mm", arithmetic.product_of)
    matmul = __matmul__ = _operation("matmul", arithmetic.matmul)

    def baddbmm(self, a: "Tensor", b: "Tensor") -> "Tensor":
        """Add the batched product of two others to this tensor, which broadcasts; no gradient."""
        shape, cost = arithmetic.product_cost(a.shape, b.shape)
        cost = cost + Cost(additions=product(shape))
        return self.result(variable("baddbmm"), shape, cost, [self, a, b])

    def linear(self, weight: "Tensor", bias: "Tensor | None" = None, name: str = "") -> "Tensor":
        """Return (…, k) times weight (n, k) transposed, plus bias."""
        return arithmetic.linear(name or variable("linear"), self, weight, bias)

    # -- arithmetic ------------------------------------------------------------------------
    add = _operation("add", arithmetic.added)
    add_ = _operation("add", arithmetic.added, in_place=True)
    sub = _operation("subtract", arithmetic.added, minus=True)
    sub_ = _operation("subtract", arithmetic.added, in_place=True, minus=True)
    mul_ = _operation("multiply", arithmetic.multiplied, in_place=True)
    div_ = _operation("divide", arithmetic.divided, in_place=True)
    __mul__ = __rmul__ = _operation("multiply", arithmetic.multiplied)
    __truediv__ = _operation("divide", arithmetic.divided)
    __add__ = __radd__ = add
    __sub__ = sub
    masked_fill = _operation("masked fill", arithmetic.masked)
    masked_fill_ = _operation("masked fill", arithmetic.masked, in_place=True)
    tril = _operation("lower triangle", arithmetic.triangle)
    tril_ = _operation("lower triangle", arithmetic.triangle, in_place=True)
    triu_ = _operation("upper triangle", arithmetic.triangle, in_place=True)
    softmax = _operation("softmax", arithmetic.softmax)

    # -- functions of an entry ---------------------------------------------------------------
    __rsub__ = _function("subtract", arithmetic.ADD)  # a number less every entry
    lerp = _function("lerp", arithmetic.LERP)  # x + weight · (end - x)
    # plus a product, or minus one
    addcmul_ = _function("add product", arithmetic.ADD + arithmetic.TIMES, in_place=True)
    minimum = _function("minimum", arithmetic.OTHER)
    maximum = _function("maximum", arithmetic.OTHER)
    remainder = __mod__ = _function("remainder", arithmetic.OVER)
    remainder_ = _function("remainder", arithmetic.OVER, in_place=True)
    eq = _function("equal", arithmetic.OTHER, item_size=1, whole=True)
    __lt__ = _function("smaller", arithmetic.OTHER, item_size=1, whole=True)
    __gt__ = _function("larger", arithmetic.OTHER, item_size=1, whole=True)
    logical_or_ = _function("either", Cost(), in_place=True)
    __neg__ = _function("negative", arithmetic.OTHER, arithmetic.OTHER, saves="")
    neg_ = _function("negative", arithmetic.OTHER, arithmetic.OTHER, saves="", in_place=True)
    exp = _function("exponential", arithmetic.EXP, arithmetic.TIMES)
    exp_ = _function("exponential", arithmetic.EXP, arithmetic.TIMES, in_place=True)
    sigmoid = _function("sigmoid", arithmetic.SIGMOID, arithmetic.SQUASHED)
    cos = _function("cosine", arithmetic.OTHER)
    sin = _function("sine", arithmetic.OTHER)
    tanh = _function("tanh", arithmetic.OTHER, arithmetic.SQUASHED)
    relu = _function("relu", arithmetic.OTHER, arithmetic.OTHER)
    relu_ = _function("relu", arithmetic.OTHER, arithmetic.OTHER, in_place=True)
    silu = _function("silu", arithmetic.SIGMOID, arithmetic.SILU_BACKWARD, saves="operand")
    reciprocal = _function("reciprocal", arithmetic.OVER)
    reciprocal_ = _function("reciprocal", arithmetic.OVER, in_place=True)
    abs = _function("absolute", arithmetic.OTHER)
    log_ = _function("logarithm", arithmetic.OTHER, in_place=True)
    sqrt_ = _function("root", arithmetic.OTHER, in_place=True)
    clamp = _function("clamp", arithmetic.OTHER)  # min= or max=, a number
    clamp_ = _function("clamp", arithmetic.OTHER, in_place=True)
    gt_ = _function("is larger", arithmetic.OTHER, in_place=True)  # than a number: 1, else 0

    def norm(self, *, dim: int, keepdim: bool = False) -> "Tensor":
        """Return the root of the sum of squares along an axis; no gradient."""
        shape, count = arithmetic.without(self.shape, dim, keepdim), self.count
        rows = product(shape)
        cost = Cost(multiplications=count, additions=count, other=rows, reduction_outputs=rows)
        return self.result(variable("norm"), shape, cost, [self])

    # -- along axes --------------------------------------------------------------------------
    def sum(self, dim: Any, keepdim: bool = False, dtype: type | None = None) -> "Tensor":
        """Return the sum over one or several axes; ``dtype=int`` counts a mask's True entries."""
        if dtype is int:
            shape, name = arithmetic.without(self.shape, dim, keepdim), variable("count")
            size = self.counter.bytes_of(arithmetic.NUMBER)
            return self.result(name, shape, Cost(), [self], item_size=size, whole=True)
        return arithmetic.summed(variable("sum"), self, dim, keepdim)

    def mean(self, dim: Any, keepdim: bool = False) -> "Tensor":
        """Return the mean over an axis, or over several."""
        return arithmetic.summed(variable("mean"), self, dim, keepdim, mean=True)

    def amax(self, dim: Any, keepdim: bool = False) -> "Tensor":
        """Return the largest entry along an axis: a comparison an entry; no gradient."""
        shape = arithmetic.without(self.shape, dim, keepdim)
        return self.result(variable("largest"), shape, Cost(other=self.count), [self])

    def cumsum(self, dim: int) -> "Tensor":
        """Return running sums along an axis: an addition an entry; no gradient."""
        cost = Cost(additions=self.count)
        return self.result(variable("running sum"), self.shape, cost, [self])

    def cummax(self, dim: int) -> Ordered:
        """Return the running maximum; torch's positions beside it live while it is computed."""
        positions = self.count * self.counter.bytes_of(8)
        cost = Cost(other=self.count, bytes_moved=positions)
        name = variable("running maximum")
        return Ordered(self.result(name, self.shape, cost, [self], workspace=positions))


#: Arguments of torch's functions that change no count.
_WITHOUT = ("inplace", "_stacklevel", "dtype")
