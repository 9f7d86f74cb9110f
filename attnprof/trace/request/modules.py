"""Modules, factories and functions of somebody's as targets: how to make them, what they take."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from attnprof.algebra.parser import parts_of
from attnprof.errors import RequestError
from attnprof.trace.request import texts
from attnprof.trace.request.target import DEFAULT, Expression, Input, Sizes, Target, at, hints_for
from attnprof.trace.request.texts import ARGUMENTS, HEADS, TOKENS, WIDTHS, Parameters, symbols_in
from attnprof.user_code import contained, error_text

_CAUSAL = ("causal", "is_causal")


@dataclass
class Request:
    """What was given for one target, and what was guessed, with the flag that says otherwise."""

    name: str
    given: dict[str, Any]
    inputs: dict[str, Input]
    causal: bool
    dtype: str
    guessed: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def what(self) -> str:
        """The last part of the name: ``MyAttention``."""
        return self.name.rpartition(":")[2]

    def target(self, make: Any, what: str, taken: Parameters, arguments: Any, width: str) -> Target:
        """The target, over the symbols that its arguments and inputs use."""
        named = self.call(what, taken, width)
        inputs, by_name = tuple(named.values()), texts.by_name(named, taken)
        if self.guessed:
            told = ", ".join(sorted(self.guessed, key=self.guessed.__getitem__))
            ways = " and ".join(sorted({*self.guessed.values()}))
            self.notes.insert(0, f"guessed: {told}; give {ways} to say otherwise")
        symbols = symbols_in([*arguments.values(), *inputs])
        return Target(self.name, make, inputs, symbols, self.dtype, by_name, tuple(self.notes))

    def arguments(self, parameters: Parameters) -> dict[str, Any]:
        """What a class or a factory is called with: given and guessed sizes, no default h or d.

        Raises :class:`RequestError` for a required one that nobody can guess.
        """
        texts.checked_names(self.given, parameters, "--arg", self.what)
        found = dict(self.given)
        for name, item in parameters.items():
            if name in self.given or not texts.is_required(item):
                continue
            if name.lower() not in ARGUMENTS:
                takes = ", ".join(map(str, parameters.values()))
                raise RequestError(
                    f"{self.what}({takes}) needs '{name}', which cannot be guessed: add --arg "
                    f"{name}=… (a size like h*d, or a value), or point at a function of yours that "
                    "returns the module, like def make(d_model, num_heads)"
                )
            found |= self.guess({name: ARGUMENTS[name.lower()]})
        if "batch_first" in parameters and "batch_first" not in self.given:
            self.notes.append("batch_first=True was set: inputs are (batch, tokens, width)")
            found["batch_first"] = True
        inputs = self.inputs.values() or [Expression(texts.width_of(found, parameters))]
        used = symbols_in([*found.values(), *inputs])
        return {**found, **self.guess(texts.sizes_at_default(parameters, found, used))}

    def guess(self, sizes: Mapping[str, str]) -> dict[str, Expression]:
        """Sizes of arguments, told as guessed."""
        self.guessed |= {f"{name}={size}": "--arg" for name, size in sizes.items()}
        return {name: Expression(size) for name, size in sizes.items()}

    def call(self, what: str, parameters: Parameters, width: str = "") -> dict[str, Input]:
        """Inputs of the call in its order, by name.

        Without ``width`` q, k and v are (B, h, N, d), as a function takes them. Raises
        :class:`RequestError` for a required one that nobody can guess.
        """
        if not texts.takes_any(parameters):
            texts.checked_names(self.inputs, parameters, "--input", what)
        found = {
            name: self.inputs.get(name) or self._guessed(what, name, width)
            for name, item in parameters.items()
            if name in self.inputs or texts.is_required(item)
        } | self.inputs
        if not found:
            raise RequestError(
                f"{what} does not say what it takes: give its inputs in order, like --input "
                '"q: B, h, N, d"'
            )
        return found

    def _guessed(self, what: str, name: str, width: str) -> Input:
        tokens = f"B, N, {width or 'h*d'}"
        if name.lower() not in TOKENS | HEADS:
            raise RequestError(
                f"{what} needs '{name}', which cannot be guessed: add its sizes, like "
                f'--input "{name}: {tokens}" or --input "{name}: N, N bool", or a value, like '
                f'--input "{name}: None"'
            )
        text = tokens if width or name.lower() in TOKENS else "B, h, N, d"
        self.guessed[f'"{name}: {text}"'] = "--input"
        return Input(name, tuple(map(Expression, parts_of(text))))

    def pass_values(self, values: Mapping[str, Any]) -> None:
        """Plain values, or sizes, become inputs of the call."""
        self.inputs |= {name: Input(name, value=v, literal=True) for name, v in values.items()}

    def place_causal(self, parameters: Parameters, taken: Parameters) -> None:
        """``--causal`` goes to the arguments or to the inputs, whichever take it."""
        if not self.causal:
            return
        argument = next((n for n in _CAUSAL if n in parameters and n not in self.given), None)
        flag = next((n for n in _CAUSAL if n in taken and n not in self.inputs), None)
        if argument:
            self.given[argument] = True
        elif flag:
            self.pass_values({flag: True})
        else:
            raise RequestError(
                f"--causal: {self.what} takes neither causal nor is_causal; give its own argument "
                'with --arg, or a mask with --input "mask: N, N bool"'
            )

    def is_factory(self, function: Any) -> bool:
        """Whether a function makes a module: it takes sizes (or nothing), and no tensor."""
        parameters = texts.parameters_of(function, self.what)
        tensors = any(n.lower() in TOKENS | HEADS or n in self.inputs for n in parameters)
        if tensors or texts.takes_any(parameters):
            return False
        required = [name for name, item in parameters.items() if texts.is_required(item)]
        return all(name in self.given or name.lower() in ARGUMENTS for name in required)


def of_class(layer: Any, request: Request) -> Target:
    """A module class: built with the given and guessed arguments, at any sizes."""
    parameters, what = texts.parameters_of(layer, request.what), f"{request.what}.forward"
    forward = inspect.getattr_static(layer, "forward")
    if hasattr(type(forward), "__get__"):  # bound as an instance has it, whatever that is called
        forward = type(forward).__get__(forward, object(), layer)
    taken = texts.parameters_of(forward, what)
    request.place_causal(parameters, taken)
    arguments = request.arguments(parameters)
    width = texts.width_of(arguments, parameters)
    return request.target(partial(_made, layer, arguments), what, taken, arguments, width)


def _made(build: Any, arguments: Mapping[str, Any], sizes: Sizes) -> Any:
    from attnprof.trace.run.worlds import constructed

    values = {name: at(value, sizes) for name, value in arguments.items()}
    return constructed(lambda: build(**values), sizes.values())


def of_instance(module: Any, request: Request, width: int | None) -> Target:
    """A module that exists: its weights keep their sizes."""
    from torch import nn

    from attnprof.trace.run.worlds import current_mode, faked

    if request.given:
        raise RequestError(f"--arg: {request.what} exists already; its class takes arguments")
    what = f"{request.what}.forward"
    taken = texts.parameters_of(module.forward, what)
    request.place_causal({}, taken)
    own = [width or None, *(getattr(module, name, None) for name in WIDTHS)]
    maps = [part.in_features for part in module.modules() if isinstance(part, nn.Linear)]
    seen = next((size for size in (*own, *maps) if isinstance(size, int)), "h*d")
    if seen == "h*d" and not request.inputs:
        raise RequestError(
            f"{request.what}: its width cannot be seen; give its inputs, like x: B, N, 512"
        )
    return request.target(lambda _sizes: faked(module, current_mode()), what, taken, {}, str(seen))


def of_factory(build: Any, request: Request) -> Target:
    """A function that returns a module: it is called once to see what the module takes."""
    from torch import nn

    from attnprof.trace.run.worlds import fake_world

    parameters = texts.parameters_of(build, request.what)
    request.place_causal(parameters, {})
    arguments = request.arguments(parameters)
    make = partial(_made, build, arguments)
    try:
        with contained(), fake_world(None, request.dtype):
            made = make(hints_for({*DEFAULT, *symbols_in(arguments.values())}, {}))
    except Exception as error:
        raise RequestError(f"{request.name} fails: {error_text(error)}") from error
    if not isinstance(made, nn.Module):
        raise RequestError(
            f"{request.what} returns a {type(made).__name__}, no nn.Module; if it is a function of "
            'tensors, give its inputs: --input "x: B, N, h*d"'
        )
    taken = texts.parameters_of(made.forward, request.what)
    width = texts.width_of(arguments, parameters)
    return request.target(make, f"{request.what}().forward", taken, arguments, width)


def of_function(function: Any, request: Request) -> Target:
    """A function of tensors, and of sizes that ``--arg`` gives."""
    parameters = texts.parameters_of(function, request.what)
    request.place_causal(parameters, {})
    texts.checked_names(request.given, parameters, "--arg", request.what)
    request.pass_values(request.given)
    sizes = {  # that it needs beside its tensors
        name: ARGUMENTS[name.lower()]
        for name, item in parameters.items()
        if texts.is_required(item) and name not in request.inputs and name.lower() in ARGUMENTS
    }
    request.pass_values(request.guess(sizes))
    used = symbols_in(request.call(request.what, parameters).values())
    left = texts.sizes_at_default(parameters, request.inputs, used)
    left = {name: size for name, size in left.items() if name.lower() not in WIDTHS}  # dim: an axis
    request.pass_values(request.guess(left))
    return request.target(lambda _sizes: function, request.what, parameters, {}, "")
