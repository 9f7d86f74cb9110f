"""The backward pass: nodes as autograd records them, played in the order of torch's engine."""

from __future__ import annotations

import heapq
from collections import Counter as Multiset
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from attnprof.costs import Cost
from attnprof.ops.layout import Layout

if TYPE_CHECKING:
    from attnprof.ops.base import Base as Tensor

#: Leaves run as soon as their gradients are there: before any other node.
_LAST = 2**62

Backward = Callable[[Any], "Sequence[Tensor | None]"]


class Node:
    """One step of the backward pass: from the gradient of a result to those of its operands.

    ``inputs`` are the nodes of the operands, None where one needs no gradient. What the backward
    function refers to is what autograd saves; it lives until the node has run.
    """

    __slots__ = ("backward", "inputs", "order")

    def __init__(
        self, order: int, inputs: Sequence[Node | None], backward: Backward | None
    ) -> None:
        self.order = order
        self.inputs = tuple(inputs)
        self.backward = backward

    def run(self, grad: Tensor) -> Sequence[Tensor | None]:
        """The operands' gradients; what was saved is let go."""
        backward, self.backward = self.backward, None
        return backward(grad) if backward else ()


class Leaf(Node):
    """Where a gradient ends: that of a parameter or an input, which keeps the first it gets."""

    __slots__ = ("gradient", "shape")

    def __init__(self, tensor: Tensor) -> None:
        super().__init__(_LAST, (), None)
        self.shape = tensor.shape
        self.gradient: Tensor | None = None

    def run(self, grad: Tensor) -> Sequence[Tensor | None]:
        """Keep the gradient; laid out as the tensor is, for which it may have to be copied."""
        copies = grad.layout.differs(self.shape)
        rows = Layout.rows(self.shape)
        self.gradient = grad.where(copies, "gradient in rows", self.shape, rows)
        return ()


def play(root: Node, grad: Tensor) -> None:
    """Run the backward pass from the gradient of an output, newest node first."""
    waiting = Multiset(node for parent in _reachable(root) for node in parent.inputs if node)
    arrived: dict[Node, Tensor] = {root: grad}
    ready: list[tuple[int, int, Node]] = [(-root.order, 0, root)]
    del grad
    count = 0
    while ready:
        node = heapq.heappop(ready)[2]
        given = list(node.run(arrived.pop(node)))
        for place, target in enumerate(node.inputs):
            if target is None:
                continue
            part, given[place] = given[place], None
            waiting[target] -= 1
            if part is not None:
                before = arrived.pop(target, None)
                arrived[target] = part if before is None else _added(before, part)
                del before
            if not waiting[target] and target in arrived:
                count += 1
                heapq.heappush(ready, (-target.order, count, target))
            del part


def _reachable(root: Node) -> Iterator[Node]:
    seen, stack = {root}, [root]
    while stack:
        node = stack.pop()
        yield node
        fresh = {parent for parent in node.inputs if parent} - seen
        seen |= fresh
        stack += fresh


def _added(before: Tensor, more: Tensor) -> Tensor:
    """The sum of two gradients; in the memory of the first, where nothing else holds that."""
    cost = Cost(additions=before.count)
    into = before if before.alone else None
    return before.result("add gradients", before.shape, cost, [before, more], into=into)
