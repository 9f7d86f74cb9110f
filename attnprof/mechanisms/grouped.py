"""Grouped-query and multi-query attention (Shazeer 2019; Ainslie et al. 2023), with output gate."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from attnprof.costs import Cost, CostTable, Number
from attnprof.errors import RequestError
from attnprof.mechanism import Variant
from attnprof.mechanisms.standard import Sdpa
from attnprof.ops.layer import Definition, LayerSizes
from attnprof.ops.pointwise import SIGMOID
from attnprof.workload import Workload, rows


@dataclass(frozen=True, kw_only=True)
class GroupedQuery(Sdpa):
    """Softmax attention whose query heads share ``num_kv_heads`` heads of keys and values.

    One such head is multi-query attention; without a number, it is the workload's. ``gate``
    multiplies the heads' outputs by σ(x W_g) before the output map: a factor an entry
    (``elementwise``) or a head (``headwise``; Qiu et al. 2025). ``impl=fused`` is torch's kernel,
    ``written`` has the scores in memory.
    """

    bias: bool = False
    num_kv_heads: int | None = None
    gate: str = "none"
    impl: str = "fused"

    name: ClassVar[str] = "gqa"
    title: ClassVar[str] = "Grouped-query attention"
    document: ClassVar[str] = "arXiv:2305.13245"
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant({"impl": "written"}, "N^2", "N^2", "the scores of all pairs are in memory"),
    )
    same_as = ("", {"impl": "written"})
    allowed: ClassVar[dict[str, Any]] = {
        "num_kv_heads": 1,
        "gate": ("none", "elementwise", "headwise"),
        "impl": ("fused", "written"),
    }

    @property
    def flat(self) -> bool:  # type: ignore[override]
        """Products of written scores want heads one after the other."""
        return self.impl == "written"

    @property
    def kv_heads(self) -> int | None:  # type: ignore[override]
        """What the parameter fixes."""
        return self.num_kv_heads

    def _fitted(self, workload: Workload) -> Workload:
        asked = workload.num_kv_heads
        if asked is not None and self.num_kv_heads not in (None, asked):
            raise RequestError(
                f"{self.name} has num_kv_heads={self.num_kv_heads}, and the workload {asked}: "
                "leave one of them out"
            )
        return super()._fitted(workload)

    def _gates(self, heads: Number, width: Number) -> Number:
        """Factors of a token."""
        return heads * width if self.gate == "elementwise" else heads

    # -- what runs -----------------------------------------------------------------------
    def layer_maps(self, sizes: LayerSizes) -> dict[str, tuple[Number, Number]]:
        """Queries, keys, values, gate, output."""
        maps = super().layer_maps(sizes)
        if self.gate == "none":
            return maps
        out = {"o_proj": maps.pop("o_proj")}
        factors = self._gates(sizes.num_heads, sizes.value_head_dim)
        return {**maps, "gate_proj": (sizes.d_model, factors), **out}

    def core(self, q: Any, k: Any, v: Any, causal: bool, weights: Any) -> Any:
        """The fused kernel, or the scores written out."""
        run = super().core if self.impl == "fused" else super(Sdpa, self).core
        return run(q, k, v, causal, weights)

    def step(self, q: Any, k: Any, v: Any, state: Any, weights: Any) -> tuple[Any, Any]:
        """The new token, by the same form."""
        run = super().step if self.impl == "fused" else super(Sdpa, self).step
        return run(q, k, v, state, weights)

    def gated_output(self, layer: Any, x: Any, y: Any) -> Any:
        """Times a sigmoid of the layer's input."""
        if self.gate == "none":
            return y
        gate = layer.gate_proj(x).sigmoid()
        if self.gate == "elementwise":
            return y * gate
        b, n, width = y.shape
        heads = layer.sizes.num_heads
        return (y.view(b, n, heads, -1) * gate.unsqueeze(-1)).view(b, n, width)

    def cost(self, workload: Workload, scope: str = "layer") -> CostTable:
        """Like the base's; only the fused kernel has a workspace of its own."""
        table = super().cost(workload, scope)
        return table if self.impl == "fused" else replace(table, notes=())

    # -- the definition ------------------------------------------------------------------
    def define(self, writer: Definition, workload: Workload, scope: str) -> None:
        """Projections, softmax attention, the gate."""
        w = workload
        if scope != "layer" or self.gate == "none":
            super().define(writer, w, scope)
            return
        writer.projections("qkv", w)
        self.define_core(writer, w)
        tokens = w.batch_size * rows(w)
        gates = tokens * self._gates(w.num_heads, w.value_width)
        writer.dots("gate", gates, gates * w.d_model)
        writer.stage("gate: sigmoid", SIGMOID * gates, gates)
        outputs = tokens * w.num_heads * w.value_width
        writer.stage("gated", Cost(multiplications=outputs), outputs)
        writer.projections("o", w)


MECHANISMS = (GroupedQuery,)
