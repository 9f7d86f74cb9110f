"""Optimised, Efficient and Super Attention (000, Definitions 2 to 4)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from attnprof.blocks.softmax import KeyValueState, causal_mask, weighted_values
from attnprof.costs import Number, exact_div, is_plain
from attnprof.errors import RequestError
from attnprof.mechanism import Abilities
from attnprof.mechanisms.standard import SoftmaxAttention, eq24
from attnprof.ops.functional import copy_in_rows, linear
from attnprof.ops.layer import Definition, LayerSizes, Weight, flat
from attnprof.workload import Workload, pairs, rows


@dataclass(frozen=True, kw_only=True)
class Optimised(SoftmaxAttention):
    """No value projection: a head's values are a column slice of the input (000, Def 2)."""

    name: ClassVar[str] = "optimised"
    title: ClassVar[str] = "Optimised Attention"
    document: ClassVar[str] = "000"
    projections: ClassVar[str] = "qko"
    abilities: ClassVar[Abilities] = Abilities(cross=True)
    printed = (eq24(12),)


@dataclass(frozen=True, kw_only=True)
class Efficient(SoftmaxAttention):
    """Neither key nor value projection: both are column slices of the input (000, Def 3)."""

    name: ClassVar[str] = "efficient"
    title: ClassVar[str] = "Efficient Attention"
    document: ClassVar[str] = "000"
    projections: ClassVar[str] = "qo"
    abilities: ClassVar[Abilities] = Abilities(cross=True)
    printed = (eq24(9),)

    def init_state(self, sizes: LayerSizes, cache: Callable[[Number, Number], Any]) -> Any:
        """Return one empty cache under both names: keys and values are the same rows."""
        rows = cache(sizes.num_heads, sizes.head_dim)
        return KeyValueState(rows, rows)

    def step(self, q: Any, k: Any, v: Any, state: Any, weights: Any) -> tuple[Any, Any]:
        """Attend from the new token to all so far; ``v`` is ``k`` and is not stored twice."""
        rows = state.keys.append(flat(k))
        return weighted_values(flat(q), rows, rows).view(*q.shape), state


@dataclass(frozen=True, kw_only=True)
class Super(Efficient):
    """Efficient Attention whose values a map over tokens mixes first (000, Def 4)."""

    per_head: bool = False

    name: ClassVar[str] = "super"
    title: ClassVar[str] = "Super Attention"
    not_split: ClassVar[str] = (
        "mixes all tokens' values by a map over tokens before it attends: no rank can start"
    )
    abilities: ClassVar[Abilities] = Abilities(needs_seq_len=True)
    to_softmax = ("another", "a learned map over tokens mixes the values first")
    printed = (eq24(12),)

    def core_weights(self, sizes: LayerSizes) -> dict[str, Weight | None]:
        """Return the map over tokens, one or one a head, and its bias."""
        n = sizes.seq_len
        maps = (sizes.num_heads, n, n) if self.per_head else (n, n)
        bias = Weight(maps[:-1], 0.0) if self.bias else None
        return {"mixing": Weight(maps), "mixing_bias": bias}

    def core(self, q: Any, k: Any, v: Any, causal: bool, weights: Any) -> Any:
        """Mix values over tokens, then compute softmax attention over them."""
        columns = self._mixed(v, causal, weights)
        mask = causal_mask(q.shape[2], q) if causal else None
        out = weighted_values(flat(q), flat(k), columns.transpose(1, 2), mask)
        return out.view(*q.shape)

    def _mixed(self, v: Any, causal: bool, weights: Any) -> Any:
        """Return W^A v + bias as columns, (b·h, d, n); the lower triangle of W^A where causal."""
        b, h, n, d = v.shape
        _check_length(weights, n)
        weight = weights.mixing.tril() if causal else weights.mixing
        if not self.per_head:
            columns = copy_in_rows(v.transpose(2, 3))
            mixed = linear(columns.view(-1, n), weight, weights.mixing_bias)
            return mixed.view(b * h, d, n)
        columns = copy_in_rows(v.permute(1, 0, 3, 2))
        mixed = columns.view(h, b * d, n).bmm(weight.transpose(1, 2))
        if weights.mixing_bias is not None:
            mixed.add_(weights.mixing_bias.unsqueeze(1))
        return mixed.view(h, b, d, n).transpose(0, 1).reshape(b * h, d, n)

    init_state = SoftmaxAttention.init_state  # the input's rows, and the mixed values

    def step(self, q: Any, k: Any, v: Any, state: Any, weights: Any) -> tuple[Any, Any]:
        """Mix the values so far into the token's own, then attend to all mixed values."""
        _check_length(weights, state.keys.length + 1, at_most=True)
        rows = state.keys.append(flat(k))
        mixed = state.values.append(self._mixed_row(rows, q.shape[0], weights))
        return weighted_values(flat(q), rows, mixed).view(*q.shape), state

    def _mixed_row(self, rows: Any, batch: Any, weights: Any) -> Any:
        """Return row t of W^A times the values so far: (b·h, 1, d)."""
        t = rows.shape[1]
        heads = exact_div(rows.shape[0], batch)
        row = weights.mixing.select(-2, t - 1)[..., :t].expand(batch, heads, t).reshape(-1, 1, t)
        mixed = row.bmm(rows)
        if weights.mixing_bias is not None:
            by_head = mixed.view(batch, heads, -1)
            by_head.add_(weights.mixing_bias.select(-1, t - 1).view(-1, 1))
        return mixed

    def define_core(self, writer: Definition, workload: Workload) -> None:
        """Define the mixing by direct sums, then softmax attention."""
        w = workload
        width = w.batch_size * w.num_heads * w.head_dim
        writer.dots("mixed values", width * rows(w), width * pairs(w))
        super().define_core(writer, w)


def _check_length(weights: Any, length: Any, *, at_most: bool = False) -> None:
    """Raise RequestError if the input has another length than the map over tokens."""
    built = weights.mixing.shape[-1]
    fits = length <= built if at_most else length == built
    if is_plain(built, length) and not fits:
        raise RequestError(
            f"super was built for {built} tokens and got {length}: its map over tokens has one "
            f"size; build it with seq_len={length}"
        )


MECHANISMS = (Optimised, Efficient, Super)
