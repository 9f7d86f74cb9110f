"""What a call counts, on fake tensors: at concrete sizes, and at symbolic ones put in again."""

import torch

from attnprof.algebra.values import evaluate
from attnprof.trace.events import KINDS, totals, uncounted
from attnprof.trace.run.recorder import Recorder
from attnprof.trace.run.symbols import symbolic_sizes
from attnprof.trace.run.worlds import fake_world
from attnprof.trace.sizes import user_symbols

#: M multiplications, A additions, D divisions, E exponentials, O others, P FLOPs of products.
LETTERS = dict(zip("MADEOP", KINDS, strict=True))


def counted(run, *shapes, dtype=torch.float32, backward=False):
    """Counts by letter, zeros left out, of ``run(*tensors)``; a shape None is no tensor."""
    with fake_world():
        return _letters(_trace(run, shapes, dtype, backward), backward)


def bytes_of(run, *shapes, backward=False):
    """The bytes that ``run(*tensors)`` moves."""
    with fake_world():
        trace = _trace(run, shapes, torch.float32, backward)
    return totals(trace, "backward" if backward else "forward")["bytes_moved"]


def named(run, *shapes, dtype=torch.float32):
    """The operations that a run leaves uncounted."""
    with fake_world():
        return set(uncounted(_trace(run, shapes, dtype, backward=False), "forward"))


def counted_by_symbols(run, *shapes, dtype=torch.float32):
    """The same with every size above 1 a symbol, evaluated at the sizes."""
    hints = {f"s{size}": size for shape in shapes if shape for size in shape if size > 1}
    environment, sizes, names = symbolic_sizes(hints)
    of = {hint: sizes[name] for name, hint in hints.items()}
    symbolic = [shape and tuple(of.get(size, size) for size in shape) for shape in shapes]
    with user_symbols(names), fake_world(environment):
        counts = totals(_trace(run, symbolic, dtype, backward=False), "forward")
    values = {letter: evaluate(counts[kind], hints) for letter, kind in LETTERS.items()}
    return {letter: value for letter, value in values.items() if value}


def _trace(run, shapes, dtype, backward):
    tensors = [None if shape is None else torch.zeros(shape, dtype=dtype) for shape in shapes]
    recorder = Recorder()
    recorder.follow(tensors)
    if not backward:
        with torch.no_grad(), recorder:
            run(*tensors)
        return recorder.trace
    for x in tensors:
        x.requires_grad_()
    with recorder:
        y = run(*tensors)
        recorder.part = "backward"
        y.backward(torch.ones_like(y))
    return recorder.trace


def _letters(trace, backward):
    phase = "backward" if backward else "forward"
    assert not uncounted(trace, phase)
    counts = totals(trace, phase)
    return {letter: counts[kind] for letter, kind in LETTERS.items() if counts[kind]}


def each(text, entries):
    """``"3M A O"`` for each of so many entries, as counts."""
    return {word[-1]: int(word[:-1] or 1) * entries for word in text.split()}


def plus(*parts):
    """Counts added letter by letter."""
    letters = {letter for part in parts for letter in part}
    return {letter: sum(part.get(letter, 0) for part in parts) for letter in letters}


def products(macs):
    """A matrix product of so many multiply-adds."""
    return {"M": macs, "A": macs, "P": 2 * macs}
