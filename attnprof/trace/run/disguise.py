"""Hide from code that its tensors are fake, so that it takes the path of real ones.

Questions about fake tensors get the answers for real ones, copies of tensors stay in their mode,
and compiled code runs uncompiled (:func:`disguised`). Weights stay undrawn (:func:`drawing`):
drawing them takes time and pins symbolic sizes.
"""

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import cache, partial, wraps
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
import torch._guards
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.sym_node import SymNode

from attnprof.trace.run.symbols import foreign_modules

#: Notes of the run that is being recorded, if something compiled ran in it.
_COMPILED: ContextVar[list[str]] = ContextVar("compiled")
#: Fake tensors that were pickled in this world, by id.
_PICKLED: ContextVar[dict[int, Any]] = ContextVar("pickled")

EAGER = "what torch.compile would compile is counted as it runs uncompiled"


class _Stranger(torch.Tensor):
    """Stands for ``FakeTensor`` in code outside of torch: no tensor is an instance of it."""


#: Names as code outside of torch sees them: the answers for real tensors.
_ANSWERS: dict[str, Any] = {
    "FakeTensor": _Stranger,
    "is_fake": lambda *_: False,
    "detect_fake_mode": lambda *_: None,
    "active_fake_mode": lambda *_: None,
}


def _attribute(name: str) -> property:
    """Return a module's attribute: torch's own for torch and for us, the answer for other code."""

    def answer(place: ModuleType) -> Any:
        if name not in vars(place):
            raise AttributeError(f"module '{place.__name__}' has no attribute '{name}'")
        caller = sys._getframe(1).f_globals.get("__name__", "")
        return vars(place)[name] if _is_inside(caller) else _ANSWERS[name]

    return property(answer)


_Disguised: Any = type("_Disguised", (ModuleType,), {name: _attribute(name) for name in _ANSWERS})


def _is_inside(module: str) -> bool:
    return module.partition(".")[0] in {"torch", "attnprof"}


@contextmanager
def disguised() -> Iterator[None]:
    """Hide inside, from code that is not torch's, that tensors are fake.

    A copy of a fake tensor, also by way of pickle, belongs to the mode of the first.
    """
    pickled: dict[int, Any] = {}

    def reduced(tensor: Any, _protocol: Any) -> Any:
        pickled[id(tensor)] = tensor
        return _unpickled, (id(tensor),)

    mode: dict[str, Any] = {"__deepcopy__": lambda mode, *_: mode, "__copy__": lambda mode: mode}
    tensor: dict[str, Any] = {
        "__copy__": lambda tensor: _as_leaf_like(tensor, tensor.detach()),
        "__deepcopy__": _copied,
        "__reduce_ex__": reduced,
    }
    with ExitStack() as stack:
        for place in (torch._subclasses, fake_tensor, torch._guards):
            stack.callback(setattr, place, "__class__", type(place))
            place.__class__ = _Disguised
        for module in foreign_modules():  # names that were imported earlier
            if vars(module).get("FakeTensor") is FakeTensor and not _is_inside(module.__name__):
                stack.enter_context(patch.object(module, "FakeTensor", _Stranger))
        stack.callback(_PICKLED.reset, _PICKLED.set(pickled))
        stack.enter_context(patch.multiple(FakeTensorMode, create=True, **mode))
        stack.enter_context(patch.multiple(FakeTensor, create=True, **tensor))
        # guards on a copied size count, as guards on the size itself
        stack.enter_context(patch.multiple(SymNode, create=True, __deepcopy__=lambda size, _: size))
        yield


def _copied(tensor: Any, memo: dict[int, Any]) -> Any:
    """Return a deep copy of a tensor without torch's question where its data lies."""
    if id(tensor) not in memo:
        if not tensor.is_leaf:
            raise RuntimeError("Only Tensors created explicitly by the user support deepcopy")
        with torch.no_grad():
            leaf = _as_leaf_like(tensor, tensor.detach().clone())
        memo[id(tensor)] = leaf
        others = {name: x for name, x in vars(tensor).items() if name not in vars(leaf)}
        vars(leaf).update(copy.deepcopy(others, memo))
    return memo[id(tensor)]


def _unpickled(number: int) -> Any:
    tensor = _PICKLED.get()[number]
    return _as_leaf_like(tensor, tensor.detach().clone())


def _as_leaf_like(tensor: Any, leaf: Any) -> Any:
    """Return ``leaf`` as a parameter, or with a gradient, if the tensor is one, or has one."""
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(leaf, tensor.requires_grad)
    return leaf.requires_grad_(tensor.requires_grad)


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run compiled code inside as it was written; ``notes_of_compiling`` say so."""
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    with ExitStack() as stack:
        stack.callback(_COMPILED.reset, _COMPILED.set([]))
        stack.enter_context(patch.object(torch, "compile", _as_written))
        if compiler is not None:  # something may have been compiled already
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            plain = compiler._callback_from_stance

            def noting(callback: Any) -> Any:
                if callback not in (None, False):
                    _COMPILED.get().append(EAGER)
                return plain(callback)

            stack.enter_context(patch.object(compiler, "_callback_from_stance", noting))
        yield


def notes_of_compiling() -> list[str]:
    """Return notes if something compiled ran in this world, else nothing."""
    return list(dict.fromkeys(_COMPILED.get([])))


def _as_written(model: Any = None, **settings: Any) -> Any:
    """Return the model as it is: a ``torch.compile`` that does not compile, and notes that.

    A function is compiled outside of worlds: code that is imported inside may keep it.
    """
    if model is None:
        return partial(_as_written, **settings)
    caller = sys._getframe(1).f_globals.get("__name__", "")
    notes = [EAGER] if not _is_inside(caller) or caller == "torch.nn.modules.module" else []
    _COMPILED.get().extend(notes)
    if isinstance(model, torch.nn.Module):
        return model
    compiled: Any = cache(lambda: torch.compile(model, **settings))

    @wraps(model)
    def call(*args: Any, **kwargs: Any) -> Any:
        world = _COMPILED.get(None)
        if world is None:
            return compiled()(*args, **kwargs)
        world.extend(notes)
        return model(*args, **kwargs)

    return call


#: Whether weights are drawn, as they are outside of all runs.
_DRAWN: ContextVar[bool] = ContextVar("drawn", default=True)


@contextmanager
def drawing(*, drawn: bool) -> Iterator[None]:
    """Let functions that draw weights leave them as they are inside, unless weights are ``drawn``.

    They are some sixty: ``patch.object`` for each would take as long as the run of a small module.
    """
    places = [] if drawn else _initialisers()
    functions = [(owner, name, vars(owner)[name]) for owner, name in places]
    before = _DRAWN.set(drawn)
    try:
        for owner, name, function in functions:
            setattr(owner, name, _undrawn_inside(function))
        yield
    finally:
        for owner, name, function in functions:
            setattr(owner, name, function)
        _DRAWN.reset(before)


@cache
def _undrawn_inside(draw: Callable[..., Any]) -> Callable[..., Any]:
    """Return an initialiser that leaves weights as they are, in worlds where none are drawn.

    Code that is imported inside may keep it, as transformers does in a table of its own: outside it
    draws.
    """

    @wraps(draw)
    def initialised(subject: Any, *args: Any, **kwargs: Any) -> Any:
        return draw(subject, *args, **kwargs) if _DRAWN.get() else subject

    return initialised


@cache
def _initialisers() -> list[tuple[Any, str]]:
    """Return where functions that draw weights are: owner and name, in torch and its layers."""
    layers = [m for name, m in sys.modules.items() if name.startswith("torch.nn.modules.")]
    functions = [
        (place, name)
        for place in (torch.nn.init, *layers)
        for name, value in vars(place).items()
        if getattr(value, "__module__", "") == "torch.nn.init"
        if name.endswith("_") and (name[0] != "_" or name.startswith("_no_grad_"))
    ]
    kinds = [kind for kind in vars(torch.nn).values() if isinstance(kind, type)]
    reset = "reset_parameters"
    return functions + [(kind, reset) for kind in kinds if reset in vars(kind)]
