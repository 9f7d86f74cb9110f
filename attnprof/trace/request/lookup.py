"""Find what a name or an object stands for: the target of a mechanism, a module or a function.

Arguments and inputs that were left out are guessed: first guesses, those of a surrounding model,
repaired ones. Where none runs, the error says what the code takes, what was tried and what to type.
"""

import inspect
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from shlex import quote
from typing import Any

from attnprof import registry
from attnprof.blocks import core
from attnprof.blocks.cache import DecodingStep, positioned
from attnprof.errors import AttnprofError, RequestError
from attnprof.mechanism import Mechanism
from attnprof.ops.layer import LayerSizes
from attnprof.trace.request import signatures
from attnprof.trace.request.configurations import all_parameters, names_around, source_of
from attnprof.trace.request.guesses import (
    Request,
    UnguessedError,
    of_class,
    of_factory,
    of_function,
    of_instance,
)
from attnprof.trace.request.parents import uses
from attnprof.trace.request.repairs import Build, Tries
from attnprof.trace.request.target import DEFAULT, EVEN, Input, RunMode, Sizes, Target
from attnprof.trace.request.texts import Texts, parse_arguments, parse_inputs, symbols_in
from attnprof.trace.run.limits import TooLongError
from attnprof.trace.run.runs import outcome
from attnprof.trace.run.worlds import UnsupportedTensorError
from attnprof.user_code import error_text, is_place, loaded

#: Repairs tried at most.
_TRIES = 64
#: Operations of each run.
_OPERATIONS = 3000
#: Tokens at which a guess is tried, in turn: the code's tables may be shorter than the first.
_LENGTHS = (256, 64, 12)
_MORE_LENGTHS = (*_LENGTHS, 1024)
#: Whether only first guesses are tried: :func:`first_guesses_alone`.
_ALONE = ContextVar("alone", default=False)
#: The end of an error message where other guesses might have run.
UNTRIED = "no other inputs were tried"


def target_of(
    thing: Any,
    args: Texts = None,
    inputs: Texts = None,
    params: Mapping[str, Any] | None = None,
    scope: str | None = None,
    causal: bool = False,
    dtype: str = "float32",
    *,
    name: str = "",
    width: int | None = None,
) -> Target:
    """Return the target of a mechanism's id, ``path.py:Name``, ``module:Name`` or an object.

    An object is a module class, a module (of model width ``width``), a function, or a factory of
    modules. ``args`` are constructor arguments (``name=expr`` texts or a mapping), ``inputs`` those
    of the call (``name: dims``); what is left out is guessed, as the target's ``notes`` say.
    ``params`` and ``scope`` belong to registered mechanisms. Raises :class:`RequestError`.
    """
    from torch import nn

    name = name or (thing if isinstance(thing, str) else _name(thing))
    if isinstance(thing, str):
        thing = loaded(thing) if is_place(thing) else type(registry.derivable(thing))
    is_class = isinstance(thing, type)
    if is_class and issubclass(thing, Mechanism):
        _refuse(f"is for your own modules; {name} takes --set name=value", arg=args, input=inputs)
        spec = registry.configured([name], params or {})[0]
        return mechanism_target(spec, scope or "layer", causal=causal, dtype=dtype)
    reason = f"is for registered mechanisms; {name} takes --arg and --input"
    _refuse(reason, set=params, scope=scope)
    typed_inputs = parse_inputs(inputs)
    typed_args = parse_arguments(args, {*DEFAULT, *symbols_in(typed_inputs.values())})
    request = Request(name, typed_args, typed_inputs, causal, dtype)
    if isinstance(thing, nn.Module):
        build = partial(of_instance, thing, width=width)
        return build(request) if width else target_that_runs(build, request, thing)
    if is_class and issubclass(thing, nn.Module):
        return target_that_runs(partial(of_class, thing), request, thing)
    if is_class or not callable(thing):
        is_a = "a class, but no nn.Module" if is_class else repr(thing)[:60]
        raise RequestError(f"{name} is {is_a}: point at a module class, a module or a function")
    make = of_factory if request.is_factory(thing) else of_function
    return target_that_runs(partial(make, thing), request, thing)


def _name(thing: Any) -> str:
    """Return a name for a Python object."""
    named = thing if isinstance(thing, type) or inspect.isroutine(thing) else type(thing)
    return "module" if named.__name__ == "<lambda>" else str(named.__name__)


def _refuse(why: str, **flags: Any) -> None:
    """Raise :class:`RequestError` for flags that were typed and do not apply."""
    for flag, value in flags.items():
        if value:
            raise RequestError(f"--{flag} {why}")


def mechanism_target(
    spec: Any,
    scope: str = "layer",
    *,
    causal: bool = False,
    dtype: str = "float32",
    source: Any = None,
) -> Target:
    """Return a mechanism's layer on (B, N, h·d), or its core on q, k, v of (B, h, N, d).

    ``source`` is its torch module, if the registry does not find it by the mechanism's name. The
    target's ``step`` decodes token number N, if the mechanism decodes.
    """
    source = source or registry.module_of(spec.name)

    def make(sizes: Sizes) -> Any:
        n, h, d = (sizes[name] for name in "Nhd")
        if all(isinstance(size, int) for size in (n, h, d)):
            layer_sizes = core.checked_sizes(spec, h * d, h, n)
        else:  # a symbol cannot be compared and is taken as it is
            layer_sizes = LayerSizes(h, d, spec.kv_heads or h, d, n)
        if scope == "layer":
            return core.build_layer(spec, source, layer_sizes)
        return source.CORES[spec.name](spec, layer_sizes)

    if scope == "core" and not spec.abilities.attend:
        raise RequestError(f"{spec.name} {spec.refusal('attend')}")
    flag = Input("causal", value=causal, literal=True)
    is_ours = type(spec).__module__.startswith("attnprof.")
    target = Target(
        spec.name, make, (*_inputs(spec, scope), flag), DEFAULT, dtype, frozenset({"causal"}),
        mode=RunMode(trusted=is_ours, loops_in_blocks=is_ours),
    )  # fmt: skip
    return replace(target, step=_step(spec, target, scope)) if spec.abilities.decode else target


def _inputs(spec: Any, scope: str, tokens: str = "N") -> tuple[Input, ...]:
    dims = {"x": f"B, {tokens}, h*d"}
    if scope != "layer":
        heads = spec.kv_heads or "h"
        dims = {"q": f"B, h, {tokens}, d", **dict.fromkeys("kv", f"B, {heads}, {tokens}, d")}
    return tuple(parse_inputs(dims).values())


def _step(spec: Any, target: Target, scope: str) -> Target:
    """Return the decoding step on one token, after N - 1 earlier ones."""
    import torch

    step = replace(target, inputs=_inputs(spec, scope, "1"), keywords=frozenset())

    def make(sizes: Sizes) -> Any:
        module = target.make(sizes)
        like = (torch.empty(0),) if scope == "core" else ()
        state = module.init_state(sizes["B"], *like)
        state = positioned(module, state, sizes["N"] - 1, lambda: step.call_inputs(sizes)[0])
        return DecodingStep(module, state)

    return replace(step, make=make)


# -- guesses with which code runs ----------------------------------------------------------
@contextmanager
def first_guesses_alone() -> Iterator[None]:
    """Try no other guesses inside the context: code that fails with the first ones just fails."""
    token = _ALONE.set(True)
    try:
        yield
    finally:
        _ALONE.reset(token)


def target_that_runs(build: Build, request: Request, subject: Any) -> Target:
    """Return the target of a request, with other guesses if the code fails with the first ones.

    If it fails with all of them, the target has the first ones, and ``advice`` on what to type.
    """
    alone = _ALONE.get()
    try:
        target = build(request)
    except UnguessedError as unknown:
        if alone:
            raise RequestError(f"{unknown}; {UNTRIED}") from unknown
        if used := _as_model_calls_it(build, request, subject, set(), have_all=True):
            return used
        raise
    error = failure(target) if request.guessed else None
    if error is None:
        return target
    first = "; ".join(target.spelled_inputs) or "no input"
    if alone:
        raised = f"{error_text(error)}: {target.name} does not run with {first}"
        raise RequestError(f"{raised}; {UNTRIED}") from error
    symbols = {*target.symbols}
    if used := _as_model_calls_it(build, request, subject, symbols, have_all=True):
        return used
    tries = Tries(build, request, subject, failure, _TRIES)
    if repaired := tries.until_one_runs(target, error):
        note = f"tried first: {first}: {error_text(error)}"
        return replace(repaired, notes=(*repaired.notes, note))
    if used := _as_model_calls_it(build, request, subject, symbols, have_all=False):
        return used
    return replace(target, advice=advice(subject, request, target, tries.changes, error))


def _as_model_calls_it(
    build: Build, request: Request, subject: Any, symbols: set[str], *, have_all: bool
) -> Target | None:
    """Return a target that runs as a model of the same file calls the class, or None.

    ``symbols`` are those of the first guesses. With ``have_all`` only models that have all of them
    are run, else only the others.
    """
    if not isinstance(subject, type):
        return None
    for model, repair in uses(subject, request, symbols, have_all=have_all):
        with suppress(AttnprofError):
            target = build(request.with_guesses(repair.args, repair.inputs))
            if not failure(target, _MORE_LENGTHS):
                note = f"what it is called with is what {model} calls it with"
                return replace(target, notes=(*target.notes, note))
    return None


def failure(target: Target, lengths: Sequence[int] = _LENGTHS) -> Exception | None:
    """Return the first error of a forward pass, or None if it runs at one of the lengths.

    An operation that needs values of tensors is no failure: the code runs.
    """
    sizes = {name: {**EVEN, "B": 3}.get(name, 16) for name in target.symbols}
    first_error: Exception | None = None
    for shape in [{**sizes, "N": length} for length in lengths] if "N" in sizes else [sizes]:
        failed = outcome(target, shape, training=False, most=_OPERATIONS)
        needs_values = type(failed).__module__.startswith("torch.")
        refused = isinstance(failed, TooLongError | UnsupportedTensorError)
        if not isinstance(failed, Exception) or needs_values or refused:
            return None
        first_error = first_error or failed
    return first_error


def advice(
    subject: Any, request: Request, target: Target, tries: Sequence[Any], error: Exception
) -> str:
    """Return the end of an error message: the signature, other guesses tried, what to type."""
    what, forward = request.what, getattr(subject, "forward", None)
    usage = f"{what}({_parameters(subject)})"
    usage += f", {what}.forward({_parameters(forward)})" if forward else ""
    more = f"; nor with {'; '.join(map(str, tries[:3]))}" if tries else ""
    count = f" and {len(tries) - 3} other guesses" if len(tries) > 3 else ""
    hints = _hint_on_called_none, _hint_on_unset_fields, _hint_on_model
    hint = "".join(hint_on(subject, request, error) for hint_on in hints)
    command = _command(request, target)
    return f"{hint}it takes {usage}{more}{count}; say what is otherwise: {command}"


def _hint_on_called_none(subject: Any, request: Request, error: Exception) -> str:
    """Return a hint if the code calls an argument that is None by default, else ""."""
    unset = [
        name
        for name, item in signatures.parameters_of(subject, "").items()
        if item.default is None and name not in request.args and name not in ("device", "dtype")
    ]
    if "'NoneType' object is not callable" not in str(error) or not unset:
        return ""
    return (
        f"it calls what is None by default ({', '.join(unset)}): point at a function of yours that "
        f"returns the module with those, like def make(dim, num_heads); "
    )


def _hint_on_unset_fields(subject: Any, request: Request, error: Exception) -> str:
    """Return a hint if code that fails reads fields which are None by default, else ""."""
    *_, (frame, _) = ((None, 0), *traceback.walk_tb(error.__traceback__))
    read = frame.f_code.co_names if frame is not None and "NoneType" in str(error) else ()
    unset = [
        name
        for name, item in all_parameters(subject).items()
        if "." in name and name.rpartition(".")[2] in read and item.default is None
        if name not in request.args
    ]
    if not unset:
        return ""
    flags = " ".join(f"--arg {name}=…" for name in unset)
    return f"it computes with fields that are None by default: add {flags} (sizes like h, or 64); "


def _hint_on_model(subject: Any, request: Request, error: Exception) -> str:
    """Return a hint if a model of the same file sets an attribute that is missing, else ""."""
    from torch.nn import Module

    missing = re.search(r"object has no attribute '(\w+)'", str(error))
    if missing is None:
        return ""
    sets = re.compile(rf"\.{missing[1]} = |register_buffer\(\s*[\"']{missing[1]}[\"']")
    for name, kind in names_around(subject).items():
        is_other = isinstance(kind, type) and issubclass(kind, Module) and kind is not subject
        if is_other and sets.search(source_of(kind)):
            place = f"{request.name.rpartition(':')[0]}:{name}"
            return f"{name} sets {missing[1]} of it: attnprof derive {place}; "
    return ""


def _command(request: Request, target: Target) -> str:
    """Return the command that derives a request with the inputs of its target."""
    args = {**request.guessed_args, **request.args}
    options = [f"--arg {quote(f'{name}={value}')}" for name, value in args.items()]
    options += [f'--input "{text}"' for text in target.spelled_inputs]
    return f"attnprof derive {request.name} {' '.join(options)}"


def _parameters(function: Any) -> str:
    """Return a signature's parameters as text: ``dim, heads=8``."""
    return ", ".join(
        str(item).partition(":")[0] if item.default is item.empty else f"{name}={item.default!r}"
        for name, item in signatures.parameters_of(function, "").items()
        if name != "self"
    )
