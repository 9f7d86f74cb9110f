"""A layer of attention around a core: sizes, weights, definition, and the text that runs."""

from dataclasses import dataclass, field
from typing import Any

from attnprof.costs import Cost, Number, Stage, exact_div
from attnprof.ops.functional import in_rows_for
from attnprof.workload import Workload

#: The linear maps around a core, and what they give.
MAPS = {"q_proj": "queries", "k_proj": "keys", "v_proj": "values", "o_proj": "output"}


@dataclass(frozen=True)
class LayerSizes:
    """The sizes a layer is built for; ``seq_len`` only where it must be known."""

    num_heads: Number
    head_dim: Number
    num_kv_heads: Number
    value_head_dim: Number
    seq_len: Number | None = None

    @property
    def d_model(self) -> Number:
        """Model width."""
        return self.num_heads * self.head_dim

    @property
    def group(self) -> Number:
        """Query heads that share one key and value head."""
        if self.num_heads is self.num_kv_heads:  # one symbol over itself
            return 1
        return exact_div(self.num_heads, self.num_kv_heads)

    def maps(self, letters: str) -> dict[str, tuple[Number, Number]]:
        """Input and output width of these linear maps around a core, by name (``q_proj``)."""
        width, values = self.d_model, self.value_head_dim
        widths = {
            "q": (width, width),
            "k": (width, self.num_kv_heads * self.head_dim),
            "v": (width, self.num_kv_heads * values),
            "o": (self.num_heads * values, width),
        }
        return {f"{letter}_proj": widths[letter] for letter in widths if letter in letters}


@dataclass(frozen=True)
class Weight:
    """A parameter of a core: its shape, and how each matrix of it starts.

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
        """Any count, with the shape of its result."""
        self.stages.append(Stage(name, shape, cost))

    def dots(self, name: str, outputs: Number, terms: Number, *shape: Number) -> None:
        """``terms`` products in all, summed to ``outputs`` results (``terms`` ≥ ``outputs``)."""
        cost = Cost(
            multiplications=terms, additions=terms, matmul_flops=2 * terms, dot_outputs=outputs
        )
        self.stage(name, cost, *(shape or (outputs,)))

    def sums(self, name: str, outputs: Number, terms: Number) -> None:
        """``terms`` values summed to ``outputs`` results."""
        self.stage(name, Cost(additions=terms, reduction_outputs=outputs), outputs)

    def softmax(
        self, scores: Number, outputs: Number, *, of: str = "", sums: str = "row sums"
    ) -> None:
        """Scaling by a division, exp, sums, division; stages are those ``of`` something."""
        self.stage(f"{of}scaling", Cost(divisions=scores), scores)
        self.stage(f"{of}exponentials", Cost(exponentials=scores), scores)
        self.sums(f"{of}{sums}", outputs, scores)
        self.stage(f"{of}normalisation", Cost(divisions=scores), scores)

    def projections(self, which: str, workload: Workload) -> None:
        """The linear maps named by ``which``, one letter each of q, k, v, o; no bias."""
        w = workload
        sizes = LayerSizes(w.num_heads, w.head_dim, w.kv_heads, w.value_width)
        for name, (inner, outer) in sizes.maps(which).items():
            length = w.keys if MAPS[name] in ("keys", "values") else w.seq_len
            rows = w.batch_size * (1 if w.phase == "decode" else length)
            self.dots(MAPS[name], rows * outer, rows * inner * outer, rows, outer)

    def softmax_attention(self, workload: Workload, pairs: Number, rows: Number) -> None:
        """Scores, scaling by a division, softmax (exp, sum, division), values: 002, Eq 10-17."""
        w = workload
        heads = w.batch_size * w.num_heads
        scores, outputs = heads * pairs, heads * rows * w.value_width
        self.dots("scores", scores, scores * w.head_dim)
        self.softmax(scores, heads * rows)
        self.dots("weighted values", outputs, scores * w.value_width)


def flat(x: Any) -> Any:
    """(b, h, n, d) → (b·h, n, d); a view where the layout allows it."""
    return x.reshape(-1, x.shape[-2], x.shape[-1])


def split_heads(x: Any, heads: Any, *, in_rows: bool, group: Number = 1) -> Any:
    """(b, n, h·d) → (b, h, n, d), laid out so that (b·h, n, d) is a view if the core wants it.

    A ``group`` of heads shares its keys: then (b·h/group, group·n, d) is one, too.
    """
    b, n, width = x.shape
    d = exact_div(width, heads)
    y = x.view(b, n, heads, d).transpose(1, 2)
    if not in_rows:
        return y
    y = in_rows_for(group, y)
    return flat(y).view(b, heads, n, d)


def merge_heads(y: Any) -> Any:
    """(b, h, n, d) → (b, n, h·d)."""
    b, h, n, d = y.shape
    return y.transpose(1, 2).reshape(b, n, h * d)


class CoreText:
    """A core, run by a host that has ``spec``, ``sizes`` and the weights by name."""

    spec: Any
    sizes: Any

    def forward(self, q: Any, k: Any, v: Any, causal: bool = False) -> Any:
        """Q (b, h, n, d), k (b, g, m, d), v (b, g, m, dv) → (b, h, n, dv)."""
        return self.spec.run(q, k, v, causal, self)

    def step(self, q: Any, k: Any, v: Any, state: Any) -> Any:
        """One token: q (b, h, 1, d), k (b, g, 1, d), v (b, g, 1, dv) → (b, h, 1, dv), state."""
        return self.spec.step(q, k, v, state, self)


class OwnText:
    """A layer without queries, keys and values, run by a host as a core is, with its maps."""

    spec: Any
    sizes: Any

    def forward(self, x: Any, causal: bool = False) -> Any:
        """(b, n, d_model) → (b, n, d_model), causal by nature whatever ``causal`` says."""
        return self.spec.layer(self, x)

    def step(self, x: Any, state: Any) -> Any:
        """One token, (b, 1, d_model) → the same shape, and the new state."""
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

    def heads(self, letter: str, x: Any, *, decoding: bool = False) -> Any:
        """The heads (b, h, n, d) of a projection, or of the input's columns where it has none."""
        heads = self.sizes.num_heads if letter == "q" else self.sizes.num_kv_heads
        group = self.sizes.group if letter == "q" and not decoding else 1
        projection = getattr(self, f"{letter}_proj", None)
        if projection is not None:
            x = projection(x)
        return split_heads(x, heads, in_rows=self.spec.flat, group=group)

    def forward(self, x: Any, causal: bool = False, context: Any = None) -> Any:
        """(b, n, d_model) → (b, n, d_model)."""
        y = self.spec.mixed(self, x, causal, context)
        return self.o_proj(y) if "o" in self.spec.projections else y

    def step(self, x: Any, state: Any) -> tuple[Any, Any]:
        """One token, (b, 1, d_model) → the same shape, and the new state."""
        q = self.heads("q", x, decoding=True)
        k = q if self.spec.shares_queries else self.heads("k", x, decoding=True)
        v = self.heads("v", x, decoding=True)
        y, state = self.core.step(q, k, v, state)
        y = merge_heads(y)
        del q, k, v
        return (self.o_proj(y) if "o" in self.spec.projections else y), state
