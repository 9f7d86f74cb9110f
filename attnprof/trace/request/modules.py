"""Modules, factories and functions of somebody's as targets: how to make them, what they take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from inspect import Parameter
from typing import Any

from attnprof.errors import RequestError
from attnprof.trace.request.conventions import (
    ARGUMENTS,
    HEADS,
    TOKENS,
    WIDTHS,
    Guesses,
    checked_names,
    forward_of,
    guess_arguments,
    guess_inputs,
    is_required,
    parameters_of,
    sizes_at_default,
    width_of,
)
from attnprof.trace.request.expressions import DEFAULT, Expression, at, hints_for
from attnprof.trace.request.target import Input, Sizes, Target
from attnprof.trace.request.texts import symbols_in
from attnprof.user_code import contained, error_text

_CAUSAL = ("causal", "is_causal")


@dataclass
class Request:
    """What was given for one target, and what was guessed beside it."""

    name: str
    given: dict[str, Any]
    inputs: dict[str, Input]
    causal: bool
    dtype: str
    guesses: Guesses = field(default_factory=Guesses)

    @property
    def what(self) -> str:
        """The last part of the name: ``MyAttention``."""
        return self.name.rpartition(":")[2]

    def target(
        self, make: Any, inputs: tuple[Input, ...], named: frozenset[str], arguments: Any
    ) -> Target:
        """The target, over the symbols that its arguments and inputs use."""
        symbols = symbols_in([*arguments.values(), *inputs])
        notes = self.guesses.notes()
        return Target(self.name, make, inputs, symbols, self.dtype, named, notes)

    def module_target(
        self, make: Any, taken: Mapping[str, Parameter], arguments: Any, width: str, call: str = ""
    ) -> Target:
        """That of a module whose forward takes these parameters; ``call`` is what makes it."""
        what = f"{self.what}{call}.forward"
        inputs, named = guess_inputs(what, taken, self.inputs, self.guesses, width=width)
        return self.target(make, inputs, named, arguments)

    def arguments(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """What a class or a factory is called with: given and guessed sizes, no default h or d."""
        found = guess_arguments(self.what, parameters, self.given, self.guesses)
        width = Expression(width_of(found, parameters))
        inputs = self.inputs.values() if self.inputs else [width]
        used = symbols_in([*found.values(), *inputs])
        return {**found, **self.guess(sizes_at_default(parameters, found, used))}

    def guess(self, sizes: Mapping[str, str]) -> dict[str, Expression]:
        """Sizes of arguments, told as guessed."""
        self.guesses.arguments.update(sizes)
        return {name: Expression(size) for name, size in sizes.items()}

    def place_causal(self, parameters: Mapping[str, Any], taken: Mapping[str, Any]) -> None:
        """``--causal`` goes to the arguments or to the inputs, whichever take it."""
        if not self.causal:
            return
        for name in _CAUSAL:
            if name in parameters and name not in self.given:
                self.given[name] = True
                return
        for name in _CAUSAL:
            if name in taken and name not in self.inputs:
                self.inputs[name] = Input(name, value=True, literal=True)
                return
        raise RequestError(
            f"--causal: {self.what} takes neither causal nor is_causal; give its own argument "
            'with --arg, or a mask with --input "mask: N, N bool"'
        )

    def is_factory(self, function: Any) -> bool:
        """Whether a function makes a module: it takes sizes (or nothing), and no tensor."""
        parameters = parameters_of(function, self.what)
        if any(item.kind is Parameter.VAR_POSITIONAL for item in parameters.values()):
            return False
        if any(name.lower() in TOKENS | HEADS or name in self.inputs for name in parameters):
            return False
        required = [name for name, item in parameters.items() if is_required(item)]
        return all(name in self.given or name.lower() in ARGUMENTS for name in required)


def of_class(layer: Any, request: Request) -> Target:
    """A module class: built with the given and guessed arguments, at any sizes."""
    parameters = parameters_of(layer, request.what)
    taken = parameters_of(forward_of(layer), f"{request.what}.forward")
    request.place_causal(parameters, taken)
    arguments = request.arguments(parameters)
    width = width_of(arguments, parameters)
    return request.module_target(_maker(layer, arguments), taken, arguments, width)


def _maker(build: Any, arguments: Mapping[str, Any]) -> Any:
    """Builds the module for sizes."""

    def make(sizes: Sizes) -> Any:
        from attnprof.trace.run.worlds import constructed

        values = {name: at(value, sizes) for name, value in arguments.items()}
        return constructed(lambda: build(**values), sizes.values())

    return make


def of_instance(module: Any, request: Request, width: int | None) -> Target:
    """A module that exists: its weights keep their sizes."""
    if request.given:
        raise RequestError(f"--arg: {request.what} exists already; its class takes arguments")
    taken = parameters_of(module.forward, f"{request.what}.forward")
    request.place_causal({}, taken)

    def make(_sizes: Sizes) -> Any:
        from attnprof.trace.run.worlds import current_mode, faked

        return faked(module, current_mode())

    return request.module_target(make, taken, {}, str(width or _width(module, request)))


def _width(module: Any, request: Request) -> Any:
    """The width a module says it has, or that its first linear map takes."""
    from torch import nn

    own = [getattr(module, name, None) for name in WIDTHS]
    maps = [part.in_features for part in module.modules() if isinstance(part, nn.Linear)]
    for width in (*own, *maps):
        if isinstance(width, int):
            return width
    if not request.inputs:
        raise RequestError(
            f"{request.what}: its width cannot be seen; give its inputs, like x: B, N, 512"
        )
    return "h*d"


def of_factory(build: Any, request: Request) -> Target:
    """A function that returns a module: it is called once to see what the module takes."""
    from torch import nn

    parameters = parameters_of(build, request.what)
    request.place_causal(parameters, {})
    arguments = request.arguments(parameters)
    make = _maker(build, arguments)
    made = _sample(make, request, arguments)
    if not isinstance(made, nn.Module):
        raise RequestError(
            f"{request.what} returns a {type(made).__name__}, no nn.Module; if it is a function of "
            'tensors, give its inputs: --input "x: B, N, h*d"'
        )
    taken = parameters_of(made.forward, request.what)
    return request.module_target(make, taken, arguments, width_of(arguments, parameters), "()")


def _sample(make: Any, request: Request, arguments: Mapping[str, Any]) -> Any:
    """What a factory makes at some sizes."""
    from attnprof.trace.run.worlds import fake_world

    try:
        with contained(), fake_world(None, request.dtype):
            return make(hints_for({*DEFAULT, *symbols_in(arguments.values())}, {}))
    except Exception as error:
        raise RequestError(f"{request.name} fails: {error_text(error)}") from error


def of_function(function: Any, request: Request) -> Target:
    """A function of tensors, and of sizes that ``--arg`` gives."""
    parameters = parameters_of(function, request.what)
    request.place_causal(parameters, {})
    checked_names(request.given, parameters, "--arg", request.what)
    known = {**request.inputs, **_literals(request.given)}
    needed = {  # sizes that a function needs beside its tensors
        name: ARGUMENTS[name.lower()]
        for name, item in parameters.items()
        if is_required(item) and name not in known and name.lower() in ARGUMENTS
        and name.lower() not in TOKENS | HEADS
    }  # fmt: skip
    known |= _literals(request.guess(needed))
    inputs, _ = guess_inputs(request.what, parameters, known, Guesses(), heads_apart=True)
    left = sizes_at_default(parameters, known, symbols_in(inputs))
    left = {name: size for name, size in left.items() if name.lower() not in WIDTHS}  # dim: an axis
    known |= _literals(request.guess(left))
    inputs, named = guess_inputs(request.what, parameters, known, request.guesses, heads_apart=True)
    return request.target(lambda _sizes: function, inputs, named, {})


def _literals(values: Mapping[str, Any]) -> dict[str, Input]:
    return {name: Input(name, value=value, literal=True) for name, value in values.items()}
