"""A whole model as targets to derive: forward pass, training step, decoded token, cache.

Entry point: :class:`WholeModel`. The cache that a decoded token meets is that of
:mod:`attnprof.models.prompts`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import signature
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from attnprof.errors import CannotRunError, RequestError
from attnprof.trace.request.decoding import with_step
from attnprof.trace.request.target import RunMode, Sizes, Target
from attnprof.trace.request.texts import parse_inputs, symbols_in
from attnprof.user_code import is_place

if TYPE_CHECKING:
    from attnprof.models.prompts import Prompts

#: Inputs of a forward pass that are decoded one token at a time.
_DECODED = ("decoder_input_ids", "input_ids")
#: Inputs that are an encoder-decoder's target.
_TARGETS = ("decoder_input_ids", "target")
#: Tokens by default, if a model takes so many.
_USUAL = 1024
#: Names of caches, in a result and as inputs of a forward pass: since transformers 5.24 and before.
CACHES = ("cache", "past_key_values", "cache_params", "state", "mems")


class NoCacheError(CannotRunError):
    """Raised for a model that keeps nothing for the next token."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}, so no token is decoded after others")


@dataclass(frozen=True)
class WholeModel:
    """A model to derive: ``build`` makes it, on torch's default device and number format.

    ``inputs`` of the forward pass are as ``--input`` takes them; ``labels`` are added in
    training, if the model gives a loss with them. ``dtype`` is the format of weights.

    Decoding: ``caches`` says that it takes ``use_cache`` and then gives a cache; ``steps`` is the
    class of a model with ``init_state`` and ``step`` instead; ``no_step`` is why a layer decodes no
    token. ``last_logits`` is the argument that says for how many tokens a forward pass gives
    logits, if it has one; ``logits`` is ``last`` or ``all``, or empty for the usual ones of each
    phase.

    Sizes: ``layer_types`` names the kinds of its layers in order; of ``experts``, ``chosen`` see a
    token (1 and 1 without any); ``num_heads`` are of width ``head_dim``; ``longest`` is how many
    tokens it is for, 0 if unknown. ``in_blocks``: it has mechanisms of ours, which loop over blocks
    of tokens. ``view``: it is counted as the installed transformers runs it (``torch``), as engines
    do (``engine``), or by ``definition``; in the last two, ``usual_kernel`` is transformers' own
    choice for attention, and ``fallbacks`` are classes whose kernel transformers replaces by
    Python. ``of_hub``: it is built by a configuration of transformers.
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

    @cached_property
    def on_meta(self) -> Any:
        """The model with shapes and without values. It is built once, to be looked at."""
        import torch

        with torch.device("meta"):
            return self.build()

    @property
    def usual_length(self) -> int:
        """The number of tokens of a request that does not say one."""
        return min(_USUAL, self.longest or _USUAL)

    def target(self, phase: str = "forward") -> Target:
        """Return the target of a phase; :class:`CannotRunError` if there is no such phase."""
        if phase == "decode":
            return self._decoding(self._target(self.inputs))
        if phase == "forward" and self.logits_of(phase) == "last":
            from attnprof.blocks.cache import CachedCall

            whole, last = self._target(self.inputs), {self.last_logits: 1}
            return replace(whole, make=lambda sizes: CachedCall(whole.make(sizes), last))
        return self._target({**self.inputs, **(self.labels if phase == "train" else {})})

    def logits_of(self, phase: str) -> str:
        """Return which tokens of a phase have logits: ``last`` or ``all``; empty without a choice.

        Generation needs logits of a prompt's last token alone.
        """
        if phase not in ("prefill", "forward") or not self.last_logits:
            return ""
        return self.logits or ("last" if phase == "prefill" else "all")

    def with_target_length(self) -> "WholeModel":
        """Return an encoder-decoder whose source has N tokens, and whose target has M.

        Raises :class:`RequestError` for models without two lengths.
        """
        target = next((name for name in _TARGETS if name in self.inputs), "")
        source = (text for name, text in self.inputs.items() if name != target)
        if not target or not any("N" in text for text in source):
            raise RequestError(
                f"--target-seq is for encoder-decoders of tokens, not for {self.name}: leave "
                "--target-seq out"
            )
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
        tokens = next((name for name in _DECODED if name in self.inputs), "")
        if not tokens:
            raise CannotRunError("it takes no tokens, so none is decoded after others")
        step = self._target({tokens: "B, 1 int64"})  # and no input of an encoder's
        return replace(step, make=self._step, symbols=whole.symbols)

    def cache(self) -> Target:
        """Return a target that copies the cache after N tokens: its peak is the cache's size."""
        symbols = self._target(self.inputs).symbols
        # trusted: only shapes are needed, so no run on real tensors has to confirm it
        target = self._target({}).running(trusted=True, loops_in_blocks=True)
        return replace(target, symbols=symbols, make=self._copy)

    def _target(self, texts: Mapping[str, str]) -> Target:
        inputs = parse_inputs(texts)
        advice = "its configuration alone tells it: name another of its architectures there"
        if is_place(self.name):
            advice = 'say what it takes, like --input "x: B, 3, 224, 224"'
        return Target(
            self.name, self._made, tuple(inputs.values()), symbols_in(inputs.values()), self.dtype,
            frozenset(inputs), advice=advice,
            mode=RunMode(ungraded_inputs=True, loops_in_blocks=self.in_blocks),
        )  # fmt: skip

    def _made(self, _sizes: Sizes) -> Any:
        """Build the model; on meta and then faked, if its code reads values of tensors."""
        from attnprof.trace.run.worlds import emptied, has_values, on_meta

        try:
            return self.build()
        except Exception:
            if has_values():
                raise
            with on_meta():
                model = self.build()
            return emptied(model)

    def example(self, sizes: Sizes, device: str) -> dict[str, Any]:
        """Return inputs of a forward pass at sizes, by name."""
        return dict(self._target(self.inputs).call_inputs(sizes, device)[1])

    @property
    def _length(self) -> str:
        """The symbol for the number of decoded tokens: M if the source has N, else N."""
        return "M" if any("M" in text for text in self.inputs.values()) else "N"

    @cached_property
    def _decoder(self) -> "WholeModel":
        """The model with M decoded tokens, if it has a source of N; else itself."""
        has_source = sum("N" in text for text in self.inputs.values()) > 1
        return self.with_target_length() if has_source else self

    @cached_property
    def prompts(self) -> "Prompts":
        """The prompts that leave its caches, each run once."""
        from attnprof.models.prompts import Prompts

        return Prompts(self)

    def prompt(self, model: Any, sizes: Sizes) -> tuple[dict[str, Any], Any]:
        """Return the cache that a model keeps after a prompt, by name, and its encoder's rows."""
        import torch

        weight = next(model.parameters())
        device = "meta" if weight.is_meta else "cpu"
        with torch.no_grad():
            result = called(model, self.example(sizes, device), use_cache=True)
        name, cache = cache_in(result, self.name)
        takes = signature(model.forward).parameters
        # a class of an older transformers gives its cache by the new name, and takes the old one
        name = next((one for one in (name, *CACHES) if one in takes), name)
        return {name: cache}, getattr(result, "encoder_last_hidden_state", None)

    def _cached(self, tokens: Any, sizes: Sizes) -> tuple[Any, dict[str, Any], Any]:
        """Return a model, its cache by name after so many tokens, and its encoder's rows."""
        decoder = self._decoder
        return decoder.prompts.after({**sizes, decoder._length: tokens})  # noqa: SLF001

    def _step(self, sizes: Sizes) -> Any:
        from attnprof.blocks.cache import CachedCall

        model, cache, encoded = self._cached(sizes[self._length] - 1, sizes)
        if self.view != "torch":
            from attnprof.models.engine_cache import give_room

            for kept_before in cache.values():
                give_room(kept_before)
        kept = {**cache, "use_cache": True}
        if encoded is not None:
            from transformers.modeling_outputs import BaseModelOutput

            kept["encoder_outputs"] = BaseModelOutput(last_hidden_state=encoded)
        return CachedCall(model, kept)

    def _copy(self, sizes: Sizes) -> Any:
        from attnprof.models.wrappers import CacheCopy

        if self.steps is not None:  # before the next token
            decoder = self._decoder
            after = {**sizes, decoder._length: sizes[self._length] + 1}  # noqa: SLF001
            return CacheCopy(tensors_by_layer(decoder.target("decode").make(after).state))
        _, cache, _ = self._cached(sizes[self._length], sizes)
        return CacheCopy(tensors_by_layer(*cache.values()))


def called(model: Any, inputs: Mapping[str, Any], **more: Any) -> Any:
    """Return the result of a model's call, in which its source is encoded first if it must be.

    A model that takes ``use_cache`` without naming it hands it to its encoder, which may refuse it.
    """
    takes = signature(model.forward).parameters
    if "decoder_input_ids" in inputs and "use_cache" in more and "use_cache" not in takes:
        source = {name: x for name, x in inputs.items() if name != "decoder_input_ids"}
        rows = {"decoder_input_ids": inputs["decoder_input_ids"]}
        return model(encoder_outputs=model.get_encoder()(**source), **rows, **more)
    return model(**inputs, **more)


def cache_in(result: Any, name: str) -> tuple[str, Any]:
    """Return the name and the cache in a model's result."""
    for field_name in CACHES:
        if (cache := getattr(result, field_name, None)) is not None:
            return field_name, cache
    raise NoCacheError(f"{name} gives no cache")


def cache_parts(cache: Any) -> list[Any]:
    """Return the caches of a decoder's own tokens and of its encoder's, or the only cache."""
    both = (getattr(cache, f"{name}_attention_cache", None) for name in ("self", "cross"))
    return [part for part in both if part is not None] or [cache]


def tensors_by_layer(cache: Any) -> list[list[Any]]:
    """Return the tensors in a cache, each once: layer by layer, last the tensors of no layer."""
    from attnprof.blocks.cache import tensors_within as within

    lists, others = list[Any](), list[Any]()
    for part in cache_parts(cache):
        values = list(vars(part).values()) if hasattr(part, "__dict__") else [part]
        lists += [x for x in values if isinstance(x, list | tuple)]
        others += [x for x in values if not isinstance(x, list | tuple)]
    visited = set[int]()
    layers = [[x for each in row for x in within(each, visited)] for row in zip_longest(*lists)]
    rest = [x for each in others for x in within(each, visited)]
    return [*layers, rest] if rest else layers
