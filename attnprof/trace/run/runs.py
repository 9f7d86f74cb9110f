"""Run a target once at given sizes, concrete or symbolic, and record what it does.

A module may keep what it makes (tables of positions, a cache, a counter), so that its first call
does more or less than later ones. A later call is recorded if the first one left tensors, unless
its matrix products differ, as with a cache of earlier tokens (:class:`Calls`).
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _pop_mode_temporarily
from torch.utils._pytree import tree_leaves

from attnprof.blocks.cache import kept_by, tensors_within
from attnprof.errors import CannotRunError
from attnprof.ops.loops import followed_by
from attnprof.processes import with_room_for_calls
from attnprof.trace.events import Call, Trace, added, totals
from attnprof.trace.rules.unwatched import adding_in_place
from attnprof.trace.run.disguise import notes_of_compiling
from attnprof.trace.run.experts import Routing, as_with_values
from attnprof.trace.run.limits import Limit, TooLongError
from attnprof.trace.run.recorder import Recorder
from attnprof.trace.run.submodules import Submodules, held_by
from attnprof.trace.run.surroundings import Surroundings, check_tables, put_back_after
from attnprof.trace.run.values import Values, extreme_draws, key_of
from attnprof.trace.run.worlds import (
    fake_world,
    meta_world,
    real_world,
    refusing_unsupported_tensors,
    settle,
)
from attnprof.trace.sizes import numel, size_of, storage_bytes
from attnprof.user_code import contained, error_text

if TYPE_CHECKING:
    from attnprof.trace.request.target import Sizes, Target

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


#: Most bytes that a run on real tensors may hold, besides its weights.
MOST_BYTES = 2**30


@contained()
@with_room_for_calls
def record(
    target: "Target", sizes: "Sizes", *, training: bool, most: float = inf,
    environment: Any = None, before_each: Callable[[], None] | None = None, on_meta: bool = False,
    real: bool = False, flipped: int | None = None, once: bool = False, draws: int | None = None,
    calls: int = 1,
) -> Trace:  # fmt: skip
    """Return the trace of a forward pass without autograd, or of a forward and a backward pass.

    The gradient of the (first) output is ones, and ``.grad`` is empty before.
    :class:`TooLongError` ends a run of more than ``most`` operations; ``before_each``, called at
    every one, replaces that check. ``on_meta``: on meta tensors, thrice as fast as fake ones, with
    other kernels than a device's; ``real``: on real tensors, where the truth value number
    ``flipped`` that the code takes from values is inverted. ``once``: of a loop's turns that are
    alike one is run, as under symbolic sizes. Random numbers begin with ``draws``, see
    :func:`attnprof.trace.run.values.extreme_draws`. Up to ``calls`` calls of the module are
    compared with the one that is returned.
    """
    real = real or target.mode.real
    on_meta = on_meta and not real and not target.mode.routed
    world: Any = real_world if real else meta_world if on_meta else partial(fake_world, environment)
    routing = Routing() if target.mode.routed else None
    everywhere = put_back_after(target.make)
    refusing = refusing_unsupported_tensors(symbolic=environment is not None)
    with (
        everywhere as surroundings,
        world(target.dtype),
        adding_in_place(),
        as_with_values(routing),
        refusing,
    ):
        subject, positional, named = _subject_and_inputs(target, sizes, on_meta=on_meta)
        parameters, buffers = _weights(subject)
        if isinstance(subject, torch.nn.Module):
            subject.train(training)
        inputs = tensors_of((positional, named))
        values = Values(flipped) if real else None
        check = before_each or Limit(most)
        parts = Submodules(subject)
        recorder = Recorder(check, values, parts, routing)
        recorder.follow([*buffers, *tensors_within(kept_by(subject))], replaceable=True)
        recorder.follow([*parameters, *inputs])
        if values is not None:
            recorder.before_each = _within_memory(recorder.trace, check)
            for tensor in _floating(inputs):  # zeros make matrices singular
                tensor.normal_()
            values.note_inputs([*parameters, *inputs])
        with parts.followed(), followed_by(recorder) if environment or once else nullcontext():
            graded = [] if target.mode.ungraded_inputs else _floating(inputs)
            call = partial(_train if training else _call, subject, positional, named, graded)
            with_grads = [*parameters, *inputs]
            with extreme_draws(draws):
                Calls(call, recorder, subject, surroundings, with_grads).record(calls)
        if looked_up := getattr(environment, "looked_up", None):
            check_tables(looked_up, surroundings.tables(subject))
        recorder.trace.parameters = sum(map(numel, parameters), start=0)
        recorder.trace.notes += [*notes_of_compiling(), *recorder.choices.notes]
        used = [*(values.on_choices if values else ()), *(routing.used if routing else ())]
        recorder.trace.routes = list(dict.fromkeys(route.sizes for route in used))
        return recorder.trace


def _subject_and_inputs(target: "Target", sizes: "Sizes", *, on_meta: bool) -> tuple[Any, Any, Any]:
    """Return the module or function, with weights, and positional and named inputs of its call."""
    subject = target.make(sizes)
    positional, named = target.call_inputs(sizes, "meta" if on_meta else "cpu")
    settle(subject, positional, named)
    if on_meta and not all(tensor.is_meta for group in _weights(subject) for tensor in group):
        raise RuntimeError("tensors with values in a run without")  # they must not be touched
    return subject, positional, named


def _floating(tensors: Iterable[Any]) -> list[Any]:
    return [tensor for tensor in tensors if tensor.is_floating_point()]


def outcome(target: "Target", sizes: "Sizes", **how: Any) -> Trace | Exception:
    """Return a run's trace, or the exception that ends it."""
    try:
        return record(target, sizes, **how)
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        return error


class TooLargeError(CannotRunError):
    """A run on real tensors takes too much memory."""


def _within_memory(trace: Trace, before_each: Callable[[], None]) -> Callable[[], None]:
    """Return a check before each operation on real tensors: TooLargeError ends a large run."""
    live_bytes = counted = 0

    def look() -> None:
        nonlocal live_bytes, counted
        live_bytes += sum(call.takes - call.gives for call in trace.calls[counted:])
        counted = len(trace.calls)
        if live_bytes > MOST_BYTES:
            raise TooLargeError(f"on real tensors it takes more than {MOST_BYTES // 2**20} MiB")
        before_each()

    return look


def _weights(subject: Any) -> tuple[list[Any], list[Any]]:
    """Return parameters and buffers of a module; a function has none."""
    if not isinstance(subject, torch.nn.Module):
        return [], []
    return list(subject.parameters()), list(subject.buffers())


def weight_bytes(target: "Target", sizes: "Sizes") -> int:
    """Return the bytes of a module's parameters and buffers at concrete sizes, none allocated."""
    with put_back_after(target.make), fake_world(None, target.dtype):
        subject = _subject_and_inputs(target, sizes, on_meta=False)[0]
        return sum(tensor.nbytes for group in _weights(subject) for tensor in group)


def _call(subject: Any, positional: Any, named: Any, _inputs: Any, recorder: Recorder) -> None:
    with torch.no_grad(), recorder:
        kept = subject(*positional, **named)
    del kept


def _train(subject: Any, positional: Any, named: Any, inputs: Any, recorder: Recorder) -> None:
    for x in inputs:
        x.requires_grad_()
    with recorder:
        kept = subject(*positional, **named)
        output = first_tensor(kept)
        recorder.trace.notes += _notes_on_outputs(kept, output)
        with _pop_mode_temporarily():  # the recorder: what the run is given is no part of it
            ones = torch.ones_like(output)
            recorder.follow(ones)
        recorder.part = "backward"
        with recorder.correct_gradients(output):
            output.backward(ones)
    del kept, output


def _notes_on_outputs(result: Any, output: Any) -> list[str]:
    """Return a note if other outputs have a gradient, too; besides a loss, other losses alone."""

    def shape(tensor: Any) -> str:
        return "(" + ", ".join(str(size_of(size)) for size in tensor.shape) + ")"

    others = [x for x in tensors_of(result) if x.requires_grad and x is not output]
    others = [x for x in others if output.dim() or not x.dim()]
    more = ", ".join(map(shape, others[:3])) + (", …" if len(others) > 3 else "")
    first = f"the first output that has a gradient, of shape {shape(output)}"
    rest = f"{len(others)} others, of {more}, are" if len(others) > 1 else f"another, of {more}, is"
    return [f"the backward pass is that of {first}; {rest} not differentiated"] if others else []


def tensors_of(result: Any) -> list[Any]:
    """Return the tensors of a result, in order; of a mapping, the tensors among its values.

    Of an object that torch's trees do not know, as a dataclass, the tensors that it holds.
    """
    values = list(result.values()) if isinstance(result, Mapping) else result
    return [x for leaf in tree_leaves(values) for x in tensors_within(leaf)]


def first_tensor(result: Any) -> Any:
    """Return the output that a loss would take: the first one with a gradient, or the first."""
    leaves = tensors_of(result)
    if not leaves:
        raise ValueError("it returns no tensor")
    return next((leaf for leaf in leaves if leaf.requires_grad), leaves[0])
