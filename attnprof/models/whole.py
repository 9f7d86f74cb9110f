"""A whole model as targets to derive: forward pass, training step, decoded token, cache."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import zip_longest
from typing import Any

from attnprof.errors import CannotRunError, RequestError
from attnprof.models.prompts import Growth
from attnprof.trace.request.decoding import with_step
from attnprof.trace.request.target import Sizes, Target
from attnprof.trace.request.texts import parse_inputs, symbols_in

#: Inputs of a forward pass that are decoded one token at a time.
_DECODED = ("decoder_input_ids", "input_ids")
#: Inputs that are an encoder-decoder's target.
_TARGETS = ("decoder_input_ids", "target")
#: Tokens by default, if a model takes so many.
_USUAL = 1024
#: Names of caches, in a result and as inputs of a forward pass.
CACHES = ("past_key_values", "cache_params", "state", "mems")


class NoCacheError(CannotRunError):
    """Raised for a model that keeps nothing for the next token."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}, so no token is decoded after others")


@dataclass(frozen=True)
class WholeModel:
    """A model to derive: ``build`` makes it, on torch's default device and number format.

    ``inputs`` are those of the forward pass as ``--input`` takes them; ``labels`` are added in
    training, if the model gives a loss with them. ``dtype`` is the format of weights.

    Decoding: ``caches`` says that it takes ``use_cache`` and then gives a cache; ``steps`` is the
    class of a model with ``init_state`` and ``step`` instead; ``no_step`` is why a layer decodes no
    token. ``last_logits`` is the argument that says for how many tokens a forward pass gives
    logits, if it has one; ``logits`` is ``last`` or ``all``, or empty for the usual ones of each
    phase.

    Sizes: ``layer_types`` names the kinds of its layers in order; of ``experts``, ``chosen`` see a
    token (1 and 1 without any); ``num_heads`` are of width ``head_dim``; ``longest`` is how many
    tokens it is for, 0 if unknown. ``in_blocks``: it has mechanisms of ours, which loop over blocks
    of tokens. ``view`` is as what it is counted: as the installed transformers runs it (``torch``),
    as engines do, or by definition; ``usual_kernel`` is then transformers' own choice for
    attention, and ``fallbacks`` the classes that it runs by a fallback of a kernel. ``of_hub``: it
    is built by a configuration of transformers.
    """

    name: str
    build: Callable[[], Any]
    inputs: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=dict)
    dtype: str = "float32"
    caches: bool = False
    steps: Any = None
    layer_types: Sequence[str] = ()
    experts: int = 1
    chosen: int = 1
    notes: tuple[str, ...] = ()
    no_step: str = ""
    num_heads: int = 1
    head_dim: int = 1
    longest: int = 0
    in_blocks: bool = False
    last_logits: str = ""
    logits: str = ""
    view: str = "torch"
    usual_kernel: str = ""
    fallbacks: tuple[str, ...] = ()
    of_hub: bool = False

    @property
    def usual_length(self) -> int:
        """The number of tokens of a request that does not say one."""
        return min(_USUAL, self.longest or _USUAL)

    def target(self, phase: str = "forward") -> Target:
        """Return the target of a phase; :class:`CannotRunError` if there is no such phase."""
        if phase == "decode":
            return self._decoding(self._target(self.inputs))
        if phase == "forward" and self.logits_of(phase) == "last":
            whole = self._target(self.inputs)
            return replace(whole, make=partial(self._of_last, whole.make))
        return self._target({**self.inputs, **(self.labels if phase == "train" else {})})

    def logits_of(self, phase: str) -> str:
        """Return of which tokens a phase gives logits: of the ``last`` one or of ``all``.

        Generation needs those of a prompt's last token alone. Empty where there is no choice.
        """
        if phase not in ("prefill", "forward") or not self.last_logits:
            return ""
        return self.logits or ("last" if phase == "prefill" else "all")

    def _of_last(self, make: Callable[[Sizes], Any], sizes: Sizes) -> Any:
        from attnprof.blocks.cache import CachedCall

        return CachedCall(make(sizes), {self.last_logits: 1})

    def apart(self) -> "WholeModel":
        """Return an encoder-decoder whose target has M tokens beside the N of its source.

        Raises :class:`RequestError` for models that have no such two lengths.
        """
        target = next((name for name in _TARGETS if name in self.inputs), "")
        source = (text for name, text in self.inputs.items() if name != target)
        if not target or not any("N" in text for text in source):
            raise RequestError(f"--target-seq is for encoder-decoders of tokens; not {self.name}")
        labels = {name: text.replace("N", "M") for name, text in self.labels.items()}
        return replace(self, inputs={**self.inputs, target: "B, M int64"}, labels=labels)

    def _decoding(self, whole: Target) -> Target:
        """Return the target of one token after N - 1 others."""
        own_step = None if self.steps is None else with_step(whole, {}, self.steps).step
        if own_step is not None:
            return own_step
        if self.no_step:
            raise CannotRunError(f"{self.no_step}; so no token is decoded after others")
        if not self.caches:
            raise NoCacheError(f"{self.name} has no cache")
        step = self._target(_of_one_token(self.inputs))
        return replace(step, make=partial(self._step, self._growth), symbols=whole.symbols)

    @property
    def keeps(self) -> bool:
        """Whether the model keeps something for the next token."""
        return self.caches or self.steps is not None

    def cache(self) -> Target:
        """Return a target that copies the cache after N tokens: its peak is the cache's size."""
        symbols, copies = self._target(self.inputs).symbols, partial(self._copy, self._growth)
        # own: shapes alone are asked for, so no run on real tensors is to confirm it
        target = replace(self._target({}), own=True, in_blocks=True)
        return replace(target, symbols=symbols, make=copies)

    def _target(self, texts: Mapping[str, str]) -> Target:
        inputs = parse_inputs(texts)
        names = frozenset(inputs)
        make = lambda _sizes: _build(self.build)  # noqa: E731 - it has its configuration's sizes
        symbols = symbols_in(inputs.values())
        advice = "its configuration alone tells it: name another of its architectures there"
        return Target(
            self.name, make, tuple(inputs.values()), symbols, self.dtype, names, data=True,
            in_blocks=self.in_blocks, advice=advice,
        )  # fmt: skip

    def example(self, sizes: Sizes, device: str) -> dict[str, Any]:
        """Return inputs of a forward pass at sizes, by name."""
        return dict(self._target(self.inputs).call_inputs(sizes, device)[1])

    @property
    def _length(self) -> str:
        """The symbol for the number of tokens that are decoded: M with a source of its own."""
        return "M" if any("M" in text for text in self.inputs.values()) else "N"

    @property
    def _decoder(self) -> "WholeModel":
        """The model with M decoded tokens, if it has a source of N; else itself."""
        return self.apart() if sum("N" in text for text in self.inputs.values()) > 1 else self

    @cached_property
    def _growth(self) -> Growth:
        decoder = self._decoder
        lengths = [name for name in decoder._target(decoder.inputs).symbols if name != "B"]  # noqa: SLF001
        return Growth(self.build, decoder._prompt, lengths)  # noqa: SLF001 - one of these

    def _prompt(self, model: Any, sizes: Sizes) -> tuple[dict[str, Any], Any]:
        """Return what a model keeps after a prompt, by its name, and its encoder's rows."""
        import torch

        held = next(model.parameters())
        device = "meta" if held.is_meta else "cpu"
        with torch.no_grad():
            result = model(**self.example(sizes, device), use_cache=True)
        name, cache = cache_in(result, self.name)
        return {name: cache}, getattr(result, "encoder_last_hidden_state", None)

    def _cached(self, growth: Growth, tokens: Any, sizes: Sizes) -> tuple[Any, dict[str, Any], Any]:
        """Return a model, its cache by name after so many tokens, and its encoder's rows."""
        from attnprof.models.wrappers import Unrecorded

        decoder = self._decoder
        model, sizes = self.build().eval(), {**sizes, decoder._length: tokens}  # noqa: SLF001
        grown = growth.at(sizes)
        if grown is not None:
            return model, *grown
        with Unrecorded():
            return model, *decoder._prompt(model, sizes)  # noqa: SLF001 - one of these

    def _step(self, growth: Growth, sizes: Sizes) -> Any:
        from attnprof.blocks.cache import CachedCall

        model, cache, encoded = self._cached(growth, sizes[self._length] - 1, sizes)
        if self.view != "torch":
            from attnprof.models.engine_cache import give_room

            for kept_before in cache.values():
                give_room(kept_before)
        kept = {**cache, "use_cache": True}
        if encoded is not None:
            from transformers.modeling_outputs import BaseModelOutput

            kept["encoder_outputs"] = BaseModelOutput(last_hidden_state=encoded)
        return CachedCall(model, kept)

    def _copy(self, growth: Growth, sizes: Sizes) -> Any:
        from attnprof.models.wrappers import CacheCopy

        if self.steps is not None:  # before the next token
            decoder = self._decoder
            after = {**sizes, decoder._length: sizes[self._length] + 1}  # noqa: SLF001 - one of these
            return CacheCopy(tensors_by_layer(decoder.target("decode").make(after).state))
        _, cache, _ = self._cached(growth, sizes[self._length], sizes)
        return CacheCopy(tensors_by_layer(*cache.values()))


def _build(build: Callable[[], Any]) -> Any:
    """Build a model; on meta and then faked, if it reads numbers from tensors it makes."""
    import torch

    from attnprof.trace.run.worlds import current_mode, emptied, outside_fake

    try:
        return build()
    except Exception:
        if current_mode() is None:
            raise
        with outside_fake(), torch.device("meta"):
            model = build()
        return emptied(model)


def _of_one_token(inputs: Mapping[str, str]) -> dict[str, str]:
    """Return the inputs of a step: one token instead of N, and none of an encoder's."""
    name = next((name for name in _DECODED if name in inputs), "")
    if not name:
        raise CannotRunError("it takes no tokens, so none is decoded after others")
    return {name: "B, 1 int64"}


def cache_in(result: Any, name: str) -> tuple[str, Any]:
    """Return the name and the cache in a model's result."""
    candidates = ((one, getattr(result, one, None)) for one in CACHES)
    cache = next(((one, kept) for one, kept in candidates if kept is not None), None)
    if cache is None:
        raise NoCacheError(f"{name} gives no cache")
    return cache


def tensors_by_layer(cache: Any) -> list[list[Any]]:
    """Return the tensors in a cache, each once: layer by layer, last those of no layer."""
    from attnprof.blocks.cache import tensors_within as within

    both = (getattr(cache, f"{name}_attention_cache", None) for name in ("self", "cross"))
    parts = [part for part in both if part is not None] or [cache]
    lists, others = list[Any](), list[Any]()
    for part in parts:
        values = list(vars(part).values()) if hasattr(part, "__dict__") else [part]
        lists += [x for x in values if isinstance(x, list | tuple)]
        others += [x for x in values if not isinstance(x, list | tuple)]
    seen = set[int]()
    layers = [[x for each in row for x in within(each, seen)] for row in zip_longest(*lists)]
    rest = [x for each in others for x in within(each, seen)]
    return [*layers, rest] if rest else layers
