"""Targets of user code: a module class, a module, a function that makes one, or one of tensors."""

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

from attnprof.errors import RequestError
from attnprof.trace.request import signatures
from attnprof.trace.request.configurations import rotary_input
from attnprof.trace.request.decoding import with_step
from attnprof.trace.request.given import Request
from attnprof.trace.request.target import (
    DEFAULT,
    Expression,
    Sizes,
    Target,
    at,
    hints_for,
)
from attnprof.trace.request.texts import symbols_in
from attnprof.trace.request.usual import (
    ARGUMENTS,
    WIDTHS,
)
from attnprof.user_code import contained, error_text


def of_class(layer: Any, request: Request) -> Target:
    """Return the target of a module class, built with typed and guessed arguments at any sizes."""
    parameters, what = (
        signatures.parameters_of_class(layer, request.what),
        f"{request.what}.forward",
    )
    forward = inspect.getattr_static(layer, "forward")
    if hasattr(type(forward), "__get__"):  # bound as an instance has it, whatever that is called
        forward = type(forward).__get__(forward, object(), layer)
    taken = signatures.parameters_of(forward, what)
    request.place_causal(parameters, taken)
    arguments = request.arguments(layer, parameters)
    known = signatures.known_sizes(arguments, parameters)
    if "position_embeddings" in taken:
        known["rotary"] = rotary_input(layer, arguments, known["head"])
    target = request.target(partial(_build, layer, arguments), what, taken, arguments, known)
    return with_step(target, taken, layer)


def _build(build: Any, arguments: Mapping[str, Any], sizes: Sizes) -> Any:
    """Build a module with its arguments at these sizes."""
    from attnprof.trace.run.worlds import constructed

    values = {name: at(value, sizes) for name, value in arguments.items()}
    return constructed(lambda: build(**values), sizes.values())


def of_instance(module: Any, request: Request, width: int | None) -> Target:
    """Return the target of a module that exists: its weights keep their sizes."""
    from torch import nn

    from attnprof.trace.run.worlds import current_mode, faked

    if request.given:
        raise RequestError(f"--arg: {request.what} exists already; its class takes arguments")
    what = f"{request.what}.forward"
    taken = signatures.parameters_of(module.forward, what)
    request.place_causal({}, taken)
    widths = [width or None, *(getattr(module, name, None) for name in WIDTHS)]
    maps = [part.in_features for part in module.modules() if isinstance(part, nn.Linear)]
    seen = next((size for size in (*widths, *maps) if isinstance(size, int)), "h*d")
    if seen == "h*d" and not request.inputs:
        raise RequestError(
            f"{request.what}: its width cannot be seen; give its inputs, like x: B, N, 512"
        )
    known = {"width": str(seen), "head": "d"}
    return request.target(lambda _sizes: faked(module, current_mode()), what, taken, {}, known)


def of_factory(build: Any, request: Request) -> Target:
    """Return the target of a function that makes a module, called once to see what that takes."""
    from torch import nn

    from attnprof.trace.run.worlds import fake_world

    parameters = signatures.parameters_of(build, request.what)
    request.place_causal(parameters, {})
    arguments = request.arguments(build, parameters)
    make = partial(_build, build, arguments)
    try:
        with contained(), fake_world(None, request.dtype):
            made = make(hints_for({*DEFAULT, *symbols_in(arguments.values())}, {}))
    except Exception as error:
        raise RequestError(f"{request.name} fails: {error_text(error)}") from error
    if not isinstance(made, nn.Module):
        raise RequestError(
            f"{request.what} returns no nn.Module but {made!r:.40}; if it is a function of "
            'tensors, give its inputs: --input "x: B, N, h*d"'
        )
    taken = signatures.parameters_of(made.forward, request.what)
    known = signatures.known_sizes(arguments, parameters)
    target = request.target(make, f"{request.what}().forward", taken, arguments, known)
    return with_step(target, taken, type(made))


def of_function(function: Any, request: Request) -> Target:
    """Return the target of a function of tensors, and of sizes that ``--arg`` gives."""
    parameters = signatures.parameters_of(function, request.what)
    if signatures.takes_any(parameters) and not request.inputs:
        parameters = signatures.documented(function) | parameters
    request.place_causal(parameters, {})
    signatures.checked_names(request.given, parameters, "--arg", request.what)
    request.pass_values(request.given)
    sizes = {  # that it needs beside its tensors
        name: Expression(ARGUMENTS[name.lower()])
        for name, item in parameters.items()
        if signatures.is_required(item) and name not in request.inputs and name.lower() in ARGUMENTS
    }
    request.pass_values(request.guess(sizes))
    used = symbols_in(request.call(request.what, parameters, {}).values())
    left = signatures.sizes_at_default(parameters, request.inputs, used)
    named = {n: Expression(size) for n, size in left.items() if n.lower() not in WIDTHS}  # an axis
    request.pass_values(request.guess(named))
    return request.target(lambda _sizes: function, request.what, parameters, {}, {})
