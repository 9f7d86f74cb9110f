"""A layer of attention around a core: sizes, weights, definition, and the text that runs.

Counting tensors run the same text: :func:`counted` gives it weights, inputs and caches.
"""

from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any

from attnprof.costs import Cost, CostTable, Number, Stage, exact_div, is_symbolic
from attnprof.ops.caches import CountedCaches
from attnprof.ops.counter import Counter
from attnprof.ops.functional import in_rows_for
from attnprof.ops.layout import product
from attnprof.ops.tensor import Tensor
from attnprof.workload import SIZES, Workload

if TYPE_CHECKING:
    from attnprof.mechanism import Mechanism


#: The linear maps around a core, and the names of their results.
MAPS = {"q_proj": "queries", "k_proj": "keys", "v_proj": "values", "o_proj": "output"}


@dataclass(frozen=True)
class LayerSizes:
    """The sizes a layer is built for; ``seq_len`` only where it must be known.

    ``width`` is the model's, where it is not heads times head width.
    """

    num_heads: Number
    head_dim: Number
    num_kv_heads: Number
    value_head_dim: Number
    seq_len: Number | None = None
    width: Number | None = None

    @classmethod
    def from_workload(cls, w: Workload) -> "LayerSizes":
        """Return the sizes of a workload, the length among them."""
        return cls(w.num_heads, w.head_dim, w.kv_heads, w.value_width, w.seq_len, w.width)

    @property
    def d_model(self) -> Number:
        """Model width."""
        return self.num_heads * self.head_dim if self.width is None else self.width

    @property
    def group(self) -> Number:
        """Query heads that share one key and value head."""
        if self.num_heads is self.num_kv_heads:  # one symbol over itself
            return 1
        return exact_div(self.num_heads, self.num_kv_heads)

    def maps(
        self, letters: str, more: dict[str, tuple[Number, Number]] | None = None
    ) -> dict[str, tuple[Number, Number]]:
        """Return input and output width of the linear maps around a core, by name (``q_proj``).

        ``more`` of a layer's maps stand before that of the output.
        """
        width, values = self.d_model, self.value_head_dim
        maps = {
            "q_proj": (width, self.num_heads * self.head_dim),
            "k_proj": (width, self.num_kv_heads * self.head_dim),
            "v_proj": (width, self.num_kv_heads * values),
            **(more or {}),
            "o_proj": (self.num_heads * values, width),
        }
        return {n: maps[n] for n in maps if n not in MAPS or n[0] in letters}


@dataclass(frozen=True)
class Weight:
    """A parameter of a core: its shape, and how its matrices are initialised.

    A ``start`` is a number for all entries, or the name of a rule. What is ``drawn`` is a buffer
    instead, and drawn again by the core's ``redraw``.
    """

    shape: tuple[Number, ...]
    start: str | float = "xavier_uniform"
    divisor: float = 1.0  #: of its entries; the inverse of the bound of "uniform" ones
    drawn: bool = False


@dataclass
class Definition:
    """Operations of a definition, as a mechanism's ``define`` methods write them.

    Direct sums, k-1 additions a dot product; no implementation, no memory, no bytes.
    """

    stages: list[Stage] = field(default_factory=list)

    def stage(self, name: str, cost: Cost, *shape: Number) -> None:
        """Add any count, with the shape of its result."""
        self.stages.append(Stage(name, shape, cost))

    def dots(self, name: str, outputs: Number, terms: Number, *shape: Number) -> None:
        """Add ``terms`` products, summed to ``outputs`` results (``terms`` ≥ ``outputs``)."""
        cost = Cost(
            multiplications=terms, additions=terms, matmul_flops=2 * terms, dot_outputs=outputs
        )
        self.stage(name, cost, *(shape or (outputs,)))

    def maps(self, maps: dict[str, tuple[Number, Number]], tokens: Number) -> None:
        """Add the linear maps of ``tokens`` tokens, except the output's."""
        for name, (inner, outer) in maps.items():
            if name != "o_proj":
                self.dots(name, tokens * outer, tokens * inner * outer, tokens, outer)

    def sums(self, name: str, outputs: Number, terms: Number) -> None:
        """Add ``terms`` values summed to ``outputs`` results."""
        self.stage(name, Cost(additions=terms, reduction_outputs=outputs), outputs)

    def softmax(
        self, scores: Number, outputs: Number, *, prefix: str = "", sums: str = "row sums"
    ) -> None:
        """Add scaling by a division, exp, sums and division; ``prefix`` is in the stages' names."""
        self.stage(f"{prefix}scaling", Cost(divisions=scores), scores)
        self.stage(f"{prefix}exponentials", Cost(exponentials=scores), scores)
        self.sums(f"{prefix}{sums}", outputs, scores)
        self.stage(f"{prefix}normalisation", Cost(divisions=scores), scores)

    def projections(self, which: str, workload: Workload) -> None:
        """Count the linear maps named by ``which``, letters of q, k, v, o, without bias."""
        w = workload
        sizes = LayerSizes.from_workload(w)
        for name, (inner, outer) in sizes.maps(which).items():
            length = w.keys if MAPS[name] in ("keys", "values") else w.seq_len
            rows = w.batch_size * (1 if w.phase == "decode" else length)
            self.dots(MAPS[name], rows * outer, rows * inner * outer, rows, outer)

    def softmax_attention(self, workload: Workload, pairs: Number, rows: Number) -> None:
        """Add scores, division by the scale, softmax and values: document 002, Eq 10 to 17."""
        w = workload
        heads = w.batch_size * w.num_heads
        scores, outputs = heads * pairs, heads * rows * w.value_width
        self.dots("scores", scores, scores * w.head_dim)
        self.softmax(scores, heads * rows)
        self.dots("weighted values", outputs, scores * w.value_width)


def flat(x: Any) -> Any:
    """Return (b, h, n, d) → (b·h, n, d); a view where the layout allows it."""
    return x.reshape(-1, x.shape[-2], x.shape[-1])


def split_heads(x: Any, heads: Any, *, in_rows: bool, group: Number = 1) -> Any:
    """Return (b, n, h·d) as (b, h, n, d), laid out so that (b·h, n, d) is a view.

    A ``group`` of heads shares its keys: then (b·h/group, group·n, d) is one, too.
    """
    b, n, width = x.shape
    d = exact_div(width, heads)
    y = x.view(b, n, heads, d).transpose(1, 2)
    if not in_rows:
        return y
    y = in_rows_for(group, y)
    return flat(y).view(b, heads, n, d)


def repeat_heads(y: Any, heads: Any) -> Any:
    """Return (b, g, n, d) → (b, h, n, d): each of g heads for h/g others, side by side."""
    b, g, n, d = y.shape
    repeated = y.unsqueeze(2).expand(b, g, exact_div(heads, g), n, d)
    return repeated.reshape(b, heads, n, d)


def merge_heads(y: Any) -> Any:
    """Return (b, h, n, d) → (b, n, h·d)."""
    b, h, n, d = y.shape
    return y.transpose(1, 2).reshape(b, n, h * d)


class CoreText:
    """A core, run by a host that has ``spec``, ``sizes`` and the weights by name."""

    spec: Any
    sizes: Any

    def forward(self, q: Any, k: Any, v: Any, causal: bool = False, **gates: Any) -> Any:
        """Attend: q (b, h, n, d), k (b, g, m, d), v (b, g, m, dv) → (b, h, n, dv)."""
        return self.spec.run(q, k, v, causal, self, **gates)

    def step(self, q: Any, k: Any, v: Any, state: Any, **gates: Any) -> Any:
        """Compute a token: q (b, h, 1, d), k (b, g, 1, d), v (b, g, 1, dv) → (b, h, 1, dv)."""
        return self.spec.step(q, k, v, state, self, **gates)


class OwnText:
    """A layer without queries, keys and values, run by a host as a core is, with its maps."""

    spec: Any
    sizes: Any

    def forward(self, x: Any, causal: bool = False) -> Any:
        """Compute (b, n, d_model) → the same shape; ``causal`` if the layer is not so by nature."""
        return self.spec.run_layer(self, x, causal)

    def step(self, x: Any, state: Any) -> Any:
        """Compute one token, (b, 1, d_model) → the same shape, and the new state."""
        return self.spec.layer_step(self, x, state)


class LayerText:
    """Projections, head split, core, head merge, output map; ``core`` and the maps are the host's.

    The host has ``spec``, ``sizes``, ``core`` and the linear maps that the mechanism has, as
    ``q_proj k_proj v_proj o_proj``.
    """

    spec: Any
    sizes: Any
    core: Any
    o_proj: Any

    def heads(self, letter: str, x: Any, *, decoding: bool = False, state: Any = None) -> Any:
        """Return heads (b, h, n, d) of a projection, or of the input's columns without one."""
        heads = self.sizes.num_heads if letter == "q" else self.sizes.num_kv_heads
        group = self.sizes.group if letter == "q" and not decoding else 1
        projection = getattr(self, f"{letter}_proj", None)
        if projection is not None:
            x = self.spec.projected(self, letter, projection(x), state)
        fewer = self.spec.projected_heads(letter)
        if fewer is None:
            return split_heads(x, heads, in_rows=self.spec.flat, group=group)
        return repeat_heads(split_heads(x, fewer, in_rows=self.spec.flat), heads)

    def forward(self, x: Any, causal: bool = False, context: Any = None) -> Any:
        """Return (b, n, d_model) → (b, n, d_model)."""
        y = self.spec.gated_output(self, x, self.spec.mixed(self, x, causal, context))
        return self.o_proj(y) if "o" in self.spec.projections else y

    def step(self, x: Any, state: Any) -> tuple[Any, Any]:
        """Compute one token, (b, 1, d_model) → the same shape, and the new state."""
        q = self.heads("q", x, decoding=True, state=state)
        shared = self.spec.shares_queries
        k = q if shared else self.heads("k", x, decoding=True, state=state)
        v = self.heads("v", x, decoding=True, state=state)
        y, state = self.core.step(q, k, v, state, **self.spec.gates(self, x))
        y = merge_heads(y)
        del q, k, v
        y = self.spec.gated_output(self, x, y)
        return (self.o_proj(y) if "o" in self.spec.projections else y), state


class Weights:
    """Parameters by name, made as they are declared; ``count`` is the number of their entries."""

    def __init__(self, counter: Counter) -> None:
        self.counter = counter
        self.count: Number = 0

    def add(self, *shape: Number, drawn: bool = False) -> Tensor:
        """Add a parameter, or a buffer that is ``drawn``."""
        if drawn:
            return Tensor.external(self.counter, shape)
        self.count = self.count + product(shape)
        return Tensor.leaf(self.counter, *shape)


def kept(spec: "Mechanism", w: Workload, scope: str) -> CountedCaches:
    """Return the maker of a decoding state, which lists entries and bytes of its parts."""
    caches = CountedCaches(Counter(w.item_size), w)
    _first_state(spec, LayerSizes.from_workload(w), caches, scope)
    return caches


def _first_state(spec: "Mechanism", sizes: LayerSizes, caches: CountedCaches, scope: str) -> Any:
    """Return the state of a layer, or of a core alone."""
    return (spec.layer_state if scope == "layer" else spec.init_state)(sizes, caches)


class CountedCore(CoreText):
    """The text between queries, keys, values and the heads' outputs, called as a module is."""

    __call__ = CoreText.forward


def counted(spec: "Mechanism", workload: Workload, scope: str) -> CostTable:
    """Return what a mechanism's code executes for a workload, stage by stage."""
    heads, groups = workload.num_heads, workload.num_kv_heads
    if groups is None and scope == "layer":
        groups = spec.projected_heads("k")
    if groups is None or not is_symbolic(heads, groups):
        return _counted(spec, workload, scope)
    import sympy

    # heads are written as groups times heads a group, so that either may be one
    shared = _sharing_heads()
    table = _counted(spec, workload.with_(num_heads=groups * shared), scope)
    return table.mapped(cache(lambda size: sympy.sympify(size).subs(shared, heads / groups)))


@cache
def _sharing_heads() -> Any:
    """Return the symbol of the heads that share a key head, the same for both parts of a run."""
    import sympy

    return sympy.Dummy(positive=True)


def build(spec: "Mechanism", w: Workload, scope: str) -> tuple[Any, Weights]:
    """Return a core or a layer, and its parameters."""
    weights = Weights(Counter(w.item_size, grad=w.phase in ("backward", "train")))
    sizes = LayerSizes.from_workload(w)
    has_layer = spec.has_own_layer()
    host: Any = OwnText() if has_layer else CountedCore()
    host.spec, host.sizes = spec, sizes
    for name, entry in spec.core_weights(sizes).items():
        setattr(host, name, entry and weights.add(*entry.shape, drawn=entry.drawn))
    if scope == "core":
        return host, weights
    if not has_layer:
        core, host = host, LayerText()
        host.spec, host.sizes, host.core = spec, sizes, core
        for name, entry in spec.layer_weights(sizes).items():
            setattr(host, name, entry and weights.add(*entry.shape))
    for name, (inner, outer) in spec.layer_maps(sizes).items():
        weight, bias = weights.add(outer, inner), weights.add(outer) if spec.bias else None
        shown = MAPS.get(name, name)
        setattr(host, name, partial(Tensor.linear, weight=weight, bias=bias, name=shown))
    return host, weights


def _counted(spec: "Mechanism", w: Workload, scope: str) -> CostTable:
    sizes = [getattr(w, name) for name in SIZES]
    kept = all(type(size) in (int, type(None)) or is_symbolic(size) for size in sizes)
    kept = kept and all(type(value).__hash__ for value in vars(spec).values())
    ours = type(spec).__module__.startswith("attnprof.")  # a plug-in's text may change meanwhile
    run = _tables if kept and ours else _tables.__wrapped__
    back = w.phase == "backward"  # counted in the run of a training step
    return run(spec, w.with_(phase="train") if back else w, scope)[back]


@lru_cache(maxsize=64)
def _tables(spec: "Mechanism", w: Workload, scope: str) -> tuple[CostTable, ...]:
    """Return the table of one run, and, if it has a backward pass, the table of that alone."""
    host, weights = build(spec, w, scope)
    counter = weights.counter
    if w.phase == "decode":
        tokens = spec.step_tokens
        state = _first_state(spec, host.sizes, CountedCaches(counter, w, tokens), scope)
        out, _ = host.step(*_inputs(counter, w, scope, tokens, tokens), state)
    else:
        inputs = _inputs(counter, w, scope, w.seq_len, w.keys)
        first = 3 if scope == "core" else 1  # arguments before the mask
        out = host.forward(*inputs[:first], w.causal, *inputs[first:])
        del inputs
    if not counter.grad:
        return (counter.table(weights.count),)
    out.backward()
    return counter.table(weights.count), counter.table(weights.count, "backward")


def _inputs(counter: Counter, w: Workload, scope: str, n: Number, m: Number) -> list[Tensor]:
    """Return queries, keys and values for a core; for a layer its input, and that of its keys."""
    b, h, g = w.batch_size, w.num_heads, w.kv_heads
    if scope == "layer":
        lengths = [n] if w.kv_seq_len is None else [n, m]
        return [Tensor.leaf(counter, b, length, w.d_model) for length in lengths]
    shapes = (b, h, n, w.head_dim), (b, g, m, w.head_dim), (b, g, m, w.value_width)
    return [Tensor.leaf(counter, *shape) for shape in shapes]
