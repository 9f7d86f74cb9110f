"""Swap attention in a model of transformers for mechanisms of ours.

A mechanism that takes queries, keys and values is called in place of the model's own kernel,
through transformers' registry of attention functions: maps, positions and caches stay the model's.
For other mechanisms, or if the model does not ask the registry, the whole attention module is
replaced. :func:`swapped` is the entry point.
"""

import copy
import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from attnprof.blocks.core import build_layer, checked_sizes
from attnprof.errors import AttnprofError, RequestError
from attnprof.mechanism import Mechanism
from attnprof.models import wrappers
from attnprof.models.parts import is_recurrent, layer_names, layers_of, places
from attnprof.models.swap import Swap, by_layer
from attnprof.models.text_run import KERNEL_TABLE, run_without_values
from attnprof.models.whole import WholeModel
from attnprof.ops.layer import MAPS, LayerSizes
from attnprof.registry import module_of

#: Our kernel's name in transformers' registry, and that of the submodule with the mechanism.
_NAME, _CORE = "attnprof", "swapped_attention"
#: Names of modules that attend to another sequence than their own.
_ACROSS = re.compile(r"cross|encoder_attn|EncDec", re.IGNORECASE)
#: Arguments of kernels besides q, k and v, and their effect.
_KERNEL_EXTRAS = {
    "position_bias": "adds a bias by position to the scores",
    "s_aux": "has sinks among the scores",
    "softcap": "caps the scores",
}
#: Tokens of the run that shows a model's attention, unless its inputs have a size.
_TOKENS = 16


@dataclass
class _LayerAttention:
    """One layer's attention, as a run of the model shows it; heads only if it asks for a kernel.

    ``kind`` is its type in the configuration or its class, ``name`` its name in the command.
    ``number`` is the layer's number in the cache, ``more`` has the kernel's arguments besides q, k
    and v. ``maps_output``: a linear map follows it in the module, which returns ``result``.
    """

    path: str
    kind: str
    name: str = ""
    number: int | None = None
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    value_dim: int = 0
    tokens: int = 0
    width: int = 0
    causal: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)
    maps_output: bool = False
    result: Any = None


@dataclass(frozen=True)
class _SwapPlan:
    """How a layer's attention is swapped: ``make`` changes its module.

    ``no_step`` is why it cannot decode, "" where it can.
    """

    make: Callable[[nn.Module], nn.Module]
    notes: tuple[str, ...] = ()
    no_step: str = ""


def swapped(subject: WholeModel, swaps: Sequence[Swap], tokens: int) -> WholeModel:
    """Return a model with mechanisms of ours in some of its layers.

    Mechanisms that are built for one length are built for ``tokens`` of a text. Raises
    :class:`RequestError` with the layer and the reason if a mechanism does not fit.
    """
    attentions = _attention_by_layer(subject)
    kinds = [one.name for one in attentions]
    chosen = by_layer(swaps, kinds, [one.kind for one in attentions])
    plan = dict[str, _SwapPlan]()
    for number, attention in chosen.items():
        layer = attentions[number]
        length = tokens if "N" in subject.target().symbols else layer.tokens
        try:
            plan[layer.path] = _plan_for(attention.mechanism, layer, length)
        except AttnprofError as error:
            where = f"--swap {attention.name}, layer {number} ({kinds[number]})"
            reason = str(error).partition("; leave ")[0]  # no flag of this command
            raise RequestError(f"{where}: {reason}") from error
    types = [f"{kind} ({chosen[n].name})" if n in chosen else kind for n, kind in enumerate(kinds)]
    stepless = defaultdict[str, list[int]](list)
    for number in chosen:
        stepless[plan[attentions[number].path].no_step].append(number)
    stepless.pop("", None)
    no_step = "; ".join(
        f"layer{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}: {why}"
        for why, numbers in stepless.items()
    )
    keeps = subject.caches and sum(map(len, stepless.values())) < len(kinds)
    notes = dict.fromkeys(note for swap in plan.values() for note in swap.notes)
    return replace(
        subject, build=partial(_built, subject.build, plan), layer_types=types,
        caches=keeps, no_step=no_step,
        notes=(*subject.notes, *notes), in_blocks=True,
    )  # fmt: skip


def _built(build: Callable[[], nn.Module], plan: Mapping[str, _SwapPlan]) -> nn.Module:
    """Build a model and change the modules in the plan."""
    model = build()
    for path, swap in plan.items():
        parent, _, name = path.rpartition(".")
        owner: Any = model.get_submodule(parent)
        setattr(owner, name, swap.make(model.get_submodule(path)))
    return model


# -- the model's attention -----------------------------------------------------------------
def _attention_by_layer(subject: WholeModel) -> list[_LayerAttention]:
    """Return the attention of every layer, in order, by a run of the model without values."""
    attentions = list[_LayerAttention]()

    def record(model: Any) -> None:
        if subject.caches:  # attention that asks no registry is causal if it gets a cache
            model.config.get_text_config(decoder=True).use_cache = True
        attentions[:] = _records_to_fill(model, subject.layer_types)

    run_without_values(subject, _TOKENS, record)
    return attentions


def _records_to_fill(model: nn.Module, types: Sequence[str]) -> Iterator[_LayerAttention]:
    """Yield a record for each layer, filled in while the model runs."""
    where, modules = places(model), dict(model.named_modules())
    inside: dict[str, list[str]] = {layer: [] for layer in layers_of(where)}
    for path, place in where.items():
        if place.layer and place.part == "attention" and not _ACROSS.search(path):
            inside[place.layer] += [] if is_recurrent(modules[path]) else [path]
    names = layer_names(model, [*inside], where, types)
    if len(types) != len(inside):
        types = [type(modules[layer]).__name__ for layer in inside]
    for paths, kind, name in zip(inside.values(), types, names, strict=True):
        asking = [path for path in paths if _asks_registry(modules[path])]
        attn = _LayerAttention(next(iter((*asking, *paths)), ""), kind, name)
        if attn.path:
            attn.number = _number_of(modules[attn.path])
            _record_calls(modules[attn.path], attn, bool(asking))
        yield attn


def _asks_registry(module: nn.Module) -> bool:
    """Return whether a module's forward pass looks a kernel up in transformers' registry."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and KERNEL_TABLE in code.co_names and hasattr(module, "config")


def _record_calls(module: nn.Module, attn: _LayerAttention, asks: bool) -> None:
    """Record the arguments that a module and its kernel get."""

    def began(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        values = (*args, *kwargs.values())
        rows = wrappers.rows_in(values)
        attn.width, attn.tokens, attn.maps_output = rows.shape[-1], rows.shape[1], False
        attn.causal = wrappers.cache_in_call(values) is not None  # its kernel may correct this

    def ended(_: Any, __: Any, result: Any) -> None:
        attn.result = result

    def mapped(*_: Any) -> None:
        attn.maps_output = attn.head_dim > 0

    def kernel(owner: Any, q: Tensor, k: Tensor, v: Tensor, more: dict[str, Any]) -> Tensor:
        attn.heads, attn.kv_heads = q.shape[1], k.shape[1]
        attn.head_dim, attn.value_dim = q.shape[-1], v.shape[-1]
        attn.causal, attn.more = wrappers.is_causal(owner, more), more
        return q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[-1])

    module.register_forward_pre_hook(began, with_kwargs=True)
    module.register_forward_hook(ended)
    for inner in module.modules():
        if isinstance(inner, nn.Linear) or type(inner).__name__ == "Conv1D":
            inner.register_forward_hook(mapped)
    if asks:
        _set_kernel(module, kernel)


def _set_kernel(module: Any, kernel: Any) -> None:
    """Let one module, and no other, call this kernel."""
    from transformers import AttentionInterface

    AttentionInterface.register(_NAME, _swapped_kernel)
    module.config = copy.copy(module.config)
    module.config._attn_implementation = _NAME  # noqa: SLF001 - as models read it
    setattr(module, _CORE, kernel)


def _swapped_kernel(
    module: Any, q: Tensor, k: Tensor, v: Tensor, _mask: Any = None, **more: Any
) -> tuple[Tensor, None]:
    """Run the mechanism as transformers' registry does: (b, h, n, d) each → (b, n, h, d)."""
    return getattr(module, _CORE)(module, q, k, v, more), None


# -- its replacement -----------------------------------------------------------------------
def _plan_for(spec: Mechanism, attn: _LayerAttention, tokens: int) -> _SwapPlan:
    """Return how a mechanism gets into a layer; raise :class:`RequestError` if it does not fit."""
    if not attn.width:
        raise RequestError("this layer has no attention to its own input")
    spec.refuse_unless(causal=attn.causal)
    takes_heads = attn.heads and spec.abilities.attend and set("qkv") <= {*spec.projections}
    if takes_heads:  # gates are maps of the layer's input, which a kernel does not see
        sizes = LayerSizes(attn.heads, attn.head_dim, attn.heads, attn.head_dim)
        takes_heads = not spec.layer_maps(sizes).keys() - MAPS.keys()
    no_step = _no_step(spec, attn)
    plan = _as_kernel if takes_heads else _as_layer
    make, notes = plan(spec, attn, tokens, decodes=not no_step)
    return _SwapPlan(make, tuple(notes), no_step)


def _as_kernel(
    spec: Mechanism, attn: _LayerAttention, tokens: int, *, decodes: bool
) -> tuple[Callable[[nn.Module], nn.Module], list[str]]:
    """Return how to call a mechanism on the model's own queries, keys and values, and notes."""
    for name, effect in _KERNEL_EXTRAS.items():
        if attn.more.get(name) is not None:
            raise RequestError(f"the model {effect} ({name}), which {spec.name} has no place for")
    grouped = attn.kv_heads != attn.heads
    repeats = grouped and not spec.abilities.grouped_kv
    sizes = checked_sizes(
        spec, attn.heads * attn.head_dim, attn.heads, tokens,
        attn.kv_heads if grouped and not repeats else None, attn.value_dim,
    )  # fmt: skip

    def make(module: nn.Module) -> nn.Module:
        core = module_of(spec.name).CORES[spec.name](spec, sizes)
        kernel = wrappers.SwappedKernel(core, _number_of(module), decodes)
        _set_kernel(module, kernel)
        module.register_forward_pre_hook(kernel.look_for_cache, with_kwargs=True)
        return module

    window, notes = attn.more.get("sliding_window"), []
    if repeats:
        notes.append(f"{spec.name} needs as many key heads as query heads: each is repeated")
    if window is not None:
        notes.append(f"{spec.name} takes the place of attention to {window} tokens in all")
    return make, notes


def _as_layer(
    spec: Mechanism, attn: _LayerAttention, tokens: int, *, decodes: bool
) -> tuple[Callable[[nn.Module], nn.Module], list[str]]:
    """Return how to replace the whole attention module, and notes."""
    rows = attn.result[0] if isinstance(attn.result, tuple) else attn.result
    if not isinstance(rows, Tensor) or rows.shape[-1] != attn.width:
        raise RequestError(f"its attention does not give rows as wide as it takes ({attn.width})")
    grouped = attn.kv_heads != attn.heads
    if grouped and not spec.maps_all:
        spec.refuse_unless(grouped_kv=True)
    shares = grouped and spec.abilities.grouped_kv and spec.kv_heads is None
    sizes = checked_sizes(
        spec, attn.width, attn.heads or 1, tokens, attn.kv_heads if shares else None,
        head_dim=attn.head_dim or None if spec.maps_all else None,
    )  # fmt: skip
    result = (None,) * len(attn.result) if isinstance(attn.result, tuple) else None

    def make(module: nn.Module) -> nn.Module:
        layer = build_layer(spec, module_of(spec.name), sizes)
        if attn.heads and not attn.maps_output and hasattr(layer, "o_proj"):
            layer.o_proj = nn.Identity()  # the model has an output map of its own
        return wrappers.SwappedAttention(layer, _number_of(module), decodes, attn.causal, result)

    lost = [effect for name, effect in _KERNEL_EXTRAS.items() if attn.more.get(name) is not None]
    more = f"; the model's attention {' and '.join(lost)}" if lost else ""
    note = f"{spec.name} replaces whole attention modules, with their maps and positions{more}"
    return make, [note]


def _no_step(spec: Mechanism, attn: _LayerAttention) -> str:
    """Return why a mechanism has no step in a layer that decodes, "" where it has one."""
    if not attn.causal:
        return ""
    if attn.number is None:
        return f"its module has no layer_idx, by which a cache would keep what {spec.name} keeps"
    try:
        spec.refuse_unless(decode=True)
    except RequestError as error:
        return str(error).partition("; use ")[0]  # no advice for one mechanism alone
    return ""


def _number_of(module: Any) -> int | None:
    """Return the number of an attention module in the model's cache, or None."""
    numbers = (getattr(module, name, None) for name in ("layer_idx", "layer_id"))
    return next((number for number in numbers if isinstance(number, int)), None)
