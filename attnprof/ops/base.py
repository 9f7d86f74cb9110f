"""The base of counting tensors: shape, memory and gradient, from which every operation is built.

A tensor without values counts what torch would do: :meth:`Base.result` records an operation with
its cost and memory. The backward pass is a graph of nodes as autograd records them;
:meth:`Base.backward` runs it in the order of torch's engine, so that its memory peaks alike.
"""

import heapq
from collections import Counter as Multiset
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Self

from attnprof.costs import Cost, Number
from attnprof.errors import RequestError
from attnprof.ops.counter import Counter, Storage, as_flag
from attnprof.ops.layout import Layout, Shape, is_literally, product

#: The order of leaves, above that of any node: they run as soon as their gradients are there.
_LEAF_ORDER = 2**62

#: A function from the gradients of results to those of operands.
Backward = Callable[..., "Sequence[Base | None]"]


class Node:
    """One step of the backward pass: from the gradients of results to those of the operands.

    ``inputs`` has of each operand the node that made it and its index among that node's results;
    None where one needs no gradient. ``order`` is the number of the node: newer ones run earlier.
    Tensors that ``backward`` refers to live until the node has run, as those that autograd saves.
    """

    __slots__ = ("backward", "inputs", "order")

    def __init__(
        self, order: int, inputs: "Sequence[tuple[Node, int] | None]", backward: Backward | None
    ) -> None:
        self.order = order
        self.inputs = tuple(inputs)
        self.backward = backward

    def run(self, grads: "dict[int, Base]") -> "Sequence[Base | None]":
        """Return the operands' gradients, from the results' by index; free the saved tensors."""
        backward, self.backward = self.backward, None
        ordered = [grads.pop(index) for index in sorted(grads)]
        return backward(*ordered) if backward else ()


class Leaf(Node):
    """A parameter or an input, at the end of the backward pass; it keeps its first gradient."""

    __slots__ = ("gradient", "is_shared", "shape")

    def __init__(self, tensor: "Base") -> None:
        super().__init__(_LEAF_ORDER, (), None)
        self.shape = tensor.shape
        self.gradient: Base | None = None
        self.is_shared = False  # whether another tensor has the gradient's memory, too

    def run(self, grads: "dict[int, Base]") -> "Sequence[Base | None]":
        """Keep the gradient row by row; copy it if it is laid out otherwise or shares memory."""
        grad = grads.pop(0)
        copies = 1 if self.is_shared else grad.layout.differs(self.shape)
        rows = Layout.rows(self.shape)
        self.gradient = grad.copy_if(copies, "gradient in rows", self.shape, rows)
        return ()


def _run_backward(root: Node, grad: "Base") -> None:
    """Run the backward pass from the gradient of an output, newest node first.

    A gradient that two nodes wait for, or that the caller holds, is not written to: a leaf copies
    it, a sum takes new memory.
    """
    # edges that have yet to bring a gradient, and the gradients that have come, by node
    missing = Multiset(edge[0] for node in _reachable(root) for edge in node.inputs if edge)
    grads_of: dict[Node, dict[int, Base]] = defaultdict(dict, {root: {0: grad}})
    ready: list[tuple[int, int, Node]] = [(-root.order, 0, root)]
    new_grads: list[Base | None] = []
    count = 0

    def is_shared(part: "Base") -> bool:
        live_grads = chain([grad], new_grads, *(grads.values() for grads in grads_of.values()))
        return any(other is part for other in live_grads)

    while ready:
        node = heapq.heappop(ready)[2]
        grads = grads_of.pop(node)
        if isinstance(node, Leaf):
            node.is_shared = is_shared(grads[0])
        new_grads = list(node.run(grads))
        for position, edge in enumerate(node.inputs):
            if edge is None:
                continue
            target, index = edge
            part, new_grads[position] = new_grads[position], None
            missing[target] -= 1
            if part is not None:
                before = grads_of[target].pop(index, None)
                if before is not None:
                    part = _sum_of(before, part, in_place=not is_shared(before))
                grads_of[target][index] = part
                del before
            if not missing[target] and target in grads_of:
                count += 1
                heapq.heappush(ready, (-target.order, count, target))
            del part


def _reachable(root: Node) -> Iterator[Node]:
    visited, stack = {root}, [root]
    while stack:
        node = stack.pop()
        yield node
        fresh = {edge[0] for edge in node.inputs if edge} - visited
        visited |= fresh
        stack += fresh


def _sum_of(before: "Base", more: "Base", *, in_place: bool) -> "Base":
    """Return the sum of two gradients, in the memory of the first if nothing else holds that."""
    cost = Cost(additions=before.count)
    into = before if in_place and before.alone else None
    name, layout = "add gradients", before.layout
    return before.result(name, before.shape, cost, [before, more], into=into, layout=layout)


@dataclass(eq=False, repr=False, slots=True)
class Base:
    """A tensor's shape over its memory, which is free once Python drops the last tensor on it.

    It lies in ``storages``, each with a weight: 1, or an expression that is 1 at sizes at which it
    lies there, else 0. ``whole``: entries are integers or a mask; work on them has no FLOPs.
    """

    counter: Counter
    shape: Shape
    layout: Layout
    storages: Sequence[tuple[Storage, Number]]
    item_size: int
    label: str = ""  #: the stage that made its entries
    borrows: bool = False  #: whether it is a view of another tensor's memory
    whole: bool = False
    node: Node | None = None
    index: int = 0  #: its index among the results of its node

    def __post_init__(self) -> None:
        for storage, weight in self.storages:
            storage.holders.append(weight)

    def __del__(self) -> None:
        for storage, weight in self.storages:
            self.counter.release(storage, weight)

    # -- constructors ----------------------------------------------------------------------
    @classmethod
    def allocate(
        cls, counter: Counter, shape: Shape, layout: Layout | None = None, item_size: int = 0
    ) -> Self:
        """Return a tensor in memory of its own, row by row unless a layout says otherwise."""
        size = item_size or counter.item_size
        storages = ((Storage(product(shape) * size * counter.present), 1),)
        return cls(counter, shape, layout or Layout.rows(shape), storages, size)

    @classmethod
    def external(cls, counter: Counter, shape: Shape, layout: Layout | None = None) -> Self:
        """Return a tensor of the caller: no memory of the call, no gradient."""
        storages = ((Storage(0, external=True), 1),)
        return cls(counter, shape, layout or Layout.rows(shape), storages, counter.item_size)

    @classmethod
    def leaf(cls, counter: Counter, *shape: Number) -> Self:
        """Return an input or a weight: the caller's, with a gradient where autograd records."""
        tensor = cls.external(counter, shape)
        if counter.grad:
            tensor.node = Leaf(tensor)
        return tensor

    # -- properties ------------------------------------------------------------------------
    @property
    def count(self) -> Number:
        """Number of entries."""
        return product(self.shape)

    @property
    def size_bytes(self) -> Number:
        """Bytes of the entries."""
        return self.count * self.item_size

    @property
    def requires_grad(self) -> bool:
        """Whether the backward pass gives it a gradient."""
        return self.node is not None

    @property
    def alone(self) -> bool:
        """Whether its memory was allocated for it, in the call, and no other tensor lies there."""
        kept = (len(s.holders) == 1 and not s.external for s, _ in self.storages)
        return not self.borrows and all(kept)

    def dim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    # -- results of operations -------------------------------------------------------------
    def result(
        self, name: str, shape: Shape, cost: Cost, reads: "Sequence[Base]", *,
        backward: Backward | None = None, layout: Layout | None = None, into: Self | None = None,
        item_size: int = 0, whole: bool | None = None, keeps: Number = 0, workspace: Number = 0,
    ) -> Self:  # fmt: skip
        """Record one operation over ``reads`` (bytes, memory, backward node); return its result.

        ``into`` is overwritten and returned. A new result is ``whole`` if this tensor is, unless
        said otherwise. ``backward`` returns a gradient, or None, for each of ``reads``; ``keeps``
        are further bytes that autograd holds until then, ``workspace`` those that live during the
        operation. Raises :class:`RequestError` where autograd records and ``backward`` is None.
        """
        counter = self.counter
        counter.operations += 1
        out = into or self.allocate(counter, shape, layout, item_size or self.item_size)
        out.label = name
        if into is None:
            out.whole = self.whole if whole is None else whole
        if self.whole:
            cost = Cost(bytes_moved=cost.bytes_moved)
        moved = sum((tensor.size_bytes for tensor in reads), out.size_bytes)
        records = counter.grad and any(tensor.requires_grad for tensor in reads)
        if records and backward is None:
            raise RequestError(
                f"the counter has no gradient for the operation that makes '{name}': "
                "write it with others, or as a Function with its own backward pass"
            )
        kept = keeps if records else 0
        allocates = kept if into else out.size_bytes + kept
        counter.record(name, shape, cost + Cost(bytes_moved=moved), allocates, workspace)
        if records and backward:
            if kept:
                number = Base(counter, (), Layout.rows(()), ((Storage(kept), 1),), 1)
                backward = partial(_holding, number, backward)
            out.attach(reads, backward)
        return out

    def attach(self, inputs: "Sequence[Base | None]", backward: Backward, *others: "Base") -> None:
        """Attach ``backward`` to this result and others: it takes their gradients to the inputs."""
        self.counter.nodes += 1
        edges = [(x.node, x.index) if x is not None and x.node else None for x in inputs]
        node = Node(self.counter.nodes, edges, backward)
        for index, result in enumerate((self, *others)):
            result.node, result.index = node, index

    def alias(self, shape: Shape, layout: Layout, backward: Backward | None = None) -> Self:
        """Return another tensor on the same memory."""
        return self._sharing(shape, layout, self.storages, backward)

    def _sharing(
        self, shape: Shape, layout: Layout, storages: Any, backward: Backward | None
    ) -> Self:
        key = self.label, True, self.whole
        out = type(self)(self.counter, shape, layout, storages, self.item_size, *key)
        if self.counter.grad and backward and self.requires_grad:
            out.attach([self], backward)
        return out

    def detach(self) -> Self:
        """Return a tensor on the same memory, without a gradient."""
        return self.alias(self.shape, self.layout)

    def copy_if(
        self, flag: Number, name: str, shape: Shape, layout: Layout, cost: Cost | None = None,
        backward: Backward | None = None,
    ) -> Self:  # fmt: skip
        """Return a tensor in new memory at sizes at which ``flag`` is 1, else in this one's.

        The operation that fills it is a copy unless ``cost`` says otherwise. The result has the
        shape and layout; where ``flag`` is 0 it has as many entries as this tensor.
        """
        self.counter.operations += 1
        storages, size = self.storages, product(shape) * self.item_size * flag
        if not is_literally(flag, 0):
            cost = (cost or Cost(bytes_moved=2 * self.size_bytes)) * flag
            self.counter.record(name, shape, cost, size)
            shared = [(storage, as_flag(weight * (1 - flag))) for storage, weight in storages]
            copy = Storage(size * self.counter.present)
            storages = ((copy, 1), *([] if is_literally(flag, 1) else shared))
        return self._sharing(shape, layout, storages, backward)

    def backward(self) -> None:
        """Run the backward pass from a gradient of ones that the caller holds."""
        counter = self.counter
        counter.grad, counter.part = False, "backward"
        root, self.node = self.node, None
        if root is not None:
            _run_backward(root, self.external(counter, self.shape, self.layout))


def _holding(_number: Base, backward: Backward, grad: Any) -> Any:
    """Run the backward function; a partial of this keeps ``_number`` alive until then."""
    return backward(grad)
