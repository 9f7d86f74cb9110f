"""Rules for the fused attention of the engine's view: exactly the pairs that its mask leaves.

Queries stand at the end of a sequence whose keys are those before them, or the last ones of these
in a cache that keeps no more. Nothing is held beside operands and results.
"""

from typing import Any

from attnprof.costs import exact_div, floor_div, minimum
from attnprof.trace.events import Size
from attnprof.trace.rules.attention import backward_counts, forward_counts
from attnprof.trace.rules.lookups import UNREAD
from attnprof.trace.rules.table import rules
from attnprof.trace.rules.units import (
    COPIED,
    DENSE,
    DENSE_CAUSAL,
    MAC,
    OTHER,
    OTHER_FORM,
    A,
    Counts,
    E,
    M,
    flops_in,
)
from attnprof.trace.rules.workspaces import workspaces
from attnprof.trace.sizes import nbytes, numel, product, size_of

FORWARD, BACKWARD = "attnprof::fused_attention", "attnprof::fused_attention_backward"


def pairs_seen(kind: str, width: Size, queries: Size, keys: Size, start: Size) -> Size:
    """Return the pairs of ``queries`` from position ``start`` on and ``keys`` that a mask leaves.

    ``window``: the last ``width`` tokens, the query's own included; ``chunk``: those before it in
    its chunk of ``width``; ``around``: ``width`` on either side, of as many keys as queries.
    """
    if kind == "full":
        return queries * keys
    if kind == "around":
        near = minimum(queries - 1, width)
        return queries * (2 * near + 1) - near * (near + 1)
    if isinstance(queries, int) and queries == 1:  # what is kept ends with its own key
        if kind == "chunk":
            return start - width * floor_div(start, width) + 1
        return minimum(keys, width) if kind == "window" else keys
    end, before = start + queries, _prefix(kind, width, start)
    return _prefix(kind, width, end) - before


def _prefix(kind: str, width: Size, tokens: Size) -> Size:
    """Return the pairs of a sequence's first tokens."""
    if isinstance(tokens, int) and tokens == 0:
        return 0
    if kind == "window":
        side = minimum(tokens, width)
        return exact_div(side * (side + 1), 2) + (tokens - side) * width
    if kind == "chunk":
        whole = floor_div(tokens, width)
        rest = tokens - width * whole
        return exact_div(whole * width * (width + 1) + rest * (rest + 1), 2)
    return exact_div(tokens * (tokens + 1), 2)


def _pairs(call: Any) -> Size:
    width, n, m, start = (
        size_of(x) for x in (call.width, call.query.shape[2], call.key.shape[2], call.query_start)
    )
    return product(call.query.shape[:2]) * pairs_seen(call.kind, width, n, m, start)


def _forward(_out: Any, call: Any) -> Counts:
    """Count two products and softmax on each pair, a cap's tanh, a sink's exponential a row.

    The definition has no largest score: it is scaled, exponentiated, summed and divided.
    """
    seen = _pairs(call)
    capped = (2 * M + OTHER) * bool(call.softcap) * seen
    sunk = (OTHER + 2 * A + E) * (call.sinks is not None) * numel(call.query[..., 0])
    counts = forward_counts(seen, call.query, call.value, call) + capped + sunk
    return _of_view(call, counts, (OTHER + A) * seen, seen)


def _backward(_out: Any, call: Any) -> Counts:
    """Count five products on each pair, and what a cap and a sink add.

    The definition has the weights, so it computes no scores again: four products.
    """
    seen = _pairs(call)
    capped = (4 * M + OTHER + A) * bool(call.softcap) * seen
    sunk = (2 * A + E + M) * (call.sinks is not None) * numel(call.query[..., 0])
    counts = backward_counts(seen, call.query, call.value, call) + capped + sunk
    scores = MAC * size_of(call.query.shape[-1]) + (2 * M + OTHER) * bool(call.softcap)
    return _of_view(call, counts, (scores + M + A + E) * seen, seen)


def _of_view(call: Any, counts: Counts, again: Counts, seen: Size) -> Counts:
    """Return the counts, without what only a kernel does (``again``) in the definition's view.

    Beside them stands what other views count more: of all pairs, of the cache that is copied.
    """
    counts = counts + -1 * again if call.definition else counts
    n, m = (size_of(x.shape[2]) for x in (call.query, call.key))
    pairs = product(call.query.shape[:2]) * n * m
    if not isinstance(seen, int) or not isinstance(pairs, int) or not seen:
        return counts
    flops, other = flops_in(counts), flops_in(again)
    plain = call.kind == "causal" or (call.kind == "window" and call.width >= m)
    dense = flops * (pairs - seen) // seen
    copied = nbytes(call.key) + nbytes(call.value) if n == 1 else 0
    return counts + {
        DENSE_CAUSAL if plain else DENSE: dense,
        OTHER_FORM: other if call.definition else -other,
        COPIED: copied,
    }


def _unread(call: Any) -> Size:
    """Return the bytes of keys and values that one query's mask hides, though they are kept."""
    if call.query.shape[2] != 1 or call.kind not in ("window", "chunk"):
        return 0
    width, kept, start = (size_of(x) for x in (call.width, call.key.shape[2], call.query_start))
    hidden = kept - pairs_seen(call.kind, width, 1, kept, start)
    rows = nbytes(call.key[:, :, :1]) + nbytes(call.value[:, :, :1])
    return hidden * rows


UNREAD[FORWARD] = _unread
rules({FORWARD: _forward, BACKWARD: _backward})
workspaces({f"{FORWARD} {BACKWARD}": lambda _out, _call: 0})
