"""Turn the name of user code into a target that runs: guess arguments and inputs not typed.

A :class:`Request` is what the user typed. :func:`of_class`, :func:`of_instance`,
:func:`of_factory` and :func:`of_function` make it the target of a module class, a module that
exists, a function that returns a module, and a function of tensors. A guess is made from a
parameter's name, annotation and the model's sizes: ``num_heads`` becomes h, ``x`` (B, N, h*d).
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import Parameter
from typing import Any

from attnprof.errors import RequestError
from attnprof.trace.request import signatures, texts
from attnprof.trace.request.configurations import (
    Configuration,
    compared,
    config_parameter,
    fields_of,
    guessed_fields,
    may_be_none,
    module_of,
    read_file,
    rotary_input,
)
from attnprof.trace.request.decoding import with_step
from attnprof.trace.request.signatures import (
    ARGUMENTS,
    FIRST,
    HEADS,
    NEEDED,
    PLACES,
    TOKENS,
    WIDTHS,
    Parameters,
    form_of_several,
    input_text,
    plain_value,
    size_of,
)
from attnprof.trace.request.target import (
    DEFAULT,
    Expression,
    Input,
    Sizes,
    Target,
    at,
    base_of,
    folded,
    hints_for,
)
from attnprof.trace.request.texts import as_size, symbols_in
from attnprof.units import grouped, joined
from attnprof.user_code import contained, error_text

_CAUSAL = ("causal", "is_causal")


class UnguessedError(RequestError):
    """Raised for required arguments or inputs (``names``) for which there is no guess."""

    def __init__(self, what: str, how: str, names: Sequence[str]) -> None:
        listed = joined(map(repr, names))
        super().__init__(f"{what} needs {listed}, which cannot be guessed: {how}")


@dataclass
class Request:
    """Arguments and inputs of one target; those in ``guessed_…`` were not typed."""

    name: str
    args: dict[str, Any]
    inputs: dict[str, Input]
    causal: bool
    dtype: str
    guessed_args: dict[str, Any] = field(default_factory=dict)
    guessed_inputs: dict[str, Input] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def what(self) -> str:
        """Return the name without its file: ``MyAttention``."""
        return self.name.rpartition(":")[2]

    @property
    def guessed(self) -> dict[str, list[str]]:
        """Return the guesses as one would type them, by option: ``{"--arg": ["num_heads=h"]}``."""
        args = [f"{name}={value}" for name, value in self.guessed_args.items()]
        inputs = [f'"{item.spelled}"' for item in self.guessed_inputs.values()]
        return {flag: every for flag, every in (("--arg", args), ("--input", inputs)) if every}

    def with_guesses(self, args: Mapping[str, Any], input_texts: Mapping[str, str]) -> "Request":
        """Return the request with these arguments and inputs added as guesses."""
        inputs = texts.parse_inputs(input_texts)
        bases = {base_of(name) for name in inputs}
        kept = {name: item for name, item in self.inputs.items() if base_of(name) not in bases}
        return replace(
            self, args={**self.args, **args}, inputs={**kept, **inputs}, notes=[],
            guessed_args=dict(args), guessed_inputs=inputs,
        )  # fmt: skip

    def target(
        self, make: Any, what: str, forward: Parameters, arguments: Any, sizes: Mapping[str, str]
    ) -> Target:
        """Return the target, over the symbols that its arguments and inputs use.

        ``sizes`` are the model's sizes as texts, ``{"width": "h*d", "head": "d"}``; empty for a
        function.
        """
        named = self.call(what, forward, signatures.with_grid(arguments, forward, sizes))
        inputs, by_name = tuple(named.values()), signatures.passed_by_name(named, forward)
        if guesses := self.guessed:
            listed = ", ".join(text for every in guesses.values() for text in every)
            flags = " and ".join(guesses)
            self.notes.insert(0, f"guessed: {listed}; give {flags} to say otherwise")
        symbols = symbols_in([*arguments.values(), *inputs])
        return Target(self.name, make, inputs, symbols, self.dtype, by_name, tuple(self.notes))

    def arguments(self, owner: Any, parameters: Parameters) -> dict[str, Any]:
        """Return the constructor's arguments, typed or guessed; a default num_heads=8 is h.

        Raises :class:`UnguessedError` for required arguments without a guess.
        """
        arguments = self._configured(owner, parameters)
        signatures.checked_names(arguments, parameters, "--arg", self.what)
        unknown = []
        for name, item in parameters.items():
            place = item.default is None and name in PLACES  # layer_idx finds a layer's cache
            if name in arguments or not (place or signatures.is_required(item)):
                continue
            if guess := _guessed_value(item, owner, parameters):
                arguments |= self.guess({name: guess[0]})
            else:
                unknown.append(name)
        if unknown:
            added = " ".join(f"--arg {name}=…" for name in unknown)
            how = f"add {added} (a size like h*d, or a value), or point at a function of yours that"
            how += " returns the module, like def make(d_model, num_heads)"
            takes = ", ".join(map(str, parameters.values()))
            raise UnguessedError(f"{self.what}({takes})", how, unknown)
        if "batch_first" in parameters and "batch_first" not in self.args:
            self.notes.append("batch_first=True was set: inputs are (batch, tokens, width)")
            arguments["batch_first"] = True
        sizes = signatures.model_sizes(arguments, parameters)
        of_images = sizes.get("whole", "").count(",") == 3  # (B, C, H, W)
        usual = [] if of_images else [Expression(sizes["width"])]
        used = symbols_in([*arguments.values(), *(self.inputs.values() or usual)])
        left = signatures.sizes_at_default(parameters, arguments, used)
        return {**arguments, **self.guess({name: Expression(size) for name, size in left.items()})}

    def _configured(self, owner: Any, parameters: Parameters) -> dict[str, Any]:
        """Return the typed arguments, with a configuration of typed and guessed fields."""
        arguments, file = dict(self.args), {}
        if isinstance(arguments.get("config"), str):
            file = read_file(arguments.pop("config"))
        arguments = folded(arguments)
        parameter = config_parameter(owner, parameters)
        if parameter is None:
            return file | arguments
        name, kind = parameter
        config = arguments.get(name, {})
        if not isinstance(config, dict):
            return arguments  # a configuration object, passed from Python
        config = file | config
        more = {} if file else guessed_fields(fields_of(kind, owner, name), config, name)
        self.guess({f"{name}.{field}": value for field, value in more.items()})
        if hasattr(kind, "_attn_implementation") and "attn_implementation" not in config:
            more["attn_implementation"] = "eager"
            self.notes.append(
                f"attention is eager, its products and softmax in torch; --arg {name}."
                "attn_implementation=sdpa asks for torch's fused attention"
            )
        return arguments | {name: Configuration(kind, config | more)}

    def guess(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Record values of arguments as guessed, and return them."""
        self.guessed_args |= values
        return dict(values)

    def call(self, what: str, parameters: Parameters, sizes: Mapping[str, str]) -> dict[str, Input]:
        """Return the inputs of the call by name, in its order.

        Without ``sizes`` (a function), q, k and v are (B, h, N, d). Raises
        :class:`UnguessedError` for required inputs without a guess.
        """
        if not signatures.takes_any(parameters):
            signatures.checked_names(self.inputs, parameters, "--input", what)
        typed = grouped(self.inputs, base_of)
        needed = {name for name, item in parameters.items() if signatures.is_required(item)} or {
            *[name for name in FIRST if name in parameters and not typed][:1]
        }
        guessed = needed - {*typed}
        if sizes and any(input_text(name, "", "").startswith("=") for name in guessed):
            sizes = {"tokens": "H*W", **sizes}
        inputs: dict[str, Input] = {}
        unknown = []
        for name, item in parameters.items():
            if name in typed:
                inputs |= {part: self.inputs[part] for part in typed[name]}
            elif name in needed or name in NEEDED:
                guess = self._guessed_input(item, sizes)
                inputs |= guess
                unknown += [] if guess else [name]
        if unknown:
            first, tokens = unknown[0], f"B, N, {sizes.get('width', 'h*d')}"
            how = f'add sizes, like --input "{first}: {tokens}" or --input "{first}: N, N bool", or'
            raise UnguessedError(what, f'{how} a value, like --input "{first}: None"', unknown)
        in_order = {*map(base_of, (*inputs, *self.inputs))} - signatures.only_named(parameters)
        if sizes and not in_order:
            inputs = self._guessed_input(Parameter("x", Parameter.POSITIONAL_ONLY), sizes) | inputs
        inputs |= self.inputs
        if not inputs:
            raise RequestError(
                f"{what} does not say what it takes: give its inputs in order, like --input "
                '"q: B, h, N, d"'
            )
        return inputs

    def _guessed_input(self, item: Parameter, sizes: Mapping[str, str]) -> dict[str, Input]:
        """Return the input that a parameter's name and annotation suggest, or nothing."""
        name, tokens = item.name, sizes.get("tokens", "N")
        text = sizes.get(f"={name}", "") or (sizes.get("whole", "") if name in TOKENS else "")
        usual = input_text(name, sizes.get("width", ""), sizes.get("head", "d"), tokens)
        text = text or ("" if not sizes and usual.startswith("=") else usual)
        if not text and sizes:  # of a layer: guess by its annotation
            plain = plain_value(name, item)
            tensor = item.annotation is Parameter.empty or "Tensor" in str(item.annotation)
            text = str(plain[0]) if plain else f"B, {tokens}, {sizes['width']}" if tensor else ""
        if text.startswith("B, ") and name not in NEEDED and (form := form_of_several(item)):
            text = form.format(f"({text}), ({text})")
        inputs = texts.parse_inputs({name: text}) if text else {}
        self.guessed_inputs |= inputs
        return inputs

    def pass_values(self, values: Mapping[str, Any]) -> None:
        """Pass plain values or sizes as inputs of the call."""
        self.inputs |= {name: Input(name, value=v, literal=True) for name, v in values.items()}

    def place_causal(self, parameters: Parameters, forward: Parameters) -> None:
        """Pass ``--causal`` to the constructor or to the call, whichever takes it."""
        if not self.causal:
            return
        argument = next((n for n in _CAUSAL if n in parameters and n not in self.args), None)
        flag = next((n for n in _CAUSAL if n in forward and n not in self.inputs), None)
        if argument:
            self.args[argument] = True
        elif flag:
            self.pass_values({flag: True})
        else:
            raise RequestError(
                f"--causal: {self.what} takes neither causal nor is_causal; give its own argument "
                'with --arg, or a mask with --input "mask: N, N bool"'
            )

    def is_factory(self, function: Any) -> bool:
        """Return whether a function makes a module: it takes sizes (or nothing), no tensor."""
        parameters = signatures.parameters_of(function, self.what)
        tensors = any(n.lower() in TOKENS | HEADS or n in self.inputs for n in parameters)
        if tensors or signatures.takes_any(parameters):
            return False
        provided = {*self.args, *(config_parameter(function, parameters) or ())[:1]}
        required = [name for name, item in parameters.items() if signatures.is_required(item)]
        return all(name in provided or name.lower() in ARGUMENTS for name in required)


def _guessed_value(item: Parameter, owner: Any, parameters: Parameters) -> tuple[Any, ...]:
    """Return a tuple with the guess for a required argument; () without a guess."""
    if part := module_of(item, owner):
        return (part,)
    if size := size_of(item.name, parameters):
        return (as_size(size),)
    if plain := plain_value(item.name, item):
        return plain
    if text := compared(item.name, owner):
        return (text,)
    return (None,) if may_be_none(item.name, owner) else ()


# -- targets: a class, a module that exists, a function ------------------------------------
def of_class(layer: Any, request: Request) -> Target:
    """Return the target of a module class, built with typed and guessed arguments at any sizes."""
    parameters = signatures.parameters_of_class(layer, request.what)
    function = inspect.getattr_static(layer, "forward")
    if hasattr(type(function), "__get__"):  # bind it to an instance, as a call of the layer would
        function = type(function).__get__(function, object(), layer)
    what = f"{request.what}.forward"
    forward = signatures.parameters_of(function, what)
    request.place_causal(parameters, forward)
    arguments = request.arguments(layer, parameters)
    make = partial(_build, layer, arguments)
    sizes = signatures.model_sizes(arguments, parameters)
    if _has_fixed_width(arguments, sizes):
        with suppress(Exception):  # what cannot be built says so when it runs
            sizes["width"] = _width_of(_built(make, request, arguments))
    if "position_embeddings" in forward:
        sizes["=position_embeddings"] = rotary_input(layer, arguments, sizes["head"])
    target = request.target(make, what, forward, arguments, sizes)
    return with_step(target, forward, layer)


def _has_fixed_width(arguments: Mapping[str, Any], sizes: Mapping[str, str]) -> bool:
    """Return whether weights have sizes of the code's own, which no argument says."""
    return sizes["width"] == "h*d" and not symbols_in(arguments.values())


def _width_of(module: Any, typed: int | None = None) -> str:
    """Return the width of a module whose weights have their sizes; ``h*d`` if it cannot be seen."""
    from torch import nn
    from torch.nn.parameter import is_lazy

    widths = [typed or None, *(getattr(module, name, None) for name in WIDTHS)]
    maps = [part.in_features for part in module.modules() if isinstance(part, nn.Linear)]
    weights = sorted((x for x in module.parameters() if not is_lazy(x)), key=lambda x: -x.ndim)
    maps += [one.shape[0] for one in weights if 0 < one.ndim <= weights[0].ndim <= 2]
    return next((str(size) for size in (*widths, *maps) if size and isinstance(size, int)), "h*d")


def _built(make: Callable[[Sizes], Any], request: Request, arguments: Mapping[str, Any]) -> Any:
    """Return what a constructor or factory returns, without values."""
    from attnprof.trace.run.worlds import fake_world

    with contained(), fake_world(None, request.dtype):
        return make(hints_for({*DEFAULT, *symbols_in(arguments.values())}, {}))


def _build(build: Any, arguments: Mapping[str, Any], sizes: Sizes) -> Any:
    """Build a module with its arguments at these sizes."""
    from attnprof.trace.run.worlds import constructed

    values = at(dict(arguments), sizes)
    return constructed(lambda: build(**values), sizes.values())


def of_instance(module: Any, request: Request, width: int | None) -> Target:
    """Return the target of a module that exists: its weights keep their sizes."""
    from attnprof.trace.run.worlds import current_mode, faked, on_cpu

    if request.args:
        raise RequestError(f"--arg: {request.what} exists already; its class takes arguments")
    module = on_cpu(module)
    what = f"{request.what}.forward"
    forward = signatures.parameters_of(module.forward, what)
    request.place_causal({}, forward)
    width_text = _width_of(module, width)
    if width_text == "h*d" and not request.inputs:
        raise RequestError(
            f"{request.what}: its width cannot be seen; give its inputs, like x: B, N, 512"
        )
    sizes = {"width": width_text, "head": "d"}
    return request.target(lambda _sizes: faked(module, current_mode()), what, forward, {}, sizes)


def of_factory(build: Any, request: Request) -> Target:
    """Return the target of a function that makes a module; one call shows the module's inputs."""
    from torch import nn

    parameters = signatures.parameters_of(build, request.what)
    request.place_causal(parameters, {})
    arguments = request.arguments(build, parameters)
    make = partial(_build, build, arguments)
    try:
        module = _built(make, request, arguments)
    except Exception as error:
        raise RequestError(f"{request.name} fails: {error_text(error)}") from error
    if not isinstance(module, nn.Module):
        raise RequestError(
            f"{request.what} returns no nn.Module but {module!r:.40}; if it is a function of "
            'tensors, give its inputs: --input "x: B, N, h*d"'
        )
    forward = signatures.parameters_of(module.forward, request.what)
    sizes = signatures.model_sizes(arguments, parameters)
    if _has_fixed_width(arguments, sizes):
        sizes["width"] = _width_of(module)
    target = request.target(make, f"{request.what}().forward", forward, arguments, sizes)
    return with_step(target, forward, type(module))


def of_function(function: Any, request: Request) -> Target:
    """Return the target of a function of tensors, and of sizes that ``--arg`` gives."""
    parameters = signatures.parameters_of(function, request.what)
    if signatures.takes_any(parameters) and not request.inputs:
        parameters = signatures.documented(function) | parameters
    request.place_causal(parameters, {})
    signatures.checked_names(request.args, parameters, "--arg", request.what)
    request.pass_values(request.args)
    needed = {  # required parameters that are no tensors
        name: Expression(ARGUMENTS[name.lower()])
        for name, item in parameters.items()
        if signatures.is_required(item) and name not in request.inputs and name.lower() in ARGUMENTS
    }
    request.pass_values(request.guess(needed))
    used = symbols_in(request.call(request.what, parameters, {}).values())
    left = signatures.sizes_at_default(parameters, request.inputs, used)
    named = {n: Expression(size) for n, size in left.items() if n.lower() not in WIDTHS}  # an axis
    request.pass_values(request.guess(named))
    return request.target(lambda _sizes: function, request.what, parameters, {}, {})
