"""Grouped-query and multi-query attention (Shazeer 2019; Ainslie et al. 2023), with output gate."""

from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof.blocks.layer_rows import define_gate, define_norm, normed
from attnprof.costs import Number
from attnprof.errors import RequestError
from attnprof.mechanism import Variant
from attnprof.mechanisms.standard import Sdpa
from attnprof.ops.layer import Definition, LayerSizes, Weight
from attnprof.workload import Published, Workload, rows


@dataclass(frozen=True, kw_only=True)
class GroupedQuery(Sdpa):
    """Softmax attention whose query heads share ``num_kv_heads`` heads of keys and values.

    One such head is multi-query attention; without a number, it is the workload's. ``gate``
    multiplies the heads' outputs by σ(x W_g) before the output map: a factor an entry
    (``elementwise``) or a head (``headwise``; Qiu et al. 2025). ``qk_norm`` divides each head's
    queries and keys by their root mean square. ``impl=fused`` is torch's kernel, ``written`` has
    the scores in memory.
    """

    bias: bool = False
    num_kv_heads: int | None = None
    gate: str = "none"
    impl: str = "fused"
    qk_norm: bool = False

    name: ClassVar[str] = "gqa"
    title: ClassVar[str] = "Grouped-query attention"
    document: ClassVar[str] = "arXiv:2305.13245"
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant({"impl": "written"}, "N^2", "N^2", "the scores of all pairs are in memory"),
    )
    same_as = ("", {"impl": "written"})
    printed = (
        Published(
            "arXiv:2510.26692-EQ14", "flops", "core", "forward", "Kimi Linear", causal=True,
            formula=lambda w: 2 * w.num_heads * w.seq_len**2 * w.head_dim,
        ),
    )  # fmt: skip
    allowed: ClassVar[dict[str, Any]] = {
        "num_kv_heads": 1,
        "gate": ("none", "elementwise", "headwise"),
        "impl": ("fused", "written"),
    }

    @property
    def kv_heads(self) -> int | None:  # type: ignore[override]
        """Heads of keys and values, if the parameter fixes them."""
        return self.num_kv_heads

    def _fitted(self, workload: Workload) -> Workload:
        groups = workload.num_kv_heads
        if groups is not None and self.num_kv_heads not in (None, groups):
            raise RequestError(
                f"{self.name} has num_kv_heads={self.num_kv_heads}, and --kv-heads (of the "
                f"workload) is {groups}: leave one of them out"
            )
        return super()._fitted(workload)

    def _gates(self, heads: Number, width: Number) -> Number:
        """Return the number of a token's gates."""
        return heads * width if self.gate == "elementwise" else heads

    # -- text --------------------------------------------------------------------------------
    def more_maps(self, sizes: LayerSizes) -> dict[str, tuple[Number, Number]]:
        """Return the map of the gate."""
        if self.gate == "none":
            return {}
        return {"gate_proj": (sizes.d_model, self._gates(sizes.num_heads, sizes.value_head_dim))}

    def layer_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """Return a weight per entry of a head's queries, and of its keys."""
        norm = Weight((sizes.head_dim,), 1.0)
        return {"q_norm": norm, "k_norm": norm} if self.qk_norm else {}

    def projected(self, layer: Any, letter: str, y: Any, state: Any = None) -> Any:
        """Return queries and keys over their root mean squares, head by head."""
        weight = getattr(layer, f"{letter}_norm", None)
        if weight is None:
            return y
        b, n, width = y.shape
        return normed(y.view(b, -1, layer.sizes.head_dim), weight).view(b, n, width)

    def gated_output(self, layer: Any, x: Any, y: Any) -> Any:
        """Return the outputs times a sigmoid of the layer's input."""
        if self.gate == "none":
            return y
        gate = layer.gate_proj(x).sigmoid()
        if self.gate == "elementwise":
            return y * gate
        b, n, width = y.shape
        heads = layer.sizes.num_heads
        return (y.view(b, n, heads, -1) * gate.unsqueeze(-1)).view(b, n, width)

    # -- the definition ------------------------------------------------------------------
    def define_inputs(self, writer: Definition, workload: Workload) -> None:
        """Define projections, and the norms of queries and keys."""
        w = workload
        super().define_inputs(writer, w)
        if self.qk_norm:
            heads = w.num_heads + w.kv_heads
            define_norm(writer, w.batch_size * rows(w) * heads, w.head_dim)

    def define_outputs(self, writer: Definition, workload: Workload) -> None:
        """Define the gate."""
        w, tokens = workload, workload.batch_size * rows(workload)
        if self.gate != "none":
            gates = tokens * self._gates(w.num_heads, w.value_width)
            define_gate(writer, gates, tokens * w.num_heads * w.value_width, w.d_model)


MECHANISMS = (GroupedQuery,)
