"""The backward pass: nodes as autograd records them, played in the order of torch's engine."""

import heapq
from collections import Counter as Multiset
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from attnprof.costs import Cost
from attnprof.ops.layout import Layout

if TYPE_CHECKING:
    from attnprof.ops.base import Base

#: Leaves run as soon as their gradients are there: before any other node.
_LAST = 2**62

#: From the gradients of results to those of operands.
Backward = Callable[..., "Sequence[Base | None]"]


class Node:
    """One step of the backward pass: from the gradients of results to those of the operands.

    ``inputs`` are the nodes of the operands, each with the place of the operand among that node's
    results; None where one needs no gradient. What the backward function refers to is what
    autograd saves; it lives until the node has run.
    """

    __slots__ = ("backward", "inputs", "order")

    def __init__(
        self, order: int, inputs: "Sequence[tuple[Node, int] | None]", backward: Backward | None
    ) -> None:
        self.order = order
        self.inputs = tuple(inputs)
        self.backward = backward

    def run(self, grads: "dict[int, Base]") -> "Sequence[Base | None]":
        """The operands' gradients, given the results' by place; what was saved is let go."""
        backward, self.backward = self.backward, None
        given = [grads.pop(place) for place in sorted(grads)]
        return backward(*given) if backward else ()


class Leaf(Node):
    """Where a gradient ends: that of a parameter or an input, which keeps the first it gets."""

    __slots__ = ("gradient", "shape", "taken")

    def __init__(self, tensor: "Base") -> None:
        super().__init__(_LAST, (), None)
        self.shape = tensor.shape
        self.gradient: Base | None = None
        self.taken = False  # whether the gradient belongs to somebody else, too

    def run(self, grads: "dict[int, Base]") -> "Sequence[Base | None]":
        """Keep the gradient; laid out as the tensor is, for which it may have to be copied."""
        grad = grads.pop(0)
        copies = 1 if self.taken else grad.layout.differs(self.shape)
        rows = Layout.rows(self.shape)
        self.gradient = grad.where(copies, "gradient in rows", self.shape, rows)
        return ()


def play(root: Node, grad: "Base") -> None:
    """Run the backward pass from the gradient of an output, newest node first.

    A gradient that waits in two places, or that the caller holds, is nobody's to keep or to add
    to: a leaf copies it, a sum takes new memory.
    """
    waiting = Multiset(edge[0] for node in _reachable(root) for edge in node.inputs if edge)
    arrived: dict[Node, dict[int, Base]] = defaultdict(dict, {root: {0: grad}})
    ready: list[tuple[int, int, Node]] = [(-root.order, 0, root)]
    given: list[Base | None] = []
    count = 0

    def shared(part: "Base") -> bool:
        held = chain([grad], given, *(grads.values() for grads in arrived.values()))
        return any(other is part for other in held)

    while ready:
        node = heapq.heappop(ready)[2]
        grads = arrived.pop(node)
        if isinstance(node, Leaf):
            node.taken = shared(grads[0])
        given = list(node.run(grads))
        for position, edge in enumerate(node.inputs):
            if edge is None:
                continue
            target, place = edge
            part, given[position] = given[position], None
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
    seen, stack = {root}, [root]
    while stack:
        node = stack.pop()
        yield node
        fresh = {edge[0] for edge in node.inputs if edge} - seen
        seen |= fresh
        stack += fresh


def _added(before: "Base", more: "Base", *, in_place: bool) -> "Base":
    """The sum of two gradients; in the memory of the first, where nothing else holds that."""
    cost = Cost(additions=before.count)
    into = before if in_place and before.alone else None
    name, layout = "add gradients", before.layout
    return before.result(name, before.shape, cost, [before, more], into=into, layout=layout)
