"""Rules for the kernels of the engine's view: fused attention, and recurrent mixers.

Attention counts exactly the pairs that its mask leaves. Queries stand at the end of a sequence
whose keys are those before them, or the last ones of these in a cache that keeps no more.

Mixers (:mod:`attnprof.models.engine_recurrence`) compute by the texts of
:mod:`attnprof.blocks.mixers`, which are played on counting tensors. A kernel reads its operands
once and writes its results once; chunks live where it computes. The backward pass reads the states
at the starts of chunks that the forward pass has kept.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from attnprof.blocks.mixers import MIXERS
from attnprof.costs import ceil_div, exact_div, floor_div, minimum
from attnprof.ops.counter import Counter
from attnprof.ops.tensor import Tensor
from attnprof.trace.events import KINDS, Size
from attnprof.trace.rules.attention import backward_counts, forward_counts, triangle
from attnprof.trace.rules.table import UNREAD, rules
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
        return triangle(tokens, width)
    if kind == "chunk":
        whole = floor_div(tokens, width)
        rest = tokens - width * whole
        return exact_div(whole * width * (width + 1) + rest * (rest + 1), 2)
    return triangle(tokens, tokens)


def _sizes(call: Any) -> list[Size]:
    """Return the mask's width, numbers of queries and keys, and the first query's position."""
    return list(map(size_of, (call.width, call.query.shape[2], call.key.shape[2],
                              call.query_start)))  # fmt: skip


def _forward(_out: Any, call: Any) -> Counts:
    """Count two products and softmax on each pair, a cap's tanh, a sink's exponential a row.

    The definition has no largest score: it is scaled, exponentiated, summed and divided.
    """
    return _of_view(call, forward_counts, 2 * M + OTHER, OTHER + 2 * A + E, OTHER + A)


def _backward(_out: Any, call: Any) -> Counts:
    """Count five products on each pair, and the parts of a cap and a sink.

    The definition has the weights, so it computes no scores again: four products.
    """
    scores = MAC * size_of(call.query.shape[-1]) + (2 * M + OTHER) * bool(call.softcap)
    return _of_view(call, backward_counts, 4 * M + OTHER + A, 2 * A + E + M, scores + M + A + E)


def _of_view(
    call: Any, count: Callable[..., Counts], cap: Counts, sink: Counts, again: Counts
) -> Counts:
    """Return the counts, with those of a cap for each pair and of a sink for each row.

    The definition's view leaves out the counts for a pair that only a kernel has (``again``).
    Further keys say how much more other views count: of all pairs, of a copied cache.
    """
    width, n, m, start = _sizes(call)
    heads = product(call.query.shape[:2])
    all_pairs, pairs = heads * n * m, heads * pairs_seen(call.kind, width, n, m, start)
    counts = count(pairs, call.query, call.value, call) + cap * bool(call.softcap) * pairs
    counts = counts + sink * (call.sinks is not None) * numel(call.query[..., 0])
    counts = counts + (-1 * again * pairs if call.definition else {})
    if not isinstance(pairs, int) or not isinstance(all_pairs, int) or not pairs:
        return counts
    flops, other = flops_in(counts), flops_in(again * pairs)
    plain = call.kind == "causal" or (call.kind == "window" and call.width >= m)
    dense = flops * (all_pairs - pairs) // pairs
    copied = nbytes(call.key) + nbytes(call.value) if n == 1 else 0
    return counts + {
        DENSE_CAUSAL if plain else DENSE: dense,
        OTHER_FORM: other if call.definition else -other,
        COPIED: copied,
    }


def _unread(call: Any) -> Size:
    """Return the bytes of keys and values that one query's mask hides, though they are kept."""
    width, n, kept, start = _sizes(call)
    if call.query.shape[2] != 1 or call.kind not in ("window", "chunk"):
        return 0
    hidden = kept - pairs_seen(call.kind, width, n, kept, start)
    rows = nbytes(call.key[:, :, :1]) + nbytes(call.value[:, :, :1])
    return hidden * rows


# -- recurrent mixers ---------------------------------------------------------------------
Shapes = tuple[tuple[Size, ...], ...]


@lru_cache(maxsize=512)
def played(
    kind: str, shapes: Shapes, rows: int, form: str,
    needs: tuple[bool, ...] = (),
) -> Counts:  # fmt: skip
    """Return the counts of a mixer's text on operands of these shapes.

    A kernel computes whole chunks, the last one padded; the ``recurrent`` form goes token by token
    in both directions. With ``needs``, operands that get a gradient, it is the backward pass.
    """
    counter, mixer = Counter(4, grad=bool(needs)), MIXERS[kind]
    tokens = shapes[mixer.like][mixer.tokens]
    if form == "chunkwise" and mixer.in_chunks:
        chunks = ceil_div(tokens, rows)
        if not isinstance(chunks, int):
            return _at_chunks(kind, shapes, rows, needs, chunks)
        shapes = _of_length(shapes, mixer.tokens, rows * chunks)
    else:
        rows = 1 if mixer.in_chunks else tokens
    operands = [
        Tensor.leaf(counter, *shape) if need else Tensor.external(counter, shape)
        for shape, need in zip(shapes, needs or [False] * len(shapes), strict=True)
    ]
    state = Tensor.external(counter, mixer.state(operands))
    out = mixer.text(*operands, state, rows=rows, form=form)
    if needs:
        out.backward()
    total = counter.table(0, "backward" if needs else None).total
    return Counts({name: getattr(total, name) for name in KINDS})


def _of_length(shapes: Shapes, axis: int, tokens: Size) -> Shapes:
    """Return the shapes with so many tokens; operands of one or two dimensions have none."""
    return tuple(x if len(x) <= 2 else (*x[:axis], tokens, *x[axis + 1 :]) for x in shapes)


def _at_chunks(
    kind: str, shapes: Shapes, rows: int, needs: tuple[bool, ...], chunks: Size
) -> Counts:
    """Return the counts of a symbolic number of chunks, from those of one chunk and of two."""
    axis = MIXERS[kind].tokens
    one, two = (
        played(kind, _of_length(shapes, axis, rows * n), rows, "chunkwise", needs) for n in (1, 2)
    )
    return Counts({name: one[name] + (two[name] - one[name]) * (chunks - 1) for name in one})


def _shapes(call: Any) -> Shapes:
    return tuple(tuple(map(size_of, x.shape)) for x in call.operands)


def _prompt(_out: Any, call: Any) -> Counts:
    """Count a prompt's forward or backward pass, and how much more the other form counts."""
    shapes, needs = _shapes(call), tuple(getattr(call, "needs", ()))
    counts = played(call.kind, shapes, call.rows, call.form, needs)
    if not all(isinstance(size, int) for shape in shapes for size in shape):
        return counts
    form = "chunkwise" if call.form == "recurrent" else "recurrent"
    other = played(call.kind, shapes, call.rows, form, needs)
    return counts + {OTHER_FORM: flops_in(other) - flops_in(counts)}


def _step(_out: Any, call: Any) -> Counts:
    return played(call.kind, _shapes(call), 1, "recurrent")


_ATTENTION, _MIXER = "attnprof::fused_attention", "attnprof::mixer"
UNREAD[_ATTENTION] = _unread
#: A step writes the state that it has read.
UNREAD[f"{_MIXER}_step"] = lambda call: -nbytes(call.state)
_RULES = {
    _ATTENTION: _forward, f"{_ATTENTION}_backward": _backward,
    _MIXER: _prompt, f"{_MIXER}_backward": _prompt, f"{_MIXER}_step": _step,
}  # fmt: skip
rules(_RULES)
workspaces({" ".join(_RULES): lambda _out, _call: 0})  # nothing beside operands and results
