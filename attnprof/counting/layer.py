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


def split(
    mechanism: Mechanism, tape: Tape, name: str, x: Tensor, heads: Number, **how: Any
) -> Tensor:
    """(b, n, h·d) → (b·h, n, d), copied where the core wants its heads one after the other."""
    if not mechanism.strided_heads:
        return tape.split_heads(name, x, heads, **how)
    b, n, width = x.shape
    return tape.rearrange(name, x, (b * heads, n, exact_div(width, heads)), 0)


def merge(mechanism: Mechanism, tape: Tape, y: Tensor, batch: Number, heads: Number) -> Tensor:
    """(b·h, n, d) → (b, n, h·d); a kernel that takes strided heads leaves nothing to copy."""
    if not mechanism.strided_heads:
        return tape.merge_heads("merge heads", y, batch, heads)
    _, n, d = y.shape
    return tape.rearrange("merge heads", y, (batch, n, heads * d), 0)


def _shared_rows(mechanism: Mechanism, tape: Tape, x: Tensor, heads: Number) -> Tensor:
    """The input's own columns, split once for keys and values.

    Their gradient adds to that of the input: one that arrives transposed is copied there.
    """
    b, n, width = x.shape
    many = more_than_one(heads) * more_than_one(n)
    flipped = more_than_one(width) * more_than_one(n)
    back = flipped if mechanism.transposes_values else many
    shape = (b * heads, n, exact_div(width, heads))
    return tape.rearrange("split keys and values", x, shape, many * more_than_one(b), back)


def _keys(mechanism: Mechanism, tape: Tape, q: Tensor, context: Tensor, heads: Number) -> Tensor:
    """A projection of the keys' own, or the queries where they are shared."""
    if mechanism.shares_queries:
        return tape.view(q, *q.shape)
    k = projected(mechanism, tape, "k", context, heads * q.shape[-1])
    return split(mechanism, tape, "split keys", k, heads, flipped=mechanism.transposes_keys)


def _given(
    mechanism: Mechanism, tape: Tape, workload: Workload, name: str, shape: tuple[Number, ...]
) -> Tensor:
    """An input of a core; a gradient that lies otherwise than it is copied when it gets it."""
    x = tape.input(*shape)
    if name not in mechanism.hands_over:
        return x
    lines = workload.num_heads if mechanism.strided_heads else shape[2]
    return tape.rearrange(name, x, shape, 0, more_than_one(shape[1]) * more_than_one(lines))


def write_layer(mechanism: Mechanism, tape: Tape, workload: Workload, scope: str) -> Tensor:
    """Write a whole layer (``layer``) or what lies between q, k, v and the heads (``core``)."""
    w = workload
    b, n, m = w.batch_size, w.seq_len, w.keys
    h, g, d, dv = w.num_heads, w.kv_heads, w.head_dim, w.value_width
    if scope == "core":
        shapes = {"q": (b * h, n, d), "k": (b * g, m, d), "v": (b * g, m, dv)}
        return mechanism.core(tape, w, *(_given(mechanism, tape, w, *i) for i in shapes.items()))
    x = tape.input(b, n, w.d_model)
    context = x if w.kv_seq_len is None else tape.input(b, m, w.d_model)
    grouped = 0 if w.num_kv_heads is None else more_than_one(exact_div(h, g))
    q = projected(mechanism, tape, "q", x, h * d)
    q = split(mechanism, tape, "split queries", q, h, grouped=grouped)
    if mechanism.shares_rows:
        k = _shared_rows(mechanism, tape, x, h)
        v = tape.view(k, *k.shape)
    else:
        k = _keys(mechanism, tape, q, context, g)
        v = projected(mechanism, tape, "v", context, g * dv)
        v = split(mechanism, tape, "split values", v, g)
    y = mechanism.core(tape, w, q, k, v)
    y = merge(mechanism, tape, y, b, h)
    tape.free(q, k, v)
    out = projected(mechanism, tape, "o", y, w.d_model)
    tape.free(y)
    return out


def write_step(mechanism: Mechanism, tape: Tape, workload: Workload, scope: str) -> Tensor:
    """Write one decoding step of a whole layer, or of its core."""
    w = workload
    b, h, g, d, dv = w.batch_size, w.num_heads, w.kv_heads, w.head_dim, w.value_width
    if scope == "core":
        q, k, v = tape.input(b * h, 1, d), tape.input(b * g, 1, d), tape.input(b * g, 1, dv)
        return mechanism.decode_core(tape, w, q, k, v)
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
