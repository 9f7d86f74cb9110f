"""A mechanism's text run with counting tensors: weights, inputs, caches and the layer around it."""

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from attnprof.costs import Cost, CostTable, Number, is_symbolic, maximum, minimum
from attnprof.ops.counter import Counter
from attnprof.ops.groups import product
from attnprof.ops.layer import MAPS, CoreText, LayerSizes, LayerText, OwnText
from attnprof.ops.tensor import Tensor
from attnprof.workload import SIZES, Workload

if TYPE_CHECKING:
    from attnprof.mechanism import Mechanism


class Weights:
    """Parameters by name, made as they are declared; ``count`` is the number of their entries."""

    def __init__(self, counter: Counter) -> None:
        self.counter = counter
        self.count: Number = 0

    def add(self, *shape: Number, drawn: bool = False) -> Tensor:
        """One more parameter, or a buffer that is ``drawn``."""
        if drawn:
            return Tensor.given(self.counter, shape)
        self.count = self.count + product(shape)
        return Tensor.leaf(self.counter, *shape)


@dataclass
class Cache:
    """A decoder's rows of earlier tokens: what appending one more moves."""

    counter: Counter
    batch: Number
    width: Number
    length: Number
    first: Number = 0
    latest: Number | None = None

    def append(self, row: Tensor) -> Tensor:
        """The row is stored; all rows in sight are memory the decoder holds already.

        The ``first`` tokens and the ``latest`` of the others; all of them where that is None.
        """
        moved = Cost(bytes_moved=2 * row.size_bytes)
        self.counter.operations += 1
        self.counter.record("append to cache", row.shape, moved)
        self.length = self.length + 1
        seen = self.length
        if self.latest is not None:
            others = maximum(0, self.length - self.first)
            seen = minimum(self.length, self.first) + minimum(others, self.latest)
        return Tensor.given(self.counter, (self.batch, seen, self.width))


@dataclass(frozen=True)
class CountedCaches:
    """Makes what a decoder holds after all tokens before the last; (heads, …) without the batch."""

    counter: Counter
    workload: Workload

    def __call__(
        self, heads: Number, width: Number, first: Number = 0, latest: Number | None = None
    ) -> Cache:
        """Rows of these tokens; or of the first of them, and the latest of the others."""
        w = self.workload
        return Cache(self.counter, w.batch_size * heads, width, w.seq_len - 1, first, latest)

    window = __call__

    def zeros(self, heads: Number, *shape: Number, wide: bool = False) -> Tensor:
        """Sums of these tokens, in float32 at least if ``wide``."""
        size = self.counter.item_size
        held = Tensor.given(self.counter, (self.workload.batch_size * heads, *shape))
        held.item_size = 4 if wide and size == 2 else size
        return held

    lowest = zeros

    def counts(self, heads: Number) -> Tensor:
        """A whole number each."""
        held = self.zeros(heads)
        held.item_size, held.whole = self.counter.bytes_of(8), True
        return held


class CountedCore(CoreText):
    """The text between queries, keys, values and the heads' outputs, called as a module is."""

    __call__ = CoreText.forward


def counted(spec: "Mechanism", workload: Workload, scope: str) -> CostTable:
    """What a mechanism's text executes for a workload, by stage."""
    heads, groups = workload.num_heads, workload.num_kv_heads
    if groups is None or not is_symbolic(heads, groups):
        return _counted(spec, workload, scope)
    import sympy

    # heads are the groups times what shares one, so that either may be one
    shared = sympy.Dummy(positive=True)
    table = _counted(spec, workload.with_(num_heads=groups * shared), scope)
    return table.mapped(lambda size: sympy.sympify(size).subs(shared, heads / groups))


def made(spec: "Mechanism", w: Workload, scope: str) -> tuple[Any, Weights]:
    """A core or a layer, and its parameters."""
    weights = Weights(Counter(w.item_size, grad=w.phase in ("backward", "train")))
    sizes = LayerSizes(w.num_heads, w.head_dim, w.kv_heads, w.value_width, w.seq_len)
    own = spec.has_own_layer()
    host: Any = OwnText() if own else CountedCore()
    host.spec, host.sizes = spec, sizes
    for name, told in spec.core_weights(sizes).items():
        setattr(host, name, told and weights.add(*told.shape, drawn=told.drawn))
    if scope == "core":
        return host, weights
    if not own:
        core, host = host, LayerText()
        host.spec, host.sizes, host.core = spec, sizes, core
    for name, (inner, outer) in spec.layer_maps(sizes).items():
        weight, bias = weights.add(outer, inner), weights.add(outer) if spec.bias else None
        shown = name if own else MAPS[name]
        setattr(host, name, partial(Tensor.linear, weight=weight, bias=bias, name=shown))
    return host, weights


def _counted(spec: "Mechanism", w: Workload, scope: str) -> CostTable:
    plain = {int, type(None)}.issuperset(type(getattr(w, name)) for name in SIZES)
    plain = plain and all(type(value).__hash__ for value in vars(spec).values())
    ours = type(spec).__module__.startswith("attnprof.")  # others' texts may change meanwhile
    run = _tables if plain and ours else _tables.__wrapped__
    back = w.phase == "backward"  # counted in the run of a training step
    return run(spec, w.with_(phase="train") if back else w, scope)[back]


@lru_cache(maxsize=64)
def _tables(spec: "Mechanism", w: Workload, scope: str) -> tuple[CostTable, ...]:
    """What one run shows, and its backward pass alone if it has one."""
    host, weights = made(spec, w, scope)
    counter = weights.counter
    if w.phase == "decode":
        state = spec.init_state(host.sizes, CountedCaches(counter, w))
        out, _ = host.step(*_inputs(counter, w, scope, 1, 1), state)
    else:
        given = _inputs(counter, w, scope, w.seq_len, w.keys)
        first = 3 if scope == "core" else 1  # what stands before the mask
        out = host.forward(*given[:first], w.causal, *given[first:])
        del given
    if not counter.grad:
        return (counter.table(weights.count),)
    out.backward()
    return counter.table(weights.count), counter.table(weights.count, "backward")


def _inputs(counter: Counter, w: Workload, scope: str, n: Number, m: Number) -> list[Tensor]:
    """Queries, keys, values of a core; the input of a layer, and where keys come from another."""
    b, h, g = w.batch_size, w.num_heads, w.kv_heads
    if scope == "layer":
        lengths = [n] if w.kv_seq_len is None or w.phase == "decode" else [n, m]
        return [Tensor.leaf(counter, b, length, w.d_model) for length in lengths]
    shapes = (b, h, n, w.head_dim), (b, g, m, w.head_dim), (b, g, m, w.value_width)
    return [Tensor.leaf(counter, *shape) for shape in shapes]
