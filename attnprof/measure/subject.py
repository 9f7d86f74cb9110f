"""The real module with its inputs, and the call that is timed, for each phase."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from attnprof import registry
from attnprof.blocks import assemble
from attnprof.errors import AttnprofError, CannotRunError, RequestError
from attnprof.measure.headroom import is_out_of_memory
from attnprof.measure.modules import UserModule, built, inputs_of
from attnprof.measure.request import PointRequest
from attnprof.trace.request.expressions import sizes_text
from attnprof.user_code import error_text


@dataclass(frozen=True)
class Subject:
    """``prepare`` sets the stage (not timed), ``call`` is what is measured.

    ``reset`` lets go of what earlier calls left behind: memory is counted from there on, so that
    a backward pass includes what its forward pass saved. ``state`` is the decoding state before
    the step that is measured. In training ``forward`` gives the output with what autograd keeps,
    and ``leaves`` are the inputs and parameters that get gradients.
    """

    module: Any
    reset: Callable[[], object]
    prepare: Callable[[], object]
    call: Callable[[], object]
    state: Any = None
    forward: Callable[[], object] | None = None
    leaves: Sequence[Any] = ()


def make_module(request: PointRequest) -> Any:
    """The layer (or, for scope ``core``, the core) with its weights drawn from the seed.

    Made on torch's current default device, so that it can be a meta or a fake one.
    """
    import torch

    spec = request.spec
    if isinstance(spec, UserModule):
        torch.manual_seed(request.seed)
        with default_dtype(request.dtype):
            return built(spec, request.workload)
    sizes = assemble.checked_sizes(
        spec, request.num_heads * request.head_dim, request.num_heads, request.seq_len
    )
    source = registry.module_of(request.mechanism)
    torch.manual_seed(request.seed)
    with default_dtype(request.dtype):  # converting afterwards fails on fake tensors
        if request.scope == "layer":
            return assemble.build_layer(spec, source, sizes)
        if spec.abilities.attend:
            return source.CORES[spec.name](spec, sizes)
    raise RequestError(f"{spec.name} {spec.refusal('attend')}")


@contextmanager
def default_dtype(name: str) -> Iterator[None]:
    """Parameters made inside have this number format."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, name))
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def make_inputs(request: PointRequest, *, requires_grad: bool = False) -> list[Any]:
    """Normal random inputs on torch's default device."""
    import torch

    if isinstance(request.spec, UserModule):
        return inputs_of(request.spec, request.workload, requires_grad=requires_grad)
    dtype = getattr(torch, request.dtype)
    shapes = request.input_shapes
    return [torch.randn(shape, dtype=dtype, requires_grad=requires_grad) for shape in shapes]


def build_subject(
    request: PointRequest, device: str | None = None, *, compiled: bool = False
) -> Subject:
    """The module and its call for the phase asked for, on a device; the call maybe compiled."""
    import torch

    from attnprof.measure.compilation import compiled as code_of

    with torch.device(device or request.device):
        module = make_module(request)
        if request.phase == "decode":
            return _decoding(request, module, code_of(module.step) if compiled else module.step)
        run = code_of(module) if compiled else module
        grad = request.phase != "forward"
        inputs = make_inputs(request, requires_grad=grad)
        if not grad:
            return Subject(module, _nothing, _nothing, _without_grad(run, inputs, request.causal))
        return _training(request, module, inputs, run)


@contextmanager
def refusing(request: PointRequest) -> Iterator[None]:
    """What a module of somebody's own raises inside becomes a refusal, with its line.

    Too little memory stays what it is, and so does what a mechanism of ours raises.
    """
    try:
        yield
    except AttnprofError:
        raise
    except (Exception, SystemExit) as error:
        if not isinstance(request.spec, UserModule) or is_out_of_memory(error):
            raise
        raise RequestError(
            f"{request.mechanism} does not run at {sizes_text(request.workload.by_symbol())}: "
            f"{error_text(error)}"
        ) from error


def _nothing() -> None:
    """Nothing to prepare."""


def _without_grad(run: Any, inputs: list[Any], causal: bool) -> Callable[[], object]:
    import torch

    def forward() -> object:
        with torch.no_grad():
            return run(*inputs, causal=causal)

    return forward


def _training(request: PointRequest, module: Any, inputs: list[Any], run: Any) -> Subject:
    """``train`` is forward and backward; ``backward`` runs its forward in ``prepare``.

    The output's gradient is made of ones beforehand; gradients start empty, so the first
    accumulation is a hand-over.
    """
    import torch

    leaves = [*inputs, *module.parameters()]
    with torch.no_grad():
        ones = torch.ones_like(module(*inputs, causal=request.causal))
    waiting: list[Any] = []

    def clear() -> None:
        waiting.clear()
        for leaf in leaves:
            leaf.grad = None

    def forward() -> Any:
        return run(*inputs, causal=request.causal)

    def keep() -> None:
        clear()
        waiting.append(forward())

    def backward() -> None:
        output = waiting.pop()
        output.backward(ones)

    def train() -> None:
        forward().backward(ones)

    if request.phase == "backward":
        return Subject(module, clear, keep, backward, None, forward, leaves)
    return Subject(module, clear, clear, train, None, forward, leaves)


def _decoding(request: PointRequest, module: Any, run: Any) -> Subject:
    """The step of token number ``seq_len``; each call starts from the state before it."""
    import torch

    state = position(module, request)
    inputs = make_inputs(request)
    rewind = rewind_to(state)

    def step() -> object:
        with torch.no_grad():
            return run(*inputs, state)

    return Subject(module, rewind, rewind, step, state)


#: Seconds that filling a state token by token may take.
PATIENCE_S = 60.0


def position(module: Any, request: PointRequest) -> Any:
    """The state after ``seq_len`` - 1 tokens.

    Shipped mechanisms' states are filled at once with random rows; one that does not know how to
    advance, by real steps. Raises :class:`CannotRunError` when those take more than a minute.
    """
    import torch

    from attnprof.blocks.decoding import positioned

    dtype = getattr(torch, request.dtype)
    if request.scope == "layer":
        state = module.init_state(request.batch_size)
    else:
        state = module.init_state(request.batch_size, torch.empty(0, dtype=dtype))
    tokens, start = request.seq_len - 1, time.perf_counter()

    def rows() -> list[Any]:
        return [torch.randn(shape, dtype=dtype) for shape in request.input_shapes]

    def patience(done: int) -> None:
        spent = time.perf_counter() - start
        if spent > PATIENCE_S:
            raise CannotRunError(
                f"the decoding state of {tokens} tokens is built token by token, and {done} "
                f"took {spent:.0f} s already; ask for a shorter --seq"
            )

    return positioned(module, state, tokens, rows, patience)


def rewind_to(state: Any) -> Callable[[], None]:
    """A function that puts counters, lists and references of a state back as they are now.

    Tensors that a step changes in place keep their new values: shapes, and so costs, are equal.
    """
    found = list(owners(state))
    kept = [dict(vars(owner)) for owner in found]
    items = [item for owner in found for item in vars(owner).values()]
    lists = [(item, list(item)) for item in items if isinstance(item, list)]

    def rewind() -> None:
        for owner, values in zip(found, kept, strict=True):
            for name, value in values.items():
                object.__setattr__(owner, name, value)
        for target, content in lists:
            target[:] = content

    return rewind


def owners(part: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """Objects of ours inside a state that have attributes; tensors are left alone."""
    seen = set() if seen is None else seen
    if id(part) in seen:
        return
    seen.add(id(part))
    inside: list[Any] = []
    if isinstance(part, (list, tuple)):
        inside = list(part)
    elif isinstance(part, dict):
        inside = list(part.values())
    elif type(part).__module__.split(".")[0] not in ("torch", "builtins") and hasattr(
        part, "__dict__"
    ):
        yield part
        inside = list(vars(part).values())
    for item in inside:
        yield from owners(item, seen)
