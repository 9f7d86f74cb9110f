"""Find how many tokens code takes as one block, by running it at chosen lengths.

Asked where the conditions that a symbolic run met do not name the length of a block.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import sympy

from attnprof.algebra.expressions import symbol
from attnprof.trace.events import trains
from attnprof.trace.request.target import EVEN, Target
from attnprof.trace.run.runs import outcome
from attnprof.trace.sizes import evaluate

#: Sizes that become numbers first where code does not say which it makes one of.
FIRST = ("N", "B", "h", "d")
#: Lengths of a block that are tried: where code runs at multiples alone, and where at any length.
_BLOCKS, _USUAL = (2, 4, 8, 16, 64, 256), (64, 256)
#: Sizes of which none is a multiple of another.
_PRIMES = 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43
#: Operations of a run that only shows whether the code runs.
SHORT = 3000


def block_guesses(target: Target, phases: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield guesses at the block of a length: a size (``{"N": C}``) or a number (``{"N": 64}``)."""
    if "N" not in target.symbols:
        return

    def runs(length: int, **sizes: int) -> bool:
        return _runs(target, phases, N=length, **sizes)

    own = _prime_sizes(target)
    if len(own) > 1:  # first the one whose multiples are lengths at which it runs
        own = dict(sorted(own.items(), key=lambda x: not runs(3 * x[1], **own)))
    yield from ({"N": symbol(x)} for x in own)
    usual = _USUAL if runs(37) else [n for n in _BLOCKS if runs(3 * n) and runs(5 * n)]
    yield from ({"N": sympy.Integer(block)} for block in usual)


def _prime_sizes(target: Target) -> dict[str, int]:
    """Return a prime for each size but B, N, h and d: ``{"C": 5, "chunk": 7}``."""
    return dict(zip((x for x in target.symbols if x not in FIRST), _PRIMES, strict=False))


def _runs(target: Target, phases: Sequence[str], **sizes: int) -> bool:
    """Return whether the code runs at these sizes, with even numbers for the others."""
    even = {x: EVEN.get(x, 16) for x in target.symbols} | sizes
    found = outcome(target, even, training=trains(phases), most=SHORT)
    return not isinstance(found, Exception)


def needs_blocks(
    target: Target, phases: Sequence[str], blocks: Mapping[str, Any], pins: Iterable[Any]
) -> bool:
    """Return whether lengths must be whole blocks, though a symbolic run only fixed a remainder.

    ``pins`` are the conditions that fixed it. At some widths the entries of any length can be
    divided, so the code is run at prime sizes: with whole blocks, and with one token more.
    """
    rests = {symbol(f"{x} mod {block}"): (x, block) for x, block in blocks.items()}
    fixed = [rests[size] for pin in pins for size in pin.free_symbols if size in rests]
    own = _prime_sizes(target)
    for name, block in fixed:
        if block.free_symbols and {x.name for x in block.free_symbols} <= set(own):
            length = 3 * int(evaluate(block, own))
            whole, ragged = ({**own, name: length + rest} for rest in (0, 1))
            return _runs(target, phases, **whole) and not _runs(target, phases, **ragged)
    return False
