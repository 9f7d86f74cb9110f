"""Layers whose queries, keys and values are convolved over a few tokens before they are mixed."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof.blocks.short_convolution import ConvolvedState, convolved_step, short_convolution
from attnprof.costs import Cost, Number
from attnprof.mechanism import Mechanism
from attnprof.ops.functional import silu
from attnprof.ops.layer import Definition, LayerSizes, Weight
from attnprof.workload import Workload

#: x / (1 + exp(-x)).
SILU = Cost(exponentials=1, additions=1, divisions=1)


@dataclass(frozen=True, kw_only=True)
class Convolved(Mechanism):
    """A layer with a causal convolution of ``conv`` tokens a channel, then SiLU; None: without."""

    conv: ClassVar[int | None] = None

    def convolved(self, sizes: LayerSizes) -> dict[str, Number]:
        """Channels of each convolution, by letter: of queries, keys, values; {} without any."""
        if self.conv is None:
            return {}
        widths = {"q": sizes.head_dim, "k": sizes.head_dim, "v": sizes.value_head_dim}
        fewer = {letter: self.projected_heads(letter) for letter in widths}
        return {x: width * (sizes.num_heads if fewer[x] is None else fewer[x])
                for x, width in widths.items()}  # fmt: skip

    def layer_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """A filter a channel of each convolution."""
        bound = math.sqrt(self.conv or 1)
        return {
            f"{letter}_taps": Weight((self.conv, width), "uniform", bound)
            for letter, width in self.convolved(sizes).items()
        }

    def define_convolutions(self, writer: Definition, sizes: LayerSizes, tokens: Number) -> None:
        """Write the operations of so many tokens' convolutions."""
        for width in self.convolved(sizes).values():
            entries = tokens * width
            writer.dots("convolution", entries, entries * (self.conv or 1))
            writer.stage("SiLU", SILU * entries, entries)

    # -- what is executed ------------------------------------------------------------------
    def projected(self, layer: Any, letter: str, y: Any, state: Any = None) -> Any:
        """Convolved, then SiLU, where the layer has filters for them."""
        taps = getattr(layer, f"{letter}_taps", None)
        if taps is None:
            return y
        if state is None:
            y = short_convolution(y, taps)
        else:
            y = convolved_step(y, taps, state.tails[letter])
        shift = getattr(layer, f"{letter}_shift", None)
        return silu(y if shift is None else y + shift)

    def layer_state(self, sizes: LayerSizes, cache: Any) -> Any:
        """The same, and the latest rows of each convolution."""
        state, conv = self.init_state(sizes, cache), self.conv
        if conv is None:
            return state
        widths = self.convolved(sizes)
        tails = {letter: cache.zeros(1, conv - 1, width) for letter, width in widths.items()}
        return ConvolvedState(state.sums, state.top, tails)

    def layer_entries(self, workload: Workload) -> Number:
        """The latest rows of each convolution."""
        if self.conv is None:
            return 0
        widths = self.convolved(LayerSizes.of(workload)).values()
        return workload.batch_size * (self.conv - 1) * sum(widths)


MECHANISMS = ()
