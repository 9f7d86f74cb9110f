"""The base of counting tensors: shape, memory and gradient, from which every operation is built.

The backward pass is a graph of nodes as autograd records them, played in the order of torch's
engine.
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
from attnprof.ops.counter import Counter, Storage
from attnprof.ops.flags import as_flag
from attnprof.ops.layout import Layout, Shape, is_literally, product

#: Leaves run as soon as their gradients are there: before any other node.
_LAST = 2**62

#: A function from the gradients of results to those of operands.
Backward = Callable[..., "Sequence[Base | None]"]


class Node:
    """One step of the backward pass: from the gradients of results to those of the operands.

    ``inputs`` are the nodes of the operands, each with the place of the operand among that node's
    results; None where one needs no gradient. Autograd saves the tensors that the backward function
    refers to: they live until the node has run.
    """

    __slots__ = ("backward", "inputs", "order")

    def __init__(
        self, order: int, inputs: "Sequence[tuple[Node, int] | None]", backward: Backward | None
    ) -> None:
        self.order = order
        self.inputs = tuple(inputs)
        self.backward = backward

    def run(self, grads: "dict[int, Base]") -> "Sequence[Base | None]":
        """Return the operands' gradients, from the results' by place; free the saved tensors."""
        backward, self.backward = self.backward, None
        ordered = [grads.pop(place) for place in sorted(grads)]
        return backward(*ordered) if backward else ()


class Leaf(Node):
    """A parameter or an input, at the end of the backward pass; it keeps its first gradient."""

    __slots__ = ("gradient", "is_shared", "shape")

    def __init__(self, tensor: "Base") -> None:
        super().__init__(_LAST, (), None)
        self.shape = tensor.shape
        self.gradient: Base | None = None
        self.is_shared = False  # whether another tensor has the gradient's memory, too

    def run(self, grads: "dict[int, Base]") -> "Sequence[Base | None]":
        """Keep the gradient; laid out as the tensor is, for which it may have to be copied."""
        grad = grads.pop(0)
        copies = 1 if self.is_shared else grad.layout.differs(self.shape)
        rows = Layout.rows(self.shape)
        self.gradient = grad.where(copies, "gradient in rows", self.shape, rows)
        return ()


def play(root: Node, grad: "Base") -> None:
    """Run the backward pass from the gradient of an output, newest node first.

    A gradient that waits in two places, or that the caller holds, is not written to: a leaf copies
    it, a sum takes new memory.
    """
    waiting = Multiset(edge[0] for node in _reachable(root) for edge in node.inputs if edge)
    arrived: dict[Node, dict[int, Base]] = defaultdict(dict, {root: {0: grad}})
    ready: list[tuple[int, int, Node]] = [(-root.order, 0, root)]
    passed: list[Base | None] = []
    count = 0

    def shared(part: "Base") -> bool:
        live_grads = chain([grad], passed, *(grads.values() for grads in arrived.values()))
        return any(other is part for other in live_grads)

    while ready:
        node = heapq.heappop(ready)[2]
        grads = arrived.pop(node)
        if isinstance(node, Leaf):
            node.is_shared = shared(grads[0])
        passed = list(node.run(grads))
        for position, edge in enumerate(node.inputs):
            if edge is None:
                continue
            target, place = edge
            part, passed[position] = passed[position], None
            waiting[target] -= 1
            if part is not None:
                before = arrived[target].pop(place, None)
                if before is not None:
                    part = _added(before, part, in_place=not shared(before))
                arrived[target][place] = part
                del before
            if not waiting[target] and target in arrived:
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


def _added(before: "Base", more: "Base", *, in_place: bool) -> "Base":
    """Return the sum of two gradients, in the memory of the first if nothing else holds that."""
    cost = Cost(additions=before.count)
    into = before if in_place and before.alone else None
    name, layout = "add gradients", before.layout
    return before.result(name, before.shape, cost, [before, more], into=into, layout=layout)


@dataclass(eq=False, repr=False, slots=True)
class Base:
    """A tensor's shape over its memory, which is free once Python drops the last tensor on it.

    It lies in ``storages``, each with a weight: 1, or the condition under which it lies there.
    ``whole``: entries are whole numbers or a mask, work on which costs bytes alone.
    """

    counter: Counter
    shape: Shape
    layout: Layout
    storages: Sequence[tuple[Storage, Number]]
    item_size: int
    label: str = ""  #: the stage that made its entries
    borrows: bool = False  #: whether it looks at memory that another tensor was made with
    whole: bool = False
    node: Node | None = None
    place: int = 0  #: which of its node's results it is

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
        """Return a tensor the caller already holds: no memory of the call, no gradient."""
        storages = ((Storage(0, external=True), 1),)
        return cls(counter, shape, layout or Layout.rows(shape), storages, counter.item_size)

    @classmethod
    def leaf(cls, counter: Counter, *shape: Number) -> Self:
        """Return an input or a weight: given, and with a gradient where autograd records."""
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
        """Whether the backward pass reaches it."""
        return self.node is not None

    @property
    def alone(self) -> bool:
        """Whether its memory was made with it, in the call, and no other tensor lies there."""
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

        ``into`` is overwritten and returned. A new result holds whole numbers if this tensor does,
        unless ``whole`` says otherwise. ``backward`` gives a gradient for each of ``reads``,
        or None; ``keeps`` are further bytes that autograd holds until then,
        ``workspace`` bytes that live while the operation runs.
        Raises :class:`RequestError` where autograd needs a ``backward`` and there is none.
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
        edges = [(x.node, x.place) if x is not None and x.node else None for x in inputs]
        node = Node(self.counter.nodes, edges, backward)
        for place, result in enumerate((self, *others)):
            result.node, result.place = node, place

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

    def where(
        self, flag: Number, name: str, shape: Shape, layout: Layout, cost: Cost | None = None,
        backward: Backward | None = None,
    ) -> Self:  # fmt: skip
        """Return a tensor in new memory where ``flag`` is 1 (by default a copy), else in its own.

        The result has the given shape and layout, of as many entries if it stays in this memory.
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
        """Play the backward pass from a gradient of ones that the caller holds."""
        counter = self.counter
        counter.grad, counter.part = False, "backward"
        root, self.node = self.node, None
        if root is not None:
            play(root, self.external(counter, self.shape, self.layout))


def _holding(_number: Base, backward: Backward, grad: Any) -> Any:
    """Run the backward function; a partial of this keeps ``_number`` alive until then."""
    return backward(grad)
