"""Find mechanisms by name: the shipped folders, entry points, and ``path.py:Class``."""

import pkgutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, make_dataclass, replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import attnprof.mechanisms as shipped
from attnprof.errors import NotFoundError, RequestError, closest
from attnprof.mechanism import Mechanism
from attnprof.mechanisms.hybrid import Hybrid

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS = "attnprof.mechanisms"
#: Other names of mechanisms, with ours.
HINTS = {
    "taylor": "TaylorShift has three: taylor-direct, taylor-efficient, taylorshift (switches)",
    "efficient-taylorshift": "that is taylor-efficient; efficient is Efficient Attention (000)",
    "direct-taylorshift": "that is taylor-direct",
    "mha": "that is standard (written out) or sdpa (torch's fused kernel)",
    "flash": "torch's fused kernel is sdpa",
    "sliding": "that is sliding-window (window=512: so many tokens, its own included); longformer "
    "counts tokens a side",
    "mqa": "that is gqa with one head of keys and values: --set num_kv_heads=1",
    "deltanet": "that is gated-deltanet with --set gate=none",
    "gdn": "that is gated-deltanet",
    "kda": "that is kimi-delta",
    "ssd": "that is mamba2",
    "retention": "that is retnet",
}


@cache
def _shipped() -> dict[str, tuple[type[Mechanism], str | ModuleType]]:
    """Return shipped mechanisms by name, with the folder each lives in."""
    shipped_ones: dict[str, tuple[type[Mechanism], str | ModuleType]] = {}
    for folder in pkgutil.iter_modules(shipped.__path__):
        package = f"{shipped.__name__}.{folder.name}"
        place = f"{package}.spec" if folder.ispkg else package
        if find_spec(place) is None:  # a folder without costs is no mechanism
            continue
        for mechanism in import_module(place).MECHANISMS:
            shipped_ones[mechanism.name] = (mechanism, package)
    return shipped_ones


def names() -> list[str]:
    """Return names of the shipped mechanisms, in the order documents introduce them."""
    return sorted(_shipped(), key=lambda name: (_shipped()[name][0].document, name))


def get(name: str, **params: Any) -> Mechanism:
    """Return a mechanism with its parameters: shipped, from an entry point, or ``path.py:Class``.

    A name may have parameters of its own, ``mla@impl=absorbed``, and be several layers,
    ``gated-deltanet@3+gqa@1``.
    """
    return _class_of(name)[0]().with_params(params)


def derivable(name: str) -> Mechanism:
    """Return the mechanism; RequestError for another name also says how to name one's own code."""
    try:
        return get(name)
    except NotFoundError as error:
        raise RequestError(
            f"'{name}' is no mechanism: {HINTS.get(name.lower()) or closest(name, names())}; for "
            "your own code type path/to/file.py:Class or package.module:Class"
        ) from error


def configured(names: Sequence[str], values: Mapping[str, Any]) -> list[Mechanism]:
    """Return the named mechanisms, each with the values that are parameters of it.

    Raises RequestError for a value that is a parameter of none of them.
    """
    specs = [get(name) for name in names]
    parameters = {name for mechanism in specs for name in mechanism.parameter_names()}
    for name, value in values.items():
        if name not in parameters:
            hint = (
                closest(name, sorted(parameters)) if parameters else "it has no parameters at all"
            )
            raise RequestError(
                f"--set {name}={value}: {', '.join(names)} has no parameter '{name}'; {hint}"
            )
    return [
        mechanism.with_params(
            {name: value for name, value in values.items() if name in mechanism.parameter_names()}
        )
        for mechanism in specs
    ]


def module_of(name: str) -> Any:
    """Import the torch code of a mechanism: ``module`` next to its ``spec``, or its one file.

    Raises :class:`RequestError` where it holds neither ``CORES`` nor ``LAYERS``.
    """
    if issubclass(_class_of(name)[0], Hybrid):
        return SimpleNamespace(LAYERS={name: _stacked})
    base = name.partition("@")[0] if _is_configured(name) else name
    if base != name:
        module_of_base, kinds = module_of(base), ("CORES", "LAYERS")
        tables = ((kind, getattr(module_of_base, kind, {})) for kind in kinds)
        return SimpleNamespace(**{k: {name: x[base]} for k, x in tables if base in x})
    mechanism, where = _class_of(name)
    module: ModuleType | None = where if isinstance(where, ModuleType) else import_module(where)
    if isinstance(where, str):  # the ``module`` of a package that has one
        package = f"{where}.module"
        folder = hasattr(module, "__path__") and find_spec(package)
        module = import_module(package) if folder else None
    if mechanism.name in {**getattr(module, "CORES", {}), **getattr(module, "LAYERS", {})}:
        return module
    if mechanism.is_text():
        from attnprof.blocks.core import OwnLayer, TextCore

        if mechanism.has_own_layer():
            return SimpleNamespace(LAYERS={mechanism.name: OwnLayer})
        return SimpleNamespace(CORES={mechanism.name: TextCore})
    raise RequestError(
        f"{name} has costs but no torch module: {getattr(module, '__name__', where)} needs "
        f"CORES = {{'{mechanism.name}': TheCore}} (or LAYERS for a whole layer)"
    )


def _class_of(name: str) -> tuple[type[Mechanism], str | ModuleType]:
    """Return the class, and the package or module where its torch side is."""
    if name in _shipped():
        return _shipped()[name]
    if _is_configured(name):
        return _configured(name)
    if ".py:" in name:
        return _from_file(name)
    points = {point.name: point for point in _entry_points()}
    if point := points.get(name):
        try:
            value = point.load()
        except Exception as error:
            from attnprof.user_code import error_text

            raise RequestError(f"{origin(point)} does not load: {error_text(error)}") from error
        mechanism = _checked(value, origin(point))
        package, _, last = mechanism.__module__.rpartition(".")
        return mechanism, package if last == "spec" else sys.modules[mechanism.__module__]
    if name.endswith(".py"):
        raise NotFoundError(f"'{name}' is a file: type {name}:MyAttention, the name of its class")
    hint = HINTS.get(name.lower()) or closest(name, [*names(), *points])
    raise NotFoundError(f"unknown mechanism '{name}': {hint} (see: attnprof list)")


def _stacked(spec: Hybrid, sizes: Any) -> Any:
    """Return a hybrid's layers as one module."""
    from attnprof.blocks.core import HybridLayers, build_layer

    layers = []
    for one in spec.layers:
        layer_sizes = replace(sizes, num_kv_heads=one.kv_heads or sizes.num_kv_heads)
        layers.append(build_layer(one, module_of(one.name), layer_sizes))
    return HybridLayers(spec, layers)


#: Digits of a number of layers: more layers than 9,999 are no model's.
_DIGITS = 4


def _is_configured(name: str) -> bool:
    """Return whether a name has parameters or numbers of layers."""
    return "@" in name.rpartition(".py:")[2]


@cache
def _configured(name: str) -> tuple[type[Mechanism], str | ModuleType]:
    """Return the class of a name with parameters, which are its defaults; or of several layers."""
    parts, counts = list[Mechanism](), list[int]()
    for term in name.split("+"):
        start = term.rpartition(".py:")[0]
        base, *settings = term[len(start) :].split("@")
        numbers = [int(x) for x in settings if x.isdecimal() and len(x) <= _DIGITS and int(x)]
        values = dict(x.partition("=")[::2] for x in settings if "=" in x)
        in_turn = any(":" in x for x in values.values())  # pattern=3:1, of model --swap
        if in_turn or len(numbers) > 1 or len(numbers) + len(values) < len(settings):
            from attnprof.algebra.parser import short

            raise RequestError(
                f"{short(term)}: type a parameter, like mla@impl=absorbed, or a number of layers, "
                f"like gated-deltanet@3+gqa@1, of at most {_DIGITS} digits"
            )
        parts.append(_with_defaults(start + base, values, term if "+" not in name else ""))
        counts += numbers or [1]
    if len(parts) == 1 and "=" in name and counts == [1]:
        return type(parts[0]), parts[0].__module__
    defaults = [("parts", tuple, tuple(parts)), ("counts", tuple, tuple(counts))]
    return _subclass(Hybrid, defaults, name), Hybrid.__module__


def _with_defaults(base: str, values: dict[str, str], name: str) -> Mechanism:
    """Return a mechanism with these parameters, of a class that has them as defaults."""
    plain = get(base)
    spec, kinds = plain.with_params(dict(values)), {item.name: item.type for item in fields(plain)}
    if not values:
        return spec
    settings = "".join(f"@{key}={x}" for key, x in values.items())
    defaults = [(key, kinds[key], getattr(spec, key)) for key in values]
    return _subclass(type(plain), defaults, name or f"{base}{settings}")()


def _subclass(kind: type[Mechanism], defaults: list[Any], name: str) -> type[Mechanism]:
    """Return a class of mechanisms with other defaults, and a name that says so."""
    more = {"name": name, "__module__": kind.__module__}
    return make_dataclass(
        kind.__name__, defaults, bases=(kind,), namespace=more, frozen=True, kw_only=True
    )


def _entry_points() -> "list[EntryPoint]":
    from importlib.metadata import entry_points

    return list(entry_points(group=ENTRY_POINTS))


@cache
def _from_file(name: str) -> tuple[type[Mechanism], str | ModuleType]:
    path, _, wanted = name.rpartition(":")
    label = f"mechanism {name}"
    from attnprof.user_code import module_in

    try:
        module = module_in(path, label)
    except RequestError as error:  # an exception that ends a program passes
        if error.__cause__ is None or isinstance(error.__cause__, Exception):
            raise
        raise error.__cause__ from None
    if not hasattr(module, wanted):
        classes = [n for n, value in vars(module).items() if _is_mechanism(value)]
        hint = closest(wanted, classes) if classes else "it defines no subclass of Mechanism"
        raise NotFoundError(f"{label}: {path} has no '{wanted}': {hint}")
    return _checked(getattr(module, wanted), label), module


def _is_mechanism(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Mechanism) and bool(value.name)


def _checked(value: Any, label: str) -> type[Mechanism]:
    if not _is_mechanism(value):
        kind, _, place = label.partition(" ")
        derive = f"; for a module, type attnprof derive {place}" if kind == "mechanism" else ""
        raise RequestError(
            f"{label} is not a mechanism: it must be a subclass of attnprof.mechanism.Mechanism "
            f"with a name{derive}"
        )
    mechanism: type[Mechanism] = value
    return mechanism


def origin(point: "EntryPoint") -> str:
    """Return which plug-in of which distribution it is, in words."""
    dist = f" of {point.dist.name} {point.dist.version}" if point.dist else ""
    return f"plug-in '{point.name}'{dist} ({point.value})"


def plugins() -> "list[tuple[EntryPoint, str | None]]":
    """Return entry points from metadata, none imported, each with why it cannot work (or None)."""
    names = []
    for point in _entry_points():
        module, _, attribute = point.value.partition(":")
        top = module.split(".", 1)[0]
        broken = None
        if point.name in _shipped():
            broken = "a shipped mechanism has this name"
        elif not attribute:
            broken = f"'{point.value}' is not module:Class"
        elif not find_spec(top):
            broken = f"there is no module '{top}'"
        names.append((point, broken))
    return names
