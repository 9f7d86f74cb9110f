"""The real module with its inputs, and the call that is timed, for each phase."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from attnprof import registry
from attnprof.blocks import assemble
from attnprof.errors import AttnprofError, RequestError
from attnprof.measure.decoding import position, rewind_to
from attnprof.measure.headroom import is_out_of_memory
from attnprof.measure.modules import UserModule, built, inputs_of, sizes_of
from attnprof.measure.request import PointRequest
from attnprof.trace.derivation import told
from attnprof.trace.loading import told as said


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

    from attnprof.measure.compiling import compiled as code_of

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
            f"{request.mechanism} does not run at {told(sizes_of(request.workload))}: {said(error)}"
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
