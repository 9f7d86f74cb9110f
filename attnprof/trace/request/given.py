"""A request to derive user code: what was typed, and guesses for arguments and inputs left out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import Parameter
from typing import Any

from attnprof.errors import RequestError
from attnprof.trace.request import signatures, texts
from attnprof.trace.request.configurations import (
    Configuration,
    fields_of,
    guessed,
    module_of,
    read_file,
    taken_by,
)
from attnprof.trace.request.messages import compared, may_be_none
from attnprof.trace.request.signatures import Parameters
from attnprof.trace.request.target import (
    Expression,
    Input,
    Target,
    base_of,
    folded,
)
from attnprof.trace.request.texts import as_size, symbols_in
from attnprof.trace.request.usual import (
    ARGUMENTS,
    FIRST,
    HEADS,
    NEEDED,
    PLACES,
    TOKENS,
    form_of_several,
    input_text,
    plain_value,
    size_of,
)

_CAUSAL = ("causal", "is_causal")


class UnguessedError(RequestError):
    """Raised for required arguments or inputs (``names``) that nobody can guess."""

    def __init__(self, what: str, how: str, names: Sequence[str]) -> None:
        listed = " and ".join(filter(None, [", ".join(map(repr, names[:-1])), repr(names[-1])]))
        super().__init__(f"{what} needs {listed}, which cannot be guessed: {how}")


@dataclass
class Request:
    """What was typed for one target, and what was guessed, with the flag that overrides it."""

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

    def with_guesses(self, args: Mapping[str, Any], inputs: Mapping[str, Input]) -> "Request":
        """Return the request with these arguments and inputs as its guesses."""
        guesses = {f"{name}={shown(value)}": "--arg" for name, value in args.items()}
        guesses |= {f'"{item.spelled}"': "--input" for item in inputs.values()}
        bases = {base_of(name) for name in inputs}
        kept = {name: item for name, item in self.inputs.items() if base_of(name) not in bases}
        return replace(
            self, given={**self.given, **args}, inputs={**kept, **inputs}, guessed=guesses, notes=[]
        )

    def target(
        self, make: Any, what: str, taken: Parameters, arguments: Any, known: Mapping[str, str]
    ) -> Target:
        """Return the target, over the symbols that its arguments and inputs use.

        ``known`` are the model's sizes as texts, ``{"width": "h*d", "head": "d"}``; empty for a
        function.
        """
        named = self.call(what, taken, _with_grid(arguments, taken, known))
        inputs, by_name = tuple(named.values()), signatures.by_name(named, taken)
        if self.guessed:
            texts = ", ".join(sorted(self.guessed, key=self.guessed.__getitem__))
            ways = " and ".join(sorted({*self.guessed.values()}))
            self.notes.insert(0, f"guessed: {texts}; give {ways} to say otherwise")
        symbols = symbols_in([*arguments.values(), *inputs])
        return Target(self.name, make, inputs, symbols, self.dtype, by_name, tuple(self.notes))

    def arguments(self, owner: Any, parameters: Parameters) -> dict[str, Any]:
        """Return the constructor's arguments: typed and guessed; no default stands for h or d.

        Raises :class:`UnguessedError` for required ones that nobody can guess.
        """
        arguments = self._configured(owner, parameters)
        signatures.checked_names(arguments, parameters, "--arg", self.what)
        unknown = []
        for name, item in parameters.items():
            place = item.default is None and name in PLACES  # which a cache asks for
            if name in arguments or not (place or signatures.is_required(item)):
                continue
            size, plain = size_of(name), plain_value(name, item)
            if part := module_of(item, owner):
                arguments |= self.guess({name: part})
                continue
            if not size and not plain and (text := compared(name, owner)):
                plain = (text,)
            if not size and not plain and may_be_none(name, owner):
                plain = (None,)
            if not size and not plain:
                unknown.append(name)
                continue
            arguments |= self.guess({name: as_size(size) if size else plain[0]})
        if unknown:
            added = " ".join(f"--arg {name}=…" for name in unknown)
            how = f"add {added} (a size like h*d, or a value), or point at a function of yours that"
            how += " returns the module, like def make(d_model, num_heads)"
            takes = ", ".join(map(str, parameters.values()))
            raise UnguessedError(f"{self.what}({takes})", how, unknown)
        if "batch_first" in parameters and "batch_first" not in self.given:
            self.notes.append("batch_first=True was set: inputs are (batch, tokens, width)")
            arguments["batch_first"] = True
        known = signatures.known_sizes(arguments, parameters)
        of_images = known.get("whole", "").count(",") == 3  # at sizes that are numbers
        usual = [] if of_images else [Expression(known["width"])]
        inputs = self.inputs.values() or usual
        used = symbols_in([*arguments.values(), *inputs])
        left = signatures.sizes_at_default(parameters, arguments, used)
        return {**arguments, **self.guess({name: Expression(size) for name, size in left.items()})}

    def _configured(self, owner: Any, parameters: Parameters) -> dict[str, Any]:
        """Return the typed arguments, with a configuration of typed and guessed fields."""
        given, file = dict(self.given), {}
        if isinstance(given.get("config"), str):
            file = read_file(given.pop("config"))
        given = folded(given)
        taken = taken_by(owner, parameters)
        if taken is None:
            return file | given
        name, kind = taken
        config = given.get(name, {})
        if not isinstance(config, dict):
            return given  # an object, from Python
        fields = fields_of(kind, owner, name)
        config = file | config
        more = {} if file else guessed(fields, config, name)
        self.guess({f"{name}.{field}": value for field, value in more.items()})
        if hasattr(kind, "_attn_implementation") and "attn_implementation" not in config:
            more["attn_implementation"] = "eager"
            self.notes.append(
                f"attention is eager, its products and softmax in torch; --arg {name}."
                "attn_implementation=sdpa asks for torch's fused attention"
            )
        return given | {name: Configuration(kind, config | more)}

    def guess(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Note values of arguments as guessed, and return them."""
        self.guessed |= {f"{name}={shown(value)}": "--arg" for name, value in values.items()}
        return dict(values)

    def call(self, what: str, parameters: Parameters, known: Mapping[str, str]) -> dict[str, Input]:
        """Return the inputs of the call by name, in its order.

        Without ``known`` sizes (a function), q, k and v are (B, h, N, d). Raises
        :class:`UnguessedError` for required ones that nobody can guess.
        """
        if not signatures.takes_any(parameters):
            signatures.checked_names(self.inputs, parameters, "--input", what)
        given: dict[str, dict[str, Input]] = {}
        for name, tensor in self.inputs.items():
            given.setdefault(base_of(name), {})[name] = tensor
        needed = {name for name, item in parameters.items() if signatures.is_required(item)} or {
            *[name for name in FIRST if name in parameters and not given][:1]
        }
        if known and any(input_text(name, "", "").startswith("=") for name in needed - {*given}):
            known = {"tokens": "H*W", **known}
        inputs: dict[str, Input] = {}
        unknown = []
        for name, item in parameters.items():
            if name in given or name in needed or name in NEEDED:
                made = given.get(name) or self._guessed(item, known)
                inputs |= made
                unknown += [] if made else [name]
        if unknown:
            first, tokens = unknown[0], f"B, N, {known.get('width', 'h*d')}"
            how = f'add sizes, like --input "{first}: {tokens}" or --input "{first}: N, N bool", or'
            raise UnguessedError(what, f'{how} a value, like --input "{first}: None"', unknown)
        if known and not {*map(base_of, (*inputs, *self.inputs))} - signatures.only_named(
            parameters
        ):
            inputs = self._guessed(Parameter("x", Parameter.POSITIONAL_ONLY), known) | inputs
        inputs |= self.inputs
        if not inputs:
            raise RequestError(
                f"{what} does not say what it takes: give its inputs in order, like --input "
                '"q: B, h, N, d"'
            )
        return inputs

    def _guessed(self, item: Parameter, known: Mapping[str, str]) -> dict[str, Input]:
        """Return the input that a parameter's name and annotation suggest, or nothing."""
        name, tokens = item.name, known.get("tokens", "N")
        text = known.get("rotary", "") if name in NEEDED else ""
        if name in TOKENS:
            text = known.get(f"={name}", "") or known.get("whole", "")
        text = (
            text
            or known.get(f"={name}", "")
            or input_text(name, known.get("width", ""), known.get("head", "d"), tokens)
        )
        if not known and text.startswith("="):
            text = ""
        if not text and known:  # a layer's: by its type
            plain = plain_value(name, item)
            tensor = item.annotation is Parameter.empty or "Tensor" in str(item.annotation)
            text = str(plain[0]) if plain else f"B, {tokens}, {known['width']}" if tensor else ""
        if text.startswith("B, ") and name not in NEEDED and (form := form_of_several(item)):
            text = form.format(f"({text}), ({text})")
        inputs = texts.parse_inputs({name: text}) if text else {}
        self.guessed |= {f'"{item.spelled}"': "--input" for item in inputs.values()}
        return inputs

    def pass_values(self, values: Mapping[str, Any]) -> None:
        """Make plain values, or sizes, inputs of the call."""
        self.inputs |= {name: Input(name, value=v, literal=True) for name, v in values.items()}

    def place_causal(self, parameters: Parameters, taken: Parameters) -> None:
        """Pass ``--causal`` to the constructor or to the call, whichever takes it."""
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
        """Return whether a function makes a module: it takes sizes (or nothing), no tensor."""
        parameters = signatures.parameters_of(function, self.what)
        tensors = any(n.lower() in TOKENS | HEADS or n in self.inputs for n in parameters)
        if tensors or signatures.takes_any(parameters):
            return False
        known = {*self.given, *(taken_by(function, parameters) or ())[:1]}
        required = [name for name, item in parameters.items() if signatures.is_required(item)]
        return all(name in known or name.lower() in ARGUMENTS for name in required)


@dataclass(frozen=True)
class Repair:
    """A change of guesses: values of arguments, texts of inputs."""

    args: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)

    def __or__(self, other: "Repair") -> "Repair":
        return Repair({**self.args, **other.args}, {**self.inputs, **other.inputs})

    def __len__(self) -> int:
        return len(self.args) + len({*map(base_of, self.inputs)})

    def __str__(self) -> str:
        args = [f"--arg {name}={shown(value)}" for name, value in self.args.items()]
        return " ".join([*args, *(f'--input "{n}: {text}"' for n, text in self.inputs.items())])


def shown(value: Any) -> str:
    """Return a value as ``--arg`` takes it."""
    return value.text if isinstance(value, Expression) else str(value)


def _with_grid(arguments: Any, taken: Parameters, known: Mapping[str, str]) -> Mapping[str, str]:
    """Return the known sizes, with an image's sides if call and constructor both take them."""
    names = [name for name in taken if input_text(name, "", "") == "=(H, W)"]
    for name in names if known else ():
        sides = arguments.get(name)
        if isinstance(sides, tuple | list) and len(sides) == 2:
            high, wide = (getattr(side, "text", side) for side in sides)
            return {**known, "tokens": f"{high}*{wide}", f"={name}": f"=({high}, {wide})"}
    return known
