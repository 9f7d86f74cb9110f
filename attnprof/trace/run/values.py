"""Follow what a run depends on besides sizes: ranges of indices, values, random numbers.

``table[torch.arange(N)]`` runs as far as the table reaches. The smallest and the largest index are
followed from ``arange`` on: a lookup outside fails, and the table's length becomes a condition.
"""

import random
import sys
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from attnprof.trace.events import Decision
from attnprof.trace.rules import name_of, tensors_in
from attnprof.trace.rules.workspaces import is_mask, same
from attnprof.trace.sizes import numel

_NUMBERS, _SHAPES = torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape
#: Its result's size depends on values only where it takes masks.
_INDEX = torch.ops.aten.index.Tensor
#: Operations that keep the numbers of their operand.
_KEEP = ("clone", "_to_copy", "repeat", "flip", "roll")

Ends = tuple[Any, Any]  # the smallest and the largest of whole numbers
Storages = Mapping[int, Any]  # live storages by key; ``counted`` is a CountedOff, or None


@dataclass(frozen=True)
class CountedOff:
    """Whole numbers in a storage: ``first`` and one more each, or from ``first`` to ``last``."""

    first: Any
    last: Any = None
    entries: Any = None

    def ends(self, tensor: Any) -> Ends | None:
        """Return the smallest and largest number of a tensor in this storage, if known."""
        if self.last is None:
            first = self.first + tensor.storage_offset()
            steps = zip(tensor.shape, tensor.stride(), strict=True)
            return first, first + sum((n - 1) * step for n, step in steps)
        return (self.first, self.last) if same(numel(tensor), self.entries) else None


def counted_off(
    func: Any, out: Any, args: tuple[Any, ...], storages: Storages
) -> CountedOff | None:
    """Return the range of whole numbers that an operation's result holds, if known."""
    name = name_of(func).removeprefix("aten.")
    if name == "arange":
        first, step = args[0] if len(args) > 1 else 0, args[2] if len(args) > 2 else 1
        by_one = isinstance(first, int | torch.SymInt) and isinstance(step, int) and step == 1
        return CountedOff(first) if by_one else None
    if name not in (*_KEEP, "add", "sub"):
        return None
    ends = _ends(args[0], storages)
    other = (0, 0) if name in _KEEP else _ends(args[1], storages)
    if ends is None or other is None:
        return None
    low, high = other if name != "sub" else (-other[1], -other[0])
    return CountedOff(ends[0] + low, ends[1] + high, numel(out))


def refuse_outside(func: Any, args: tuple[Any, ...], storages: Storages) -> None:
    """Raise :class:`IndexError` if a lookup goes beyond its table; else that becomes a guard."""
    name = name_of(func).removeprefix("aten.")
    lookups: list[tuple[Any, int, Any]] = []
    if name == "embedding":
        lookups = [(args[0], 0, args[1])]
    elif name in ("index_select", "gather"):
        lookups = [(args[0], args[1], args[2])]
    elif name == "index":
        lookups = [(args[0], dim, index) for dim, index in enumerate(args[1]) if index is not None]
    for table, dim, index in lookups:
        ends, rows = _ends(index, storages), table.shape[dim]
        if ends and (ends[1] >= rows or ends[0] < (-rows if name == "index" else 0)):
            raise IndexError("index out of range in self")  # torch's words
    if name == "slice" and len(args) == 4 and args[2] == 0:
        bool(args[0].shape[args[1]] <= args[3])  # of all rows it would be no operation


def key_of(tensor: Any) -> int:
    """Return a key of a tensor's storage, valid for as long as that lives."""
    key: int = tensor.untyped_storage()._cdata
    return key


def _ends(value: Any, storages: Storages) -> Ends | None:
    """Return the smallest and largest number of a tensor, or of a number, if known."""
    if not isinstance(value, torch.Tensor):
        return (value, value) if isinstance(value, int | torch.SymInt) else None
    storage = storages.get(key_of(value))
    return storage.counted.ends(value) if storage and storage.counted else None


# -- what code takes from values in a run on real tensors ---------------------------------
class Values:
    """The storages made of inputs and weights, and ``decisions`` that code takes from values.

    The truth value number ``flipped`` is inverted, to see what the other branch costs.
    ``on_choices`` are routes of evenly chosen experts whose values decided something.
    """

    def __init__(self, flipped: int | None = None) -> None:
        self.decisions = list[Decision]()
        self.on_choices = list[Any]()
        self._flipped = flipped
        self._chosen = dict[int, Any]()
        self._made_of_inputs: set[int] = set()

    def note_inputs(self, tensors: Any) -> None:
        """Note tensors as inputs and weights."""
        self._made_of_inputs |= {key_of(tensor) for tensor in tensors_in(tensors)}

    def spread(self, indices: Any, route: Any) -> None:
        """Note indices as chosen evenly: they do not depend on inputs."""
        self._made_of_inputs.discard(key_of(indices))
        self._chosen[key_of(indices)] = route

    def after(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, line: str
    ) -> Any:
        """Return an operation's result, inverted if it is ``flipped``; add a decision it makes."""
        by_values = self._depends((args, kwargs))
        tags = getattr(func, "tags", ())
        chosen = [key_of(x) for x in tensors_in((args, kwargs)) if key_of(x) in self._chosen]
        # the size of an indexed result depends on masks' values, and on other indices' number
        deciding = list(filter(is_mask, tensors_in(args[1]))) if func is _INDEX else (args, kwargs)
        if deciding and (_NUMBERS in tags or _SHAPES in tags):
            truth = isinstance(out, bool)
            depends = self._depends(deciding)
            self.on_choices += [] if depends else [self._chosen[key] for key in chosen]
            self.decisions.append(Decision(name_of(func), line, depends, truth, _SHAPES in tags))
            if truth and len(self.decisions) - 1 == self._flipped:
                return not out
        name = name_of(func).removeprefix("aten.")
        blank = name.endswith("_like") or name.startswith("new_")  # of the shape alone
        schema = getattr(func, "_schema", None)
        may_alias = schema is None or any(argument.alias_info for argument in schema.arguments)
        for tensor in tensors_in(out):
            if chosen:
                self._chosen[key_of(tensor)] = self._chosen[chosen[0]]
            if by_values and not blank:
                self._made_of_inputs.add(key_of(tensor))
            elif blank or not may_alias:
                self._made_of_inputs.discard(key_of(tensor))
        return out

    def _depends(self, value: Any) -> bool:
        return any(key_of(tensor) in self._made_of_inputs for tensor in tensors_in(value))


# -- random numbers, made low or high on purpose, to see whether they decide what runs ----
# A layer that is dropped with a probability of 0.05 runs in most runs alike. So the generators of
# Python, numpy and torch, which are all Mersenne twisters, get states whose first numbers are the
# smallest there are, or the largest: ``random() < 0.05`` is then true, or false, at once.
#: Words of a twister's state, and how many are extreme: code that redraws extremes must end.
_WORDS, _EXTREME = 624, 64
#: The words of a state that give the smallest 32-bit number, and the largest.
LOW, HIGH = 0, 0x12DD9BB3


Draws = tuple[Any, ...]


def generator_states() -> Draws:
    """Return the states of the generators of Python and numpy, to be compared later."""
    numpy = sys.modules.get("numpy.random")
    state = numpy.get_state(legacy=False)["state"] if numpy else {}
    return random.getstate(), state.get("pos"), bytes(state.get("key", b""))


@contextmanager
def extreme_draws(word: int | None) -> Iterator[None]:
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
