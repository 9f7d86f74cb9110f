"""Draws of random numbers, made low or high on purpose, to see whether they decide what runs.

A layer that is dropped with a probability of 0.05 runs in most runs alike. So the generators of
Python, numpy and torch, which are all Mersenne twisters, get states of which the first numbers are
the smallest there are, or the largest: ``random() < 0.05`` is then true, or false, at once.
"""

import random
import sys
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

#: Words of a twister's state, and how many are extreme: code that redraws extremes must end.
_WORDS, _EXTREME = 624, 64
#: The words of a state that give the smallest 32-bit number, and the largest.
LOW, HIGH = 0, 0x12DD9BB3
#: Bytes of torch's state before the words: seed, words left, seeded, next word.
_HEAD = 24


Draws = tuple[Any, ...]


def draws_seen() -> Draws:
    """Return the states of the generators of Python and numpy, to be compared later."""
    numpy = sys.modules.get("numpy.random")
    state = numpy.get_state(legacy=False)["state"] if numpy else {}
    return random.getstate(), state.get("pos"), bytes(state.get("key", b""))


@contextmanager
def drawn(word: int | None) -> Iterator[None]:
    """Make random draws inside begin with extreme numbers (LOW or HIGH); None leaves them alone."""
    if word is None:
        yield
        return
    other = random.Random(0)  # noqa: S311 - no secret
    words = [word] * _EXTREME
    words += [other.getrandbits(32) for _ in range(_WORDS - _EXTREME)]
    numpy: Any = sys.modules.get("numpy.random")
    with unset_fake_temporarily():
        before = random.getstate(), numpy and numpy.get_state(), torch.get_rng_state()
        states = (3, (*words, 0), None), ("MT19937", words, 0), _of_torch(before[2], words)
    _set_states(states, numpy)
    try:
        yield
    finally:
        _set_states(before, numpy)


def _set_states(states: tuple[Any, ...], numpy: Any) -> None:
    random.setstate(states[0])
    if numpy:
        numpy.set_state(states[1])
    with unset_fake_temporarily():
        torch.set_rng_state(states[2])


def _of_torch(state: torch.Tensor, words: list[int]) -> torch.Tensor:
    """Return a state of torch's generator with these words, the first one next."""
    head = array("Q", [0]) + array("Q", array("i", [_WORDS, 1]).tobytes()) + array("Q", [0])
    raw = head.tobytes() + array("Q", words).tobytes()
    content = bytearray(state.numpy().tobytes())
    content[: len(raw)] = raw
    return torch.frombuffer(content, dtype=torch.uint8).clone()
