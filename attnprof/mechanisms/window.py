"""A sliding window of latest tokens, with first tokens that are kept and a learned sink a head."""

from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof.costs import Number
from attnprof.mechanism import Abilities
from attnprof.mechanisms.longformer import Neighbours
from attnprof.ops.layer import Definition, LayerSizes, Weight
from attnprof.workload import Workload, rows


@dataclass(frozen=True, kw_only=True)
class SlidingWindow(Neighbours):
    """A causal row sees the latest ``window`` tokens, itself included, and ``first_tokens``.

    As ``sliding_window`` of configurations counts (Jiang et al. 2023); without a mask also
    window - 1 tokens ahead. ``first_tokens`` are seen from everywhere (Xiao et al. 2024; positions
    stay as they are). ``sink`` is one more logit of each head's softmax, learned and without a
    value (gpt-oss, 2025). A cache holds ``window`` tokens with the newest; window - 1 of them
    serve the next.
    """

    window: int = 128
    first_tokens: int = 0
    sink: bool = False
    impl: str = "blocks"  # type: ignore[misc]  # a parameter of what is one

    name: ClassVar[str] = "sliding-window"
    title: ClassVar[str] = "Sliding-window attention"
    document: ClassVar[str] = "arXiv:2309.17453"
    abilities: ClassVar[Abilities] = Abilities(grouped_kv=True, value_width=True)
    counted: ClassVar[dict[str, str]] = {
        "window": "tokens that a causal row sees, itself included; longformer's counts one fewer",
    }
    to_softmax = (
        "approximates", "softmax over the pairs in its window: all of them from N tokens on",
    )  # fmt: skip
    allowed: ClassVar[dict[str, Any]] = {
        "window": 1,
        "first_tokens": 0,
        "impl": ("blocks", "dense-mask"),
    }

    @property
    def reach(self) -> Any:
        """All but the token itself."""
        return self.window - 1

    @property
    def first(self) -> Any:
        """Tokens that are kept."""
        return self.first_tokens

    def core_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """A logit a head."""
        return {"sink": Weight((sizes.num_heads,), 0.0) if self.sink else None}

    def sinks(self, q: Any, weights: Any) -> Any:
        """Each head's, for all samples."""
        if not self.sink:
            return None
        b, h = q.shape[:2]
        return weights.sink.unsqueeze(0).expand(b, h).reshape(b * h, 1, 1)

    def core(self, q: Any, k: Any, v: Any, causal: bool, weights: Any) -> Any:
        """Keys and values that heads share are repeated for each: still linear in the length."""
        b, h, _, _ = q.shape
        group = weights.sizes.group
        k, v = (
            x.unsqueeze(2).expand(b, x.shape[1], group, *x.shape[2:]).reshape(b, h, *x.shape[2:])
            for x in (k, v)
        )
        return super().core(q, k, v, causal, weights)

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Softmax attention over the pairs a row sees; the sink is a score more."""
        w = workload
        super().define_core(writer, w)
        if self.sink:
            more: Number = w.batch_size * w.num_heads * rows(w)
            writer.softmax(more, 0, of="sink: ")


MECHANISMS = (SlidingWindow,)
