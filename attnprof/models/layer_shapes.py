"""The shapes of a model's attention and of its recurrent layers, alike layers together.

Attention is what the registry was asked for in a run (:mod:`attnprof.models.text_run`); layers that
do not ask it are counted as they run. A recurrent layer's state stands in the attributes of its
module.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from attnprof.models.conventions import AttentionShape, MixerShape
from attnprof.models.flops_terms import CAUSAL, FULL, Mask
from attnprof.models.hub_config import first_number
from attnprof.models.parts import is_recurrent
from attnprof.models.text_run import TOKENS, TextRun, counted_products
from attnprof.models.whole import WholeModel

#: Chunks of delta layers, whose code has it as the default of a function.
_DELTA_CHUNK = 64
_BLOCK = 256  # of lightning attention


def attention_shapes(run: TextRun, config: Any) -> Iterator[AttentionShape]:
    """Yield the shapes of attention, alike layers together."""
    by_shape = defaultdict[AttentionShape, int](int)
    names = {id(module): name for name, module in run.modules.items()}
    top, heads, width = (
        first_number(config, (x,)) for x in ("index_topk", "index_n_heads", "index_head_dim")
    )
    for call in run.calls:
        owner = names.get(call.module, "")
        index = any("indexer" in x and x.startswith(f"{owner}.") for x in run.modules)
        sparse = top and index and call.mask.kind == "causal"
        shape = AttentionShape(
            0, call.heads, call.kv_heads, call.key_dim, call.value_dim,
            Mask("window", top) if sparse else call.mask,
            heads if index else 0, width if index else 0,
        )  # fmt: skip
        by_shape[shape] += 1
    yield from (replace(shape, layers=layers) for shape, layers in by_shape.items())


def with_unrecorded(
    run: TextRun, subject: WholeModel, found: tuple[AttentionShape, ...]
) -> tuple[tuple[AttentionShape, ...], tuple[str, ...]]:
    """Return attention with that of layers which do not ask the registry, and a note on it.

    What grows with the square of the length is counted on three short runs, as two products of
    equal width; whether keys ahead are masked is what the configuration says.
    """
    names = {id(module): name for name, module in run.modules.items()}
    covered = {run.places[names[x.module]].layer for x in run.calls if x.module in names}
    mixers = {run.places[name].layer for name in run.ran if mixer_of(run.modules[name])}
    rest = {x.layer for name, x in run.places.items() if x.part == "attention" and name in run.ran}
    rest -= {"", *covered, *mixers}
    rest = {x for x in rest if not any(is_recurrent(m) for m in run.modules[x].modules())}
    if not rest:
        return found, ()
    short, middle, long = (counted_products(subject, steps * TOKENS) for steps in (1, 2, 3))
    square = (long - 2 * middle + short) // (2 * TOKENS**2)  # FLOPs for each pair
    if square <= 0:
        return found, ()
    mask = CAUSAL if subject.caches else FULL
    note = f"attention of {len(rest)} layers is counted as it runs: it does not say its mask"
    layers, heads = len(rest), subject.num_heads
    if square % (4 * layers * heads):
        layers = heads = 1
    width = square // (4 * layers * heads)
    return (*found, AttentionShape(layers, heads, heads, width, width, mask)), (note,)


def mixer_shapes(run: TextRun) -> Iterator[MixerShape]:
    """Yield the recurrent layers, alike ones together."""
    alike = defaultdict[MixerShape, int](int)
    for name in sorted(run.ran):
        if shape := mixer_of(run.modules[name]):
            alike[shape] += 1
    yield from (replace(shape, layers=layers) for shape, layers in alike.items())


def mixer_of(module: Any) -> MixerShape | None:
    """Return what a recurrent layer's module carries; None for other modules."""
    kind, has = type(module).__name__, partial(_number, module)
    width, heads = has("head_dim"), has("num_heads", "num_attention_heads")
    if states := has("ssm_state_size"):
        if not has("n_groups") or not has("chunk_size"):
            return MixerShape(0, "scan", has("intermediate_size"), states, 1, 1)
        chunk, groups = has("chunk_size"), has("n_groups")
        return MixerShape(0, "decay", heads, states, width, chunk, groups)
    if has("num_v_heads") and has("head_k_dim"):
        sizes = has("num_v_heads"), has("head_k_dim"), has("head_v_dim")
        return MixerShape(0, "delta", *sizes, _DELTA_CHUNK)
    if "Delta" in kind and width:
        return MixerShape(0, "delta", heads, width, width, _DELTA_CHUNK)
    if re.search("Lightning|LinearAttention", kind) and width:
        return MixerShape(0, "decay", heads, width, width, has("block_size") or _BLOCK)
    return None


def _number(module: Any, *names: str) -> int:
    """Return the first attribute of these names that is a whole number above 0; else 0."""
    values = (getattr(module, name, None) for name in names)
    return next((int(x) for x in values if isinstance(x, int) and x), 0)
