"""Build the real module with its inputs, and the call that is timed, for each phase."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from attnprof import registry
from attnprof.blocks import core
from attnprof.blocks.cache import positioned
from attnprof.errors import AttnprofError, CannotRunError, RequestError
from attnprof.measure.request import PointRequest, UserModule, built
from attnprof.trace.request.target import sizes_text
from attnprof.user_code import error_text

#: The backend of ``torch.compile``; on a CPU it needs a C++ compiler.
BACKEND = "inductor"


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
    """Return the layer (or core), weights drawn from the seed, on torch's default device."""
    spec = request.spec
    if isinstance(spec, UserModule):
        torch.manual_seed(request.seed)
        with default_dtype(request.dtype):
            return built(spec, request.workload)
    sizes = core.checked_sizes(
        spec, request.num_heads * request.head_dim, request.num_heads, request.seq_len
    )
    source = registry.module_of(request.mechanism)
    torch.manual_seed(request.seed)
    with default_dtype(request.dtype):  # converting afterwards fails on fake tensors
        if request.scope == "layer":
            return core.build_layer(spec, source, sizes)
        if spec.abilities.attend:
            return source.CORES[spec.name](spec, sizes)
    raise RequestError(f"{spec.name} {spec.refusal('attend')}")


@contextmanager
def default_dtype(name: str) -> Iterator[None]:
    """Make parameters in the body with this number format."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, name))
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def make_inputs(request: PointRequest, *, requires_grad: bool = False) -> list[Any]:
    """Return inputs on torch's default device: normal random floats, zero integers."""
    inputs = []
    for shape, name in request.inputs:
        dtype = getattr(torch, name)
        if dtype.is_floating_point:
            inputs.append(torch.randn(shape, dtype=dtype, requires_grad=requires_grad))
        else:
            inputs.append(torch.zeros(shape, dtype=dtype))
    return inputs


def build_subject(
    request: PointRequest, device: str | None = None, *, compiled: bool = False
) -> Subject:
    """Return the module and its call for the request's phase; ``compiled``: compiled code."""
    with torch.device(device or request.device):
        module = make_module(request)
        if request.phase == "decode":
            state = position(module, request)  # each call starts from the state before the token
            run = compiled_for_one_shape(module.step) if compiled else module.step
            call = torch.no_grad()(partial(run, *make_inputs(request), state))
            rewind = rewind_to(state)
            return Subject(module, rewind, rewind, call, state)
        run = compiled_for_one_shape(module) if compiled else module
        grad = request.phase != "forward"
        inputs = make_inputs(request, requires_grad=grad)
        if not grad:
            call = torch.no_grad()(partial(run, *inputs, causal=request.causal))
            return Subject(module, lambda: None, lambda: None, call)
        return _training(request, module, inputs, run)


def compiled_for_one_shape(function: Any) -> Any:
    """Return a module or function, compiled for the shapes of its first call only."""
    # in this process alone: the compiler's helpers would compete with what is measured
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    torch.compiler.reset()  # code of earlier points; after a few shapes the compiler gives up
    return torch.compile(function, backend=BACKEND, dynamic=False)


def compile_now(
    prepare: Callable[[], object], call: Callable[[], object], settle: Callable[[], object]
) -> tuple[float, int]:
    """Make the first call, which compiles; return its seconds and the number of graph breaks.

    Raises :class:`CannotRunError` with the compiler's reason if it fails.
    """
    from torch._dynamo.utils import counters

    counters.clear()
    start = time.perf_counter()
    try:
        prepare()
        kept = call()
        settle()
    except AttnprofError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        first: BaseException = error  # compilers wrap their errors
        while (inner := getattr(first, "inner_exception", None) or first.__cause__) is not None:
            first = inner
        reason = (str(first).strip().splitlines() or ["no message"])[0].strip()[:160]
        raise CannotRunError(f"cannot be compiled: {type(first).__name__}: {reason}") from error
    del kept
    return time.perf_counter() - start, sum(counters["graph_break"].values())


@contextmanager
def refusing(request: PointRequest) -> Iterator[None]:
    """Turn exceptions of a user's module in the body into a RequestError that names its line.

    Running out of memory stays as it is, and so do exceptions of our mechanisms.
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


_OUT_OF_MEMORY = ("not enough memory", "out of memory", "can't allocate memory", "invalid buffer")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means out of memory; on the CPU a plain RuntimeError does."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(mark in text for mark in _OUT_OF_MEMORY)


def _training(request: PointRequest, module: Any, inputs: list[Any], run: Any) -> Subject:
    """Return the subject of ``train``, or of ``backward``, which runs forward in ``prepare``."""
    leaves = [*inputs, *module.parameters()]
    with torch.no_grad():
        ones = torch.ones_like(module(*inputs, causal=request.causal))
    outputs: list[Any] = []  # of a forward pass that waits for its backward pass

    def clear() -> None:
        outputs.clear()
        for leaf in leaves:
            leaf.grad = None

    forward = partial(run, *inputs, causal=request.causal)

    def run_forward() -> None:
        clear()
        outputs.append(forward())

    def backward() -> None:
        outputs.pop().backward(ones)

    def train() -> None:
        forward().backward(ones)

    if request.phase == "backward":
        return Subject(module, clear, run_forward, backward, None, forward, leaves)
    return Subject(module, clear, clear, train, None, forward, leaves)


#: Seconds that filling a state token by token may take.
PATIENCE_S = 60.0


def position(module: Any, request: PointRequest) -> Any:
    """Return the decoding state after ``seq_len`` - 1 tokens.

    A state that can advance at once is filled with random rows; another one is built by real steps.
    Raises :class:`CannotRunError` when these take more than ``PATIENCE_S``.
    """
    like = torch.empty(0, dtype=getattr(torch, request.dtype))
    state = module.init_state(request.batch_size, *([] if request.scope == "layer" else [like]))
    before = getattr(request.spec, "step_tokens", 1)
    tokens, start = request.seq_len - before, time.perf_counter()

    def patience(done: int) -> None:
        spent = time.perf_counter() - start
        if spent > PATIENCE_S:
            raise CannotRunError(
                f"the decoding state of {tokens} tokens is built token by token, and {done} "
                f"took {spent:.0f} s already; ask for a shorter --seq"
            )

    return positioned(module, state, tokens, partial(make_inputs, request), patience)


def rewind_to(state: Any) -> Callable[[], None]:
    """Return a function that restores a state's counters, lists and references.

    Tensors that a step changes in place keep their new values: shapes, and so costs, are equal.
    """
    kept = [(part, dict(vars(part))) for part in parts(state) if _has_parts(part)]
    lists = [(part, list(part)) for part in parts(state) if isinstance(part, list)]

    def rewind() -> None:
        for owner, values in kept:
            for name, value in values.items():
                object.__setattr__(owner, name, value)
        for target, content in lists:
            target[:] = content

    return rewind


def parts(part: Any, visited: set[int] | None = None) -> Iterator[Any]:
    """Yield a state and everything it holds, each once; tensors are not entered."""
    visited = set() if visited is None else visited
    if id(part) in visited:
        return
    visited.add(id(part))
    yield part
    inside = vars(part) if _has_parts(part) else part
    if isinstance(inside, (list, tuple, dict)):
        for item in inside.values() if isinstance(inside, dict) else inside:
            yield from parts(item, visited)


def _has_parts(part: Any) -> bool:
    """Return whether a value is an object of ours, or of a plug-in, with attributes."""
    return hasattr(part, "__dict__") and type(part).__module__.split(".")[0] not in (
        "torch", "builtins",
    )  # fmt: skip
