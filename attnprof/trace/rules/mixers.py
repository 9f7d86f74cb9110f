"""Rules for the recurrent mixers of the engine's view: their own text, played on counting tensors.

The kernels (:mod:`attnprof.models.engine_recurrence`) compute by the texts of
:mod:`attnprof.blocks.mixers`, and the counter says what these execute. A kernel reads its operands
once and writes its results once; chunks live where it computes. The backward pass reads the states
at the starts of chunks that the forward pass has kept.
"""

from functools import lru_cache
from typing import Any

from attnprof.blocks.mixers import MIXERS
from attnprof.costs import ceil_div
from attnprof.ops.counter import Counter
from attnprof.ops.tensor import Tensor
from attnprof.trace.events import KINDS, Size
from attnprof.trace.rules.lookups import UNREAD
from attnprof.trace.rules.table import rules
from attnprof.trace.rules.units import OTHER_FORM, Counts, flops_in
from attnprof.trace.rules.workspaces import workspaces
from attnprof.trace.sizes import nbytes, size_of

FORWARD, STEP, BACKWARD = (f"attnprof::mixer{end}" for end in ("", "_step", "_backward"))


Shapes = tuple[tuple[Size, ...], ...]


@lru_cache(maxsize=512)
def played(
    kind: str, shapes: Shapes, rows: int, form: str,
    needs: tuple[bool, ...] = (),
) -> Counts:  # fmt: skip
    """Return what a mixer's text executes on operands of these shapes.

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
        Tensor.leaf(counter, *shape) if need else Tensor.given(counter, shape)
        for shape, need in zip(shapes, needs or [False] * len(shapes), strict=True)
    ]
    state = Tensor.given(counter, mixer.state(operands))
    out = mixer.text(*operands, state, rows=rows, form=form)
    if needs:
        out.backward()
    total = counter.table(0, "backward" if needs else None).total
    return Counts({name: getattr(total, name) for name in KINDS})


def _of_length(shapes: Shapes, axis: int, tokens: Size) -> Shapes:
    """Return the shapes with so many tokens, which all operands but those of heads have."""
    return tuple(x if len(x) <= 2 else (*x[:axis], tokens, *x[axis + 1 :]) for x in shapes)


def _at_chunks(
    kind: str, shapes: Shapes, rows: int, needs: tuple[bool, ...], chunks: Size
) -> Counts:
    """Return the counts at a symbolic number of chunks: what one takes, and the first beside it."""
    axis = MIXERS[kind].tokens
    one, two = (
        played(kind, _of_length(shapes, axis, rows * n), rows, "chunkwise", needs) for n in (1, 2)
    )
    return Counts({name: one[name] + (two[name] - one[name]) * (chunks - 1) for name in one})


def _shapes(call: Any) -> Shapes:
    return tuple(tuple(map(size_of, x.shape)) for x in call.operands)


def _prompt(_out: Any, call: Any) -> Counts:
    """Count a prompt's forward or backward pass; beside it what the other form counts more."""
    shapes, needs = _shapes(call), tuple(getattr(call, "needs", ()))
    counts = played(call.kind, shapes, call.rows, call.form, needs)
    if not all(isinstance(size, int) for shape in shapes for size in shape):
        return counts
    form = "chunkwise" if call.form == "recurrent" else "recurrent"
    other = played(call.kind, shapes, call.rows, form, needs)
    return counts + {OTHER_FORM: flops_in(other) - flops_in(counts)}


def _step(_out: Any, call: Any) -> Counts:
    return played(call.kind, _shapes(call), 1, "recurrent")


#: A step writes the state that it has read.
UNREAD[STEP] = lambda call: -nbytes(call.state)
rules({f"{FORWARD} {BACKWARD}": _prompt, STEP: _step})
workspaces({f"{FORWARD} {STEP} {BACKWARD}": lambda _out, _call: 0})
