"""Run a target once at given sizes, concrete or symbolic, and record what it does."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
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
from attnprof.trace.events import Trace
from attnprof.trace.rules.unwatched import adding_in_place
from attnprof.trace.run.call_by_call import Calls
from attnprof.trace.run.disguise import notes_of_compiling
from attnprof.trace.run.experts import Routing, as_with_values
from attnprof.trace.run.limits import Limit
from attnprof.trace.run.recorder import Recorder
from attnprof.trace.run.submodules import Submodules
from attnprof.trace.run.surroundings import check_tables, put_back_after
from attnprof.trace.run.values import Values, extreme_draws
from attnprof.trace.run.worlds import (
    fake_world,
    meta_world,
    real_world,
    refusing_unsupported_tensors,
    settle,
)
from attnprof.trace.sizes import numel, size_of
from attnprof.user_code import contained

if TYPE_CHECKING:
    from attnprof.trace.request.target import Sizes, Target

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
