"""One run of a target at given sizes, concrete or symbolic, recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from attnprof.trace.events import Trace
from attnprof.trace.rules.in_place import adding_in_place
from attnprof.trace.run.decisions import Values
from attnprof.trace.run.disguise import notes_of_compiling
from attnprof.trace.run.recorder import Recorder
from attnprof.trace.run.worlds import fake_world, meta_world, real_world
from attnprof.trace.sizes import numel, size_of
from attnprof.user_code import contained

if TYPE_CHECKING:
    from attnprof.trace.request.target import Sizes, Target

#: What a run on real tensors may hold, beside its weights.
MOST_BYTES = 2**30


@contained()
def record(
    target: Target,
    sizes: Sizes,
    *,
    training: bool,
    environment: Any = None,
    before_each: Callable[[], None] | None = None,
    swift: bool = False,
    real: bool = False,
    flipped: int | None = None,
) -> Trace:
    """A forward pass without autograd, or a forward and a backward pass with it.

    The gradient of the (first) output is given, of ones; ``.grad`` is empty before.
    ``before_each`` is called before every operation; what it raises ends the run. ``swift`` runs
    on meta tensors: three times faster than fake ones, but kernels are not those of a device.
    ``real`` runs on real tensors: zeros, floating ones random, weights as the module draws them;
    the truth value number ``flipped`` that the code takes from values is turned round.
    """
    real = real or target.real
    swift = swift and not real
    if real:
        world: Any = real_world(target.dtype)
    else:
        world = meta_world(target.dtype) if swift else fake_world(environment, target.dtype)
    with world, adding_in_place():
        subject = target.make(sizes)
        positional, named = target.call_inputs(sizes, "meta" if swift else "cpu")
        if swift:
            _refuse_real(subject)
        parameters = _prepared(subject, training)
        inputs = [x for x in tree_leaves((positional, named)) if isinstance(x, torch.Tensor)]
        values = Values(flipped) if real else None
        recorder = Recorder(before_each, values)
        if real:
            recorder.before_each = _within_memory(recorder.trace, before_each)
        recorder.given([*parameters, *_buffers(subject), *inputs])
        if values is not None:
            values.given([*parameters, *_drawn(inputs)])
        if training:
            _train(subject, positional, named, inputs, recorder)
        else:
            with torch.no_grad(), recorder:
                kept = subject(*positional, **named)
            del kept
        trace = recorder.trace
        trace.parameters = sum((numel(p) for p in parameters), start=0)
        trace.notes += notes_of_compiling()
        return trace


class TooLargeError(Exception):
    """A run on real tensors takes too much memory."""


def _within_memory(trace: Trace, before_each: Callable[[], None] | None) -> Callable[[], None]:
    """What to call before each operation of a run on real tensors; TooLargeError ends it."""
    held = seen = 0

    def look() -> None:
        nonlocal held, seen
        held += sum(call.takes - call.gives for call in trace.calls[seen:])
        seen = len(trace.calls)
        if held > MOST_BYTES:
            raise TooLargeError(f"on real tensors it takes more than {MOST_BYTES // 2**20} MiB")
        if before_each is not None:
            before_each()

    return look


def _prepared(subject: Any, training: bool) -> list[Any]:
    """The module's parameters; in training mode only where it trains."""
    if not isinstance(subject, torch.nn.Module):
        return []
    subject.train(training)
    return list(subject.parameters())


def _drawn(inputs: list[Any]) -> list[Any]:
    """The inputs, floating ones drawn: zeros make matrices singular."""
    for tensor in inputs:
        if tensor.is_floating_point():
            tensor.normal_()
    return inputs


def weights(target: Target, sizes: Sizes) -> int:
    """Bytes of a module's parameters and buffers at concrete sizes; nothing is allocated."""
    with fake_world(None, target.dtype):
        subject = target.make(sizes)
        held = [*subject.parameters(), *subject.buffers()] if _is_module(subject) else []
        return int(sum(tensor.numel() * tensor.element_size() for tensor in held))


def _is_module(subject: Any) -> bool:
    return isinstance(subject, torch.nn.Module)


def _refuse_real(subject: Any) -> None:
    """A module that exists already has real weights, which must not be touched."""
    held = (
        [*subject.parameters(), *subject.buffers()] if isinstance(subject, torch.nn.Module) else []
    )
    if any(not tensor.is_meta for tensor in held):
        raise RuntimeError("tensors with values in a run without")


def _buffers(subject: Any) -> list[Any]:
    return list(subject.buffers()) if isinstance(subject, torch.nn.Module) else []


def _train(subject: Any, positional: Any, named: Any, inputs: Any, recorder: Recorder) -> None:
    for x in inputs:
        if x.is_floating_point():
            x.requires_grad_()
    with recorder:
        kept = subject(*positional, **named)
        output = first_tensor(kept)
        recorder.trace.notes += _left_out(kept, output)
        with recorder.paused():
            ones = torch.ones_like(output)
            recorder.given(ones)
        recorder.part = "backward"
        with recorder.put_back(output):
            output.backward(ones)
    del kept, output


def _left_out(result: Any, output: Any) -> list[str]:
    """A note where more than one tensor of a result has a gradient."""
    others = [x for x in tensors_of(result) if x.requires_grad and x is not output]
    if not others:
        return []
    more = ", ".join(map(_shape, others[:3])) + (", …" if len(others) > 3 else "")
    told = f"of shape {_shape(output)}; {len(others)} more, of {more}, are not differentiated"
    return [f"the backward pass is that of the first output with a gradient, {told}"]


def _shape(tensor: Any) -> str:
    return "(" + ", ".join(str(size_of(size)) for size in tensor.shape) + ")"


def tensors_of(result: Any) -> list[Any]:
    """The tensors of a result, in order; those of a mapping are its values."""
    values = list(result.values()) if isinstance(result, Mapping) else result
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def first_tensor(result: Any) -> Any:
    """The output that a loss would look at: the first one that has a gradient."""
    leaves = tensors_of(result)
    if not leaves:
        raise ValueError("it returns no tensor")
    return next((leaf for leaf in leaves if leaf.requires_grad), leaves[0])
