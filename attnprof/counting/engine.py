"""The tape: what a module executes, written once, for every phase.

A mechanism's ``spec.py`` writes the operations of its forward pass. The tape counts them,
follows every storage from its first holder to its last, remembers what autograd would save,
and plays the backward pass in the order of torch's engine: newest node first, a node's saved
tensors released when it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from attnprof.costs import Cost, CostTable, Number, Stage, at_least_one

Shape = tuple[Number, ...]


@dataclass(slots=True, eq=False)
class Storage:
    """Memory with holders; freed when the last one lets go. Inputs and parameters are external."""

    size: Number
    external: bool = False
    holders: int = 1


@dataclass(slots=True, eq=False)
class Tensor:
    """A shape over a storage; a view shares the storage of its base."""

    shape: Shape
    storage: Storage
    item_size: int
    requires_grad: bool = False
    node: Node | None = None

    @property
    def count(self) -> Number:
        """Number of elements."""
        return product(self.shape)

    @property
    def size(self) -> Number:
        """Bytes of the elements."""
        return self.count * self.item_size


Gradients = list[tuple[Tensor, Tensor | None]]
Backward = Callable[[Tensor], Gradients]


@dataclass(slots=True, eq=False)
class Node:
    """One step of the backward pass: an operation that produced a tensor needing gradients."""

    name: str
    backward: Backward
    saved: Sequence[Tensor]
    gradient: Tensor | None = None


def product(shape: Sequence[Number]) -> Number:
    """The number of elements of a shape."""
    count: Number = 1
    for size in shape:
        count = count * size
    return count


@dataclass
class Engine:
    """Stages so far, who needs gradients, and the bookkeeping of the backward pass.

    ``item_size`` is the number of bytes of an element; ``grad`` tells whether autograd
    records (phases ``backward`` and ``train``).
    """

    item_size: int
    grad: bool = False
    stages: list[Stage] = field(default_factory=list)
    parameter_count: Number = 0
    part: str = "forward"
    _nodes: list[Node] = field(default_factory=list)
    _leaves: dict[Tensor, Tensor | None] = field(default_factory=dict)
    _times: list[tuple[Number, Number]] = field(default_factory=list)

    # -- tensors ---------------------------------------------------------------------
    def input(self, *shape: Number, requires_grad: bool = True) -> Tensor:
        """A tensor the caller already holds: it needs a gradient, its memory is not counted."""
        tensor = Tensor(shape, Storage(0, external=True), self.item_size)
        tensor.requires_grad = self.grad and requires_grad
        if tensor.requires_grad:
            self._leaves[tensor] = None
        return tensor

    def parameter(self, *shape: Number) -> Tensor:
        """A weight: an input that is counted as a parameter."""
        self.parameter_count = self.parameter_count + product(shape)
        return self.input(*shape)

    def constant(self, *shape: Number, item_size: int | None = None) -> Tensor:
        """A buffer of the module (a mask, a table): no gradient, no memory of the call."""
        size = self.item_size if item_size is None else item_size
        return Tensor(shape, Storage(0, external=True), size)

    def empty(self, name: str, *shape: Number) -> Tensor:
        """Memory that something writes to later: allocated, not yet moved."""
        out = Tensor(shape, Storage(product(shape) * self.item_size), self.item_size)
        self.record(name, shape, Cost(), out.storage.size)
        return out

    def held(self, size: Number) -> Tensor:
        """A few bytes that come alive with the last stage, for whoever keeps them."""
        size = size if self.item_size > 1 else 1
        tensor = Tensor((1,), Storage(size * self._present()), size)
        last = self.stages[-1]
        self.stages[-1] = replace(last, allocates=last.allocates + tensor.storage.size)
        return tensor

    def free(self, *tensors: Tensor) -> None:
        """The module lets go of these tensors: their memory dies unless someone holds it."""
        for tensor in tensors:
            storage = tensor.storage
            storage.holders -= 1
            if storage.holders == 0 and not storage.external:
                self._free_bytes(storage.size)

    def _free_bytes(self, size: Number) -> None:
        if not self.stages:
            return
        last = self.stages[-1]
        self.stages[-1] = replace(last, frees=last.frees + size * self._present())

    # -- operations ------------------------------------------------------------------
    def emit(
        self,
        name: str,
        shape: Shape,
        cost: Cost,
        reads: Sequence[Tensor] = (),
        *,
        workspace: Number = 0,
        item_size: int | None = None,
        into: Tensor | None = None,
        backward: Backward | None = None,
        saves: Sequence[Tensor] = (),
    ) -> Tensor:
        """Record one operation and return its result.

        ``reads`` are its operands (their bytes are counted; one that needs a gradient makes the
        result need one), ``into`` the tensor it overwrites in place, ``saves`` what its
        ``backward`` needs.
        """
        size = self.item_size if item_size is None else item_size
        out = Tensor(shape, into.storage if into else Storage(0), size)
        if into is None:
            out.storage.size = out.size
        moved = sum((tensor.size for tensor in reads), out.size)
        allocates = 0 if into else out.size
        cost = replace(cost, bytes_moved=cost.bytes_moved + moved)
        self.record(name, shape, cost, allocates, workspace=workspace)
        if self.grad and backward and any(tensor.requires_grad for tensor in reads):
            self.attach(out, name, backward, saves)
        return out

    def record(
        self,
        name: str,
        shape: Shape,
        cost: Cost,
        allocates: Number = 0,
        *,
        frees: Number = 0,
        workspace: Number = 0,
    ) -> None:
        """Append a stage as it is, without a tensor."""
        for times, _ in self._times:
            cost = cost * times
        here = self._present()
        stage = Stage(
            name, shape, cost, allocates * here, frees * here, workspace * here, self.part
        )
        self.stages.append(stage)

    def view(self, tensor: Tensor, *shape: Number) -> Tensor:
        """The same storage under another shape; holds it until freed itself. No cost."""
        return self.alias(tensor, shape, lambda grad: [(tensor, self.view(grad, *tensor.shape))])

    def alias(self, tensor: Tensor, shape: Shape, backward: Backward) -> Tensor:
        """A tensor on the storage of another one, with its own backward."""
        tensor.storage.holders += 1
        out = Tensor(shape, tensor.storage, tensor.item_size)
        if self.grad and tensor.requires_grad:
            self.attach(out, "view", backward, ())
        return out

    def custom(
        self, name: str, out: Tensor, inputs: Sequence[Tensor], backward: Backward
    ) -> Tensor:
        """Make ``out``, written without one, the result of a function with its own backward.

        As ``torch.autograd.Function``: ``inputs`` are saved, ``backward`` writes its stages.
        """
        if self.grad and any(tensor.requires_grad for tensor in inputs):
            self.attach(out, name, backward, inputs)
        return out

    def attach(self, out: Tensor, name: str, backward: Backward, saves: Sequence[Tensor]) -> None:
        """Make a result need gradients: its backward, and what that keeps alive until then."""
        node = Node(name, backward, tuple(saves))
        for tensor in saves:
            tensor.storage.holders += 1
        out.requires_grad, out.node = True, node
        self._nodes.append(node)

    # -- repetition ------------------------------------------------------------------
    @contextmanager
    def repeat(self, times: Number) -> Iterator[None]:
        """What is written inside runs ``times`` times and leaves nothing of its own alive."""
        self._times.append((times, at_least_one(times)))
        yield
        self._times.pop()

    @contextmanager
    def when(self, flag: Number) -> Iterator[None]:
        """What is written inside is executed where ``flag`` is 1 and not where it is 0."""
        self._times.append((flag, flag))
        yield
        self._times.pop()

    def _present(self) -> Number:
        """1 if the surrounding repetitions run at least once, else 0."""
        here: Number = 1
        for _, present in self._times:
            here = here * present
        return here

    # -- the backward pass -------------------------------------------------------------
    def backward(self, output: Tensor) -> None:
        """Play the backward pass from an output gradient that the caller holds."""
        self.grad, self.part = False, "backward"
        if output.node is None:
            return
        output.node.gradient = self.constant(*output.shape)
        nodes, self._nodes = self._nodes, []
        while nodes:
            node = nodes.pop()
            gradient = node.gradient
            if gradient is None:
                continue
            for tensor, grad in node.backward(gradient):
                if grad is not None and tensor.requires_grad:
                    self._accumulate(tensor, grad)
                elif grad is not None:
                    self.free(grad)
            node.gradient = None
            self.free(*node.saved, gradient)

    def _accumulate(self, tensor: Tensor, grad: Tensor) -> None:
        """Add to the gradient that waits for a tensor; the first one is kept as it is.

        In place, as torch does, where nothing else holds the waiting gradient's memory.
        """
        before = tensor.node.gradient if tensor.node else self._leaves[tensor]
        if before is not None:
            alone = before.storage.holders == 1 and not before.storage.external
            cost = Cost(additions=tensor.count)
            reads = [before, grad]
            into = before if alone else None
            summed = self.emit("add gradients", tensor.shape, cost, reads, into=into)
            self.free(grad) if alone else self.free(before, grad)
            grad = summed
        if tensor.node:
            tensor.node.gradient = grad
        else:
            self._leaves[tensor] = grad

    def table(self, only: str | None = None) -> CostTable:
        """The stages as a table; ``only`` keeps one part, what it finds alive goes before it."""
        stages = self.stages
        if only is None:
            return CostTable(tuple(stages), self.parameter_count)
        first = next((i for i, s in enumerate(stages) if s.part == only), len(stages))
        before = sum((s.allocates - s.frees for s in stages[:first]), 0)
        return CostTable(tuple(stages[first:]), self.parameter_count, live_before=before)
