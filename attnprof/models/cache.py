"""Bytes of a model's cache after a prompt, by kind of layer, as numbers and as formulas."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from attnprof.errors import AttnprofError
from attnprof.models.forms import Repeated
from attnprof.models.whole import WholeModel
from attnprof.trace.events import Trace, added
from attnprof.trace.request.target import Sizes, Target, hints_for, sizes_text
from attnprof.trace.run.limits import Shares, TooLongError, is_patient
from attnprof.trace.sizes import evaluate
from attnprof.trace.solve.count import count
from attnprof.trace.solve.derive import derived
from attnprof.trace.solve.symbolic import run_symbolically
from attnprof.trace.solve.verification import NoFormulaError


@dataclass(frozen=True)
class CacheForms:
    """Formulas for bytes of the cache by layer, and where they hold; empty if unknown.

    ``layers`` are the numbers that symbols for layers stand for, ``missing`` why there are no
    formulas.
    """

    by_layer: Mapping[str, Any] = field(default_factory=dict)
    layers: Mapping[str, int] = field(default_factory=dict)
    domain: tuple[str, ...] = ()
    holds: Callable[[Sizes], bool] = field(default=lambda _: False, compare=False, repr=False)
    missing: str = ""


@dataclass(frozen=True)
class CacheBytes:
    """Bytes of the cache of ``count`` layers of a kind; with an empty ``kind`` the whole cache.

    ``expression`` is in B, N and the number of layers L, None if there is none; ``value`` is the
    number at the asked sizes.
    """

    kind: str
    count: int
    expression: Any
    value: int


def cache_bytes(
    subject: WholeModel, sizes: Mapping[str, int], repeated: Repeated | None, shares: Shares
) -> tuple[list[CacheBytes], CacheForms]:
    """Return bytes of the cache after N tokens, by kind of layer, then the whole; and formulas.

    If layers repeat and those of a kind are alike, only the first few are run. Formulas get up to
    two of the ``shares`` of time.
    """
    if repeated is not None and (result := _by_first_layers(sizes, repeated, shares)):
        return result
    target = subject.cache()
    numbers = _by_layer(count(target, _sizes_of(target, sizes), "forward"))
    forms = _formulas(target, _sizes_of(target, sizes), shares)
    formulas = forms.by_layer
    groups = defaultdict[Any, list[str]](list)
    for layer, value in numbers.items():
        groups[value, formulas.get(layer)].append(layer)
    rows = []
    for (value, _), layers in groups.items():
        whole = added([formulas[layer] for layer in layers]) if formulas else None
        rows.append(CacheBytes(_name(layers, subject), len(layers), whole, value * len(layers)))
    whole = added(list(formulas.values())) if formulas else None
    return [*rows, CacheBytes("", 1, whole, sum(numbers.values()))], forms


def _by_first_layers(
    sizes: Mapping[str, int], repeated: Repeated, shares: Shares
) -> tuple[list[CacheBytes], CacheForms] | None:
    """Return rows and formulas from a decoder's first layers, or None if others may differ."""
    samples = repeated.samples
    stack, longest = samples.stacks[-1], samples.lengths[-1]
    length = longest[stack.path]
    target = repeated.few.cache()
    numbers = _by_layer(count(target, _sizes_of(target, sizes), "forward"))
    forms = _formulas(target, _sizes_of(target, sizes), shares)
    formulas = forms.by_layer
    held = [numbers.get(f"layers.{n}", 0) for n in range(length)]
    expressions = [formulas.get(f"layers.{n}", 0) for n in range(length)]
    by_kind = dict(zip(stack.kinds, zip(held, expressions, strict=False), strict=False))
    expected = [by_kind[kind] for kind in stack.kinds[:length]]
    beyond = {*numbers} - {f"layers.{n}" for n in range(length)}  # of layers that were cut off
    filled = [x for x in beyond if x not in formulas or hasattr(formulas[x], "free_symbols")]
    if filled or expected != list(zip(held, expressions, strict=True)) or not sum(held):
        return None
    rows, by_name = [], defaultdict[str, list[int]](list)
    for kind in dict.fromkeys(stack.kinds):
        by_name[repeated.kinds[kind].name] += [kind] if by_kind[kind][0] else []
    for name, kinds in by_name.items():
        number = sum(stack.kinds.count(kind) for kind in kinds)
        value = sum(by_kind[kind][0] * stack.kinds.count(kind) for kind in kinds)
        if value:
            each = {kind: by_kind[kind][1] for kind in kinds}
            whole = repeated.of_layers(stack, each) if formulas else None
            rows.append(CacheBytes(name, number, whole, value))
    whole = {kind: form for kind, (_, form) in by_kind.items()}
    total = repeated.of_layers(stack, whole) if formulas else None
    shown = {str(x) for x in getattr(total, "free_symbols", ())}
    layers = {name: number for name, number in samples.layers.items() if name in shown}
    forms = replace(forms, layers=layers, domain=(*forms.domain, *repeated.domain(layers)))
    return [*rows, CacheBytes("", 1, total, sum(row.value for row in rows))], forms


def _sizes_of(target: Target, sizes: Mapping[str, int]) -> dict[str, int]:
    return {name: sizes[name] for name in target.symbols}


def _formulas(target: Target, asked: Mapping[str, int], shares: Shares) -> CacheForms:
    """Return formulas that further runs confirm, or none with the reason."""
    near = {name: size for name, size in asked.items() if size > 1}
    with shares.next() as share:
        if not share:
            return CacheForms(missing=shares.late(share))
        try:
            return _by_symbols(target, near) or _derived(target, near)
        except (NoFormulaError, AttnprofError, TooLongError) as error:
            return CacheForms(missing=str(error) if is_patient() else shares.late(share))


def _by_symbols(target: Target, near: Mapping[str, int]) -> CacheForms | None:
    """Return the formulas of one symbolic run, or None if no other shape is in its domain."""
    try:
        run = run_symbolically(target, hints_for(target.symbols, near), ("forward",))
    except (NoFormulaError, AttnprofError):
        return None
    formulas = _by_layer(run.trace)
    others = ({name: near.get(name, 2) + more for name in target.symbols} for more in (1, 6))
    sizes = next(filter(run.holds, others), None)
    if sizes is None:
        return None
    numbers = _by_layer(count(target, sizes, "forward"))
    if {layer: evaluate(size, sizes) for layer, size in formulas.items()} != numbers:
        raise NoFormulaError(f"a run at {sizes_text(sizes)} holds something else")
    return CacheForms(formulas, {}, run.domain, run.holds)


def _derived(target: Target, near: Mapping[str, int]) -> CacheForms:
    """Return formulas by the usual search; :class:`NoFormulaError` where it finds none."""
    forms = derived(target, ("forward",), near).phases["forward"]
    if forms.method == "counted":
        raise NoFormulaError("no way to one was found")
    if why := forms.formulas["peak_bytes"].withheld:
        raise NoFormulaError(why)
    return CacheForms(_by_layer(forms.trace), {}, forms.domain, forms.holds)


def _by_layer(trace: Trace) -> dict[str, Any]:
    """Return the bytes that a run allocates, by layer."""
    by_layer = defaultdict[str, list[Any]](list)
    for call in trace.calls:
        by_layer[call.module].append(call.takes)
    return {layer: added(sizes) for layer, sizes in by_layer.items() if layer}


def _name(layers: list[str], subject: WholeModel) -> str:
    """Return the type of layers, if they have the same, else ``layers 0-3``."""
    numbers = [int(layer.rpartition(".")[2]) for layer in layers]
    types = {subject.layer_types[n] for n in numbers if n < len(subject.layer_types)}
    return types.pop() if len(types) == 1 else f"layers {numbers[0]}-{numbers[-1]}"
