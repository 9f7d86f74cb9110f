"""Choose which call of a module is recorded, and compare the calls before and after it.

A module may keep what it makes (tables of positions, a cache, a counter), so that its first call
does more or less than later ones. A later call is recorded if the first one left tensors, unless
its matrix products differ, as with a cache of earlier tokens.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from attnprof.trace.events import Call, added, totals
from attnprof.trace.run.limits import TooLongError
from attnprof.trace.run.recorder import Recorder
from attnprof.trace.run.submodules import held_by
from attnprof.trace.run.surroundings import Surroundings
from attnprof.trace.run.values import key_of
from attnprof.trace.sizes import storage_bytes
from attnprof.user_code import error_text

#: Operations of all compared calls after which no further one is made.
_OPERATIONS = 4_000
#: Quantities that a sentence on a difference names first, and the most that it names.
_FIRST, _SHOWN = ("flops", "bytes_moved", "peak_bytes"), 3


@dataclass
class Calls:
    """Calls of a module, one after the other; ``with_grads`` are tensors that get gradients."""

    call: Callable[[Recorder], None]
    recorder: Recorder
    subject: Any
    surroundings: Surroundings
    with_grads: list[Any]

    def record(self, most: int) -> None:
        """Record one call in the recorder's trace; compare it with up to ``most - 1`` others."""
        before = _flags(self.subject)
        self.call(self.recorder)
        if self.recorder.part == "backward":
            self.recorder.trace.ungraded = _ungraded(self.subject)
        first, number = self._totals() if most > 1 else {}, 1
        kept, is_set_up = self._kept_tensors(), _flags(self.subject) != before
        if kept or is_set_up:
            number += self._record_next(kept, always=is_set_up)
        if most > 1:
            self._compare(first, number, most)

    def _kept_tensors(self) -> list[Any]:
        """Return the tensors that the module keeps from earlier calls, without gradients."""
        for tensor in self.with_grads:
            tensor.grad = None
        return self.recorder.left(lambda: [*held_by(self.subject), *self.surroundings.tensors()])

    def _record_next(self, kept: list[Any], *, always: bool) -> bool:
        """Record the next call in place of the first, and return True.

        The first one stays if the next has other matrix products, unless ``always``: then flags of
        the module say that the first call set it up. It also stays if the next one fails, as
        backward does through kept tensors whose graph is gone.
        """

        def products(calls: list[Call]) -> Any:
            return added([call.counts.get("matmul_flops", 0) for call in calls])

        first, trace = self.recorder.restart_for_next_call(kept), self.recorder.trace
        try:
            self.call(self.recorder)
            is_other = not always and products(trace.calls) != products(first.calls)
        except RuntimeError:
            is_other = True
        if is_other:
            trace.calls, trace.notes = first.calls, first.notes
        elif first.calls != trace.calls:
            why = "is set up by" if always else "keeps tensors of"
            trace.notes.append(f"the module {why} its first call: this is a later one")
        return not is_other

    def _compare(self, first: Any, number: int, most: int) -> None:
        """Note in the trace how the first and the next call differ in cost from the recorded one.

        As long as each call changes the module's state, further ones follow, ``most`` in all.
        """
        trace, expected = self.recorder.trace, self._totals()
        if difference := _differences(expected, first):
            trace.other_calls.append(f"the first call of a module costs {difference}")
        recorded = trace.calls, trace.notes, trace.before
        operations, more_bytes = len(trace.calls), 0
        trace.calls, trace.notes = [], []
        kept, state = self._kept_tensors(), self._state()
        for later in range(number + 1, most + 1):
            self.recorder.restart_for_next_call(kept)
            difference = ""
            try:
                self.call(self.recorder)
                difference = _differences(expected, self._totals())
                difference = difference and f"call {later} of the same module costs {difference}"
            except TooLongError:
                break
            except Exception as error:  # noqa: BLE001 - the user's code may raise anything
                difference = f"call {later} of the same module raises {error_text(error)}"
            if difference:
                trace.other_calls.append(difference)
                trace.is_steady = False
                break
            now_kept, new_state = self._kept_tensors(), self._state()
            more_bytes = _bytes(now_kept) - _bytes(kept)
            operations += len(trace.calls)
            if new_state == state or operations > _OPERATIONS:
                break
            kept, state = now_kept, new_state
        if more_bytes > 0:
            sentence = f"every call of a module leaves {more_bytes} bytes more in memory"
            trace.other_calls.append(sentence)
        trace.calls, trace.notes, trace.before = recorded

    def _totals(self) -> dict[str, dict[str, Any]]:
        parts = dict.fromkeys(call.part for call in self.recorder.trace.calls)
        return {part: totals(self.recorder.trace, part) for part in parts}

    def _state(self) -> list[Any]:
        """Return plain values and lengths of containers, which show whether a call changed any."""
        parts = self.subject.modules() if isinstance(self.subject, torch.nn.Module) else ()
        values = [value for part in parts for value in vars(part).values()]
        plain = [value for value in values if isinstance(value, (int, float, str))]
        sizes = [len(value) for value in values if isinstance(value, (dict, list, set, deque))]
        return [plain, sizes, self.surroundings.state()]


def _differences(expected: Any, counted: Any) -> str:
    """Return in words where a call's costs are not the expected ones, FLOPs and bytes first."""
    sentences = [
        f"{counted.get(part, {}).get(name, 0)} {part} {name.replace('_', ' ')}, not {value}"
        for part, quantities in expected.items()
        for name, value in sorted(quantities.items(), key=lambda item: item[0] not in _FIRST)
        if value != counted.get(part, {}).get(name, 0)
    ]
    return "; ".join(sentences[:_SHOWN])


def _bytes(tensors: Iterable[Any]) -> Any:
    """Return the bytes of the storages behind tensors."""
    return sum({key_of(tensor): storage_bytes(tensor) for tensor in tensors}.values())


def _ungraded(subject: Any) -> frozenset[str]:
    """Return parameters that take a gradient, and have none after a backward pass."""
    named = subject.named_parameters() if isinstance(subject, torch.nn.Module) else ()
    return frozenset(name for name, x in named if x.requires_grad and x.grad is None)


def _flags(subject: Any) -> list[bool]:
    """Return a module's truth values, also in buffers: flags that show whether it is set up."""
    parts = subject.modules() if isinstance(subject, torch.nn.Module) else ()
    flags = list[bool]()
    for part in parts:
        flags += [value for value in vars(part).values() if isinstance(value, bool)]
        for buffer in part.buffers(recurse=False):
            has_value = not buffer.is_meta and getattr(buffer, "constant", buffer) is not None
            if has_value and buffer.dtype is torch.bool and buffer.dim() == 0:
                flags.append(bool(buffer))
    return flags
