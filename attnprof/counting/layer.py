"""The layer around a core: projections, head split, head merge, output map."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnprof.costs import Number, exact_div, more_than_one
from attnprof.counting.engine import Tensor
from attnprof.counting.tape import Tape
from attnprof.workload import Workload

if TYPE_CHECKING:
    from attnprof.mechanism import Mechanism


def projected(mechanism: Mechanism, tape: Tape, letter: str, x: Tensor, width: Number) -> Tensor:
    """The input through a linear map of the layer, or itself where the mechanism has none."""
    names = {"q": "queries", "k": "keys", "v": "values", "o": "output"}
    if letter not in mechanism.projections:
        return x
    weight = tape.parameter(width, x.shape[-1])
    bias = tape.parameter(width) if mechanism.bias else None
    return tape.linear(names[letter], x, weight, bias)


def _keys(mechanism: Mechanism, tape: Tape, q: Tensor, context: Tensor, heads: Number) -> Tensor:
    """A projection of the keys' own, or the queries where they are shared."""
    if mechanism.shares_queries:
        return tape.view(q, *q.shape)
    k = projected(mechanism, tape, "k", context, heads * q.shape[-1])
    return tape.split_heads("split keys", k, heads, flipped=True)


def write_layer(mechanism: Mechanism, tape: Tape, workload: Workload, scope: str) -> Tensor:
    """Write a whole layer (``layer``) or what lies between q, k, v and the heads (``core``)."""
    w = workload
    b, n, m = w.batch_size, w.seq_len, w.keys
    h, g, d, dv = w.num_heads, w.kv_heads, w.head_dim, w.value_width
    if scope == "core":
        shapes = (b * h, n, d), (b * g, m, d), (b * g, m, dv)
        given = (tape.input(*shape) for shape in shapes)
        out: Tensor = mechanism.core(tape, w, *given)
        return out
    x = tape.input(b, n, w.d_model)
    context = x if w.kv_seq_len is None else tape.input(b, m, w.d_model)
    grouped = 0 if w.num_kv_heads is None else more_than_one(exact_div(h, g))
    q = projected(mechanism, tape, "q", x, h * d)
    q = tape.split_heads("split queries", q, h, grouped=grouped)
    k = _keys(mechanism, tape, q, context, g)
    v = projected(mechanism, tape, "v", context, g * dv)
    v = tape.split_heads("split values", v, g)
    y = mechanism.core(tape, w, q, k, v)
    y = tape.merge_heads("merge heads", y, b, h)
    tape.free(q, k, v)
    out = projected(mechanism, tape, "o", y, w.d_model)
    tape.free(y)
    return out


def write_step(mechanism: Any, tape: Tape, workload: Workload, scope: str) -> Tensor:
    """Write one decoding step of a whole layer, or of its core."""
    w = workload
    b, h, g, d, dv = w.batch_size, w.num_heads, w.kv_heads, w.head_dim, w.value_width
    if scope == "core":
        q, k, v = tape.input(b * h, 1, d), tape.input(b * g, 1, d), tape.input(b * g, 1, dv)
        newest: Tensor = mechanism.decode_core(tape, w, q, k, v)
        return newest
    x = tape.input(b, 1, w.d_model)
    q = tape.split_heads("split queries", projected(mechanism, tape, "q", x, h * d), h)
    if mechanism.shares_queries:
        k = tape.view(q, *q.shape)
    else:
        k = tape.split_heads("split keys", projected(mechanism, tape, "k", x, g * d), g)
    v = tape.split_heads("split values", projected(mechanism, tape, "v", x, g * dv), g)
    y = mechanism.decode_core(tape, w, q, k, v)
    y = tape.merge_heads("merge heads", y, b, h)
    tape.free(q, k, v)
    out = projected(mechanism, tape, "o", y, w.d_model)
    tape.free(y)
    return out
