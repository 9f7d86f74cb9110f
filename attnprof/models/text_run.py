"""Run a model of tokens without values, and record what its modules and its attention compute.

Hooks count the rows that modules multiply for each token (:func:`text_run`). Models ask registries
of transformers for a mask and for attention, and get functions of ours. These record each call's
heads and widths, and probe the mask at a few indices far out, so that a window of any size is
found. Experts do not run: without values it is unknown which tokens they see.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any
from unittest.mock import patch

from attnprof.errors import CannotRunError, RequestError
from attnprof.models.conventions import CAUSAL, FULL, AttentionShape, Mask
from attnprof.models.parts import ModulePlace, above, places
from attnprof.models.whole import CACHES, WholeModel, called
from attnprof.user_code import error_text

#: The name of our kernel in transformers' registries.
KERNEL = "attnprof_recorded"
#: The table of transformers in which the code of a class looks attention up.
KERNEL_TABLE = "ALL_ATTENTION_FUNCTIONS"
#: Where masks are probed: further out than any window.
_FAR = 2**40
#: Masks of the running model, by storage: the mask, where its queries and its keys start, and the
#: tensor, which keeps the storage.
MASKS: dict[int, tuple[Mask, Any, Any, Any]] = {}


#: A call of attention: the module that made it, by its id, and its shape.
AttentionCall = tuple[int, AttentionShape]


def set_kernel(model: Any, kernel: str) -> None:
    """Make all attention of a model call the kernel of that name in transformers' registry.

    Swapped mechanisms of ours keep their kernels.
    """
    from attnprof.models.wrappers import Swapped

    for module in model.modules():
        config: Any = getattr(module, "config", None)
        ours = any(isinstance(x, Swapped) for x in module.children())
        if hasattr(config, "_attn_implementation_internal") and not ours:
            config._attn_implementation_internal = kernel  # noqa: SLF001 - the setter checks names


@contextmanager
def recorded_attention() -> Iterator[list[AttentionCall]]:
    """Register our kernel, and yield the list of its calls."""
    from transformers import masking_utils
    from transformers.modeling_utils import AttentionInterface

    calls = list[AttentionCall]()

    def attention(
        module: Any, query: Any, key: Any, value: Any, mask: Any = None, *_: Any, **how: Any
    ) -> Any:
        check_heads(query, key)
        small = noted(mask)
        masking = how.get("is_causal"), how.get("sliding_window")
        pattern = small[0] if small else unmasked(module, query, key, *masking)
        (batch, heads, tokens, width), value_width = query.shape, value.shape[-1]
        shape = AttentionShape(1, heads, key.shape[1], width, value_width, pattern)
        calls.append((id(module), shape))
        return query.new_empty((batch, tokens, heads, value_width)), None

    registries: dict[Any, Any] = {
        AttentionInterface: attention, masking_utils.AttentionMaskInterface: small_mask,
    }  # fmt: skip
    packed = "find_packed_sequence_indices"  # it reads positions, to tell packed sequences
    with ExitStack() as stack:
        if hasattr(masking_utils, packed):
            stack.enter_context(patch.object(masking_utils, packed, lambda *_, **__: None))
        for registry, function in registries.items():
            registry.register(KERNEL, function)
            stack.callback(registry._global_mapping.pop, KERNEL, None)  # noqa: SLF001 - no method
        stack.callback(MASKS.clear)
        yield calls


def small_mask(
    batch_size: int, q_length: Any, kv_length: Any, q_offset: Any = 0, kv_offset: Any = 0,
    mask_function: Any = None, local_size: int | None = None, device: Any = None, **_: Any,
) -> Any:  # fmt: skip
    """Return a mask of one entry, expanded, and remember the :class:`Mask` that it stands for."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    tokens = q_length if isinstance(q_length, int | torch.SymInt) else q_length.shape[0]
    with _disable_current_modes():  # tensors have values there, and nothing is recorded
        mask = CAUSAL if mask_function is None else probed(mask_function, local_size)
    tensor = torch.empty((), dtype=torch.bool, device=device)
    MASKS[_key(tensor)] = mask, q_offset, kv_offset, tensor
    return tensor.expand(batch_size, 1, tokens, kv_length)


def noted(mask: Any) -> tuple[Mask, Any, Any] | None:
    """Return the mask that a tensor of ours stands for, and where its queries and keys start."""
    entry = None if mask is None else MASKS.get(_key(mask))
    return None if entry is None else entry[:3]


def _key(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - no method says it


def check_heads(query: Any, key: Any) -> None:
    """Raise :class:`RequestError` for heads of keys that heads of queries cannot share."""
    if query.shape[1] % key.shape[1]:
        raise RequestError(
            f"{query.shape[1]} heads of queries cannot share {key.shape[1]} heads of keys: write a "
            "num_key_value_heads that divides num_attention_heads"
        )


def unmasked(module: Any, query: Any, key: Any, causal: bool | None, window: int | None) -> Mask:
    """Return the mask of a call without a tensor for it."""
    causal = getattr(module, "is_causal", True) if causal is None else causal
    causal = bool(causal) and query.shape[2] == key.shape[2]
    if window:
        return Mask("window" if causal else "around", int(window))
    return CAUSAL if causal else FULL


def probed(sees: Callable[..., Any], local: int | None) -> Mask:
    """Return the mask of a function of indices that says whether a query sees a key."""
    import torch

    def is_visible(query: int, key: int) -> bool:
        first = torch.zeros((), dtype=torch.int64, device="cpu")
        result = sees(first, first, *(torch.tensor(x, device="cpu") for x in (query, key)))
        return bool(result)

    with suppress(Exception), torch.device("cpu"):
        ahead = is_visible(_FAR, _FAR + 1)
        if is_visible(_FAR, 0):
            return FULL if ahead else CAUSAL
        high = bisect_left(range(_FAR), True, 1, key=partial(is_visible, _FAR))
        reach = _FAR - high
        if ahead:
            return Mask("around", reach)
        chunk = next((n for n in (1, 2) if is_visible(_FAR + n, high)), 0)
        return Mask("chunk", local or 1) if chunk else Mask("window", reach + 1)
    if not local:
        return CAUSAL
    return Mask("chunk" if _is_chunked(sees) else "window", local)


def _is_chunked(function: Any) -> bool:
    """Return whether a mask function is made with transformers' overlay of chunks."""
    if "chunk" in getattr(function, "__qualname__", ""):
        return True
    contents = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    inner = [x for one in contents for x in (one if isinstance(one, tuple | list) else [one])]
    return any(map(_is_chunked, filter(callable, inner)))


#: Tokens of the run: a few, since nothing depends on them.
TOKENS = 8


@dataclass
class TextRun:
    """A run without values: rows that modules multiplied for each token, and attention's calls.

    ``active`` names modules that ran; ``read`` are the storages of tensors that operations took.
    ``result`` is the model's result, with a cache if the run was to keep one.
    """

    model: Any
    rows: dict[str, Fraction]
    active: set[str]
    calls: Sequence[AttentionCall]
    result: Any = None
    read: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        from attnprof.models.wrappers import Swapped

        self._holders = defaultdict[int, list[str]](list)
        for name, weight in self.model.named_parameters(remove_duplicate=False):
            self._holders[id(weight)].append(name.rpartition(".")[0])
        self.places: Mapping[str, ModulePlace] = places(self.model)
        self.modules: Mapping[str, Any] = dict(self.model.named_modules())
        ran = {"", *self.active, *filter(self._is_read, self.modules)}
        self._ran = {outer for name in ran for outer in above(name)}
        named = self.modules.items()
        self.swapped: Mapping[str, Any] = {n: x for n, x in named if isinstance(x, Swapped)}
        output = getattr(self.model, "get_output_embeddings", lambda: None)()
        inputs = None
        with suppress(AttributeError, NotImplementedError):  # of models of two parts
            inputs = self.model.get_input_embeddings()
        self.tied = output is not None and output.weight is getattr(inputs, "weight", None)

    def _is_read(self, owner: str) -> bool:
        """Return whether the run read weights of a module, or may in a longer one.

        Some code multiplies with a norm's scale only rows for more tokens than these.
        """
        weights = list(self.modules[owner].parameters(recurse=False))
        scale = bool(weights) and all(weight.ndim < 2 for weight in weights)
        if scale and owner.rpartition(".")[0] in self.active:
            return True
        return any(_key(weight) in self.read for weight in weights)

    def ran(self, owner: str) -> bool:
        """Return whether a module or one inside it ran, or its caller read its weights."""
        return owner in self._ran

    def holders(self, weight: Any) -> Sequence[str]:
        """Return the modules that hold a parameter: several, as where layers share a block."""
        return self._holders[id(weight)]


def text_run(subject: WholeModel, **more: Any) -> TextRun:
    """Run a model over a few tokens without values, with ``more`` arguments.

    A module that multiplies several rows a token, but no more of them for twice the tokens, has
    padded these to a window, and counts once. Raises :class:`CannotRunError` if the code asks for
    values.
    """
    run = _text_run(subject, TOKENS, more)
    if repeated := {name: number for name, number in run.rows.items() if number > 1}:
        later = _text_run(subject, 2 * TOKENS, more).rows
        run.rows.update({x: Fraction(1) for x, n in repeated.items() if 2 * later[x] == n})
    return run


def _text_run(subject: WholeModel, tokens: int, more: Mapping[str, Any]) -> TextRun:
    """Return the run of a model over so many tokens."""
    import torch

    from attnprof.models.wrappers import StoragesRead

    rows, active = defaultdict[str, Fraction](Fraction), set[str]()
    reading = StoragesRead()

    def note(name: str, module: Any, _inputs: Any, result: Any) -> None:
        active.add(name)
        width = getattr(module, "out_features", None) or getattr(module, "nf", None)
        if isinstance(result, torch.Tensor) and width:  # of groups, each has its part of the rows
            rows[name] += Fraction(result.numel(), width * tokens)

    def hooked(model: Any) -> None:
        rows.clear()
        active.clear()
        reading.storages.clear()
        for name, module in model.named_modules():
            module.register_forward_hook(partial(note, name))

    model, calls, result = run_without_values(subject, tokens, hooked, reading, **more)
    return TextRun(model, rows, active, calls, result, frozenset(reading.storages))


def run_without_values(
    subject: WholeModel, tokens: int, before: Callable[[Any], None] = lambda _: None,
    within: AbstractContextManager[Any] | None = None, **more: Any,
) -> tuple[Any, list[AttentionCall], Any]:  # fmt: skip
    """Build a model, call ``before`` with it, run it; return it, attention's calls, its result.

    The model runs ``within`` a context, with ``more`` arguments. Meta tensors are fast; a model
    that looks at values there runs on fake ones, which transformers takes for a trace. Raises
    :class:`CannotRunError` if it runs on neither.
    """
    import torch

    from attnprof.models.wrappers import Unrecorded
    from attnprof.trace.run.worlds import fake_world, meta_world

    errors = list[Exception]()
    for device in ("meta", "cpu"):
        world = meta_world(subject.dtype) if device == "meta" else fake_world(dtype=subject.dtype)
        with (
            world, recorded_attention() as calls, without_experts(), torch.no_grad(),
            updated_caches() as caches,
        ):  # fmt: skip
            try:
                model = subject.build().eval()
                set_kernel(model, KERNEL)
                before(model)
                # sizes that values decide, as of experts in a loop, are known on fake tensors alone
                sized = nullcontext() if device == "meta" else Unrecorded()
                with within or nullcontext(), sized:
                    inputs = subject.example({"B": 1, "N": tokens, "M": tokens}, device)
                    result = called(model, inputs, **more)
            except RequestError as error:
                raise RequestError(f"{subject.name}: {error}") from error
            except Exception as error:  # noqa: BLE001 - code of any model
                errors.append(error)
            else:
                if caches and not any(getattr(result, name, None) for name in CACHES):
                    result.cache = caches[0]  # it made one and does not return it
                return model, calls, result
    raise CannotRunError(
        f"{subject.name} does not run without values, so what it costs is not known: "
        f"{error_text(errors[0])}"
    ) from errors[0]


@contextmanager
def updated_caches() -> Iterator[list[Any]]:
    """Yield the list of transformers' caches that a run writes to.

    A layer that gets the same tensor for keys and for values keeps it once.
    """
    from transformers.cache_utils import Cache

    caches, usual = list[Any](), Cache.update

    def update(cache: Any, keys: Any, values: Any, layer_idx: int, *more: Any, **how: Any) -> Any:
        both = usual(cache, keys, values, layer_idx, *more, **how)
        if keys is values:
            cache.layers[layer_idx].values = cache.layers[layer_idx].keys
        if all(cache is not other for other in caches):
            caches.append(cache)
        return both

    with patch.object(Cache, "update", update):
        yield caches


@contextmanager
def without_experts() -> Iterator[None]:
    """Return the input of experts as their result, without running them."""
    import torch

    usual = torch.nn.Module.__call__

    def call(module: Any, *args: Any, **how: Any) -> Any:
        if type(module).__name__.endswith("Experts") and args:
            return torch.empty_like(args[0])
        return usual(module, *args, **how)

    with patch.object(torch.nn.Module, "__call__", call):
        yield


def counted_products(subject: WholeModel, tokens: int) -> Counter[str]:
    """Return the FLOPs of products of each module in a run, without those of recorded attention.

    Those of the whole model have the name "".
    """
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    run_without_values(subject, tokens, within=counter)
    of_modules = counter.get_flop_counts().items()
    counts = {name.partition(".")[2]: sum(flops.values()) for name, flops in of_modules}
    return Counter({**counts, "": counter.get_total_flops()})
