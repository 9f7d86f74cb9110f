"""Caches in engines' logs, pages of hybrids and files of weights, by ``attnprof fit``'s parts."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Any

from models.cases import FORMATS, Case, GiB, MiB, Replay, model_of

from attnprof.models.conventions import RoleWeights
from attnprof.models.fit import fit_report
from attnprof.models.fit_layout import FitModel
from attnprof.models.fit_options import FitOptions
from attnprof.models.fit_parts import aligned_block, cache_bytes, row_bytes, weight_bytes
from attnprof.record import FitRecord

#: Formats of GGUF files by those of their tensors.
MIXTURES = {"q3_K": "q3_k_l", "q6_K": "q6_k", "q4_0": "q4_0", "f16": "float16", "q4_K": "q4_k_m"}
#: Layers that a number is about, by the note of its row.
KINDS = {
    "kv-llamacpp-gptoss120b-full": "full", "kv-llamacpp-gptoss120b-swa": "sliding 128",
    "kv-llamacpp-gptoss20b-np8": "full", "kv-llamacpp-gptoss20b-np8-swa": "sliding 128",
    "kv-llamacpp-laguna-full": "full", "kv-llamacpp-laguna-swa": "sliding 1,024",
}  # fmt: skip


# -- caches ------------------------------------------------------------------------------------


def kv_memory(case: Case) -> Replay:
    """Return the memory of rows of tokens."""
    tokens = case.setting["tokens"] + case.setting.get("extra_tokens", 0)
    return Replay(tokens * case.token_bytes(KINDS.get(case.id)) / case.bytes_of_unit)


def tokens_from_memory(case: Case) -> Replay:
    """Return the whole pages that a printed memory has room for, in tokens or blocks."""
    block = case.setting["block"]
    unit = block if case.quantity == "kv_tokens_from_memory" else 1
    page = case.token_bytes() * block
    pages = case.setting["available_GiB"] * GiB // page
    within = float(0.005 * GiB / page + 1) * unit
    return Replay(pages * unit, within, added="to the memory's last digit")


def bytes_per_token(case: Case) -> Replay:
    """Return the bytes that a token's rows take."""
    return Replay(case.token_bytes() / case.bytes_of_unit)


def of_keys(case: Case) -> Replay:
    """Return the memory of keys alone."""
    keys = [replace(x, value_dim=0) for x in case.model.caches]
    each = sum(x.layers * row_bytes(x, case.options) for x in keys)
    return Replay(case.setting["tokens"] * each / case.bytes_of_unit)


def of_states(case: Case) -> Replay:
    """Return the memory of states or of convolutions' tails, in half precision or float32."""
    is_tail = case.id.endswith("-r") or case.quantity == "conv_state_memory"
    single = case.setting["engine"].startswith("llama.cpp")  # it keeps both in float32
    name, entry = ("tail", 4 if single else 2) if is_tail else ("state", 4)
    entries = sum(x.layers * getattr(x, name) for x in case.model.caches)
    sequences = case.setting.get("slots") or case.setting["states"]
    return Replay(sequences * entry * entries / case.bytes_of_unit)


def aligned(case: Case) -> Replay:
    """Return the tokens of a hybrid's page, or by how much a state is padded to one, in per cent.

    On Ascend the page is one of keys, and not below the state without its convolution.
    """
    setting, model = case.setting, case.model
    if setting["engine"] == "vLLM-Ascend":
        keys = [replace(x, value_dim=0, tail=0) for x in model.caches]
        setting, model = {"alignment": 128, "state_bytes": 4}, replace(model, caches=keys)
    block, padding = aligned_block(
        model, case.options, alignment=setting.get("alignment", 16),
        drafts=setting.get("speculative_tokens", 0), state_entry=setting["state_bytes"],
    )  # fmt: skip
    return Replay(100 * padding if case.unit == "%" else block)


def paged_need(case: Case) -> Replay:
    """Return the cache of one request of a hybrid, in pages."""
    options = replace(case.options, block_size=16, cache_dtype="fp8")
    return Replay(cache_bytes(case.model, options, case.setting["max_model_len"]) / GiB)


def _with_pages(case: Case, model: FitModel, page: Fraction, options: FitOptions) -> Any:
    """Return ``fit``'s summary for a memory that has room for so many pages beside the rest."""
    options = replace(options, utilization=1.0)
    rows = {x.part: x.bytes for x in fit_report(model, options).of(FitRecord)}
    others = rows["weights"] + rows["activations"]
    memory = others + ceil(page * case.setting["blocks"])
    return fit_report(model, replace(options, memory=memory)).summary


def pool(case: Case) -> Replay:
    """Return the tokens of a pool of pages of all layers, whatever the model."""
    fields = case.fields or {"model_type": "llama"}  # none is named
    model, options = model_of(json.dumps(fields)), case.options
    blocks = case.setting.get("blocks", case.setting.get("tokens", 0) // 16)
    case = replace(case, setting={**case.setting, "blocks": blocks})
    options = replace(options, block_size=case.setting.get("block", 16))
    page = Fraction(cache_bytes(model, options, options.block_size))
    tokens = _with_pages(case, model, page, options)["cache_tokens"]
    length = case.setting.get("max_model_len")
    return Replay(Fraction(tokens, length) if length else tokens)


def hybrid_pool(case: Case) -> Replay:
    """Return how many requests, or tokens of them, a pool of pages of a group's layers holds.

    The engine printed pages by groups times their tokens, though a state takes one page for all.
    """
    setting, length = case.setting, case.setting.get("max_model_len", 32768)
    options = replace(case.options, block_size=16, seq_len=length)
    rows = [x for x in case.model.caches if x.heads]
    group = sum(x.layers for x in rows)
    page = Fraction(group * setting["block"] * row_bytes(rows[0], options))
    tokens = _with_pages(case, case.model, page, options)["cache_tokens"]
    if case.unit == "x":
        return Replay(Fraction(tokens, length))
    return Replay(tokens, printed=setting["blocks"] // setting["groups"] * setting["block"])


def window_cells(case: Case) -> Replay:
    """Return the cells of a window beside a chunk of a prompt, in blocks of 256."""
    one = next(x for x in case.model.caches if x.window)
    cache = replace(one, window=one.window + case.setting["ubatch"])
    model = replace(case.model, caches=[cache])
    options = replace(case.options, block_size=case.setting["pad"])
    return Replay(cache_bytes(model, options, 2**20) / (one.layers * row_bytes(one, options)))


def shared_layers(case: Case) -> Replay:
    """Return the memory of a kind of layers; a full one's heads are twice as wide."""
    name = "full" if "full" in case.id else "sliding 1,536"
    kinds = {x.kind: x for x in case.model.caches}
    wide = 2 if name == "full" else 1
    each = wide * kinds[name].layers * row_bytes(kinds[name], case.options)
    return Replay(case.setting["cells"] * each / MiB)


def one_side(case: Case) -> Replay:
    """Return the memory of keys in fp8, or of values in NVFP4, by ``--cache-dtype fp8,nvfp4``."""
    options = replace(case.options, cache_dtype="fp8,nvfp4")
    other = "value_dim" if case.id.endswith("-k") else "key_dim"
    rows = [replace(x, **{other: 0}) for x in case.model.caches]
    return Replay(
        case.setting["tokens"] * sum(x.layers * row_bytes(x, options) for x in rows) / GiB
    )


# -- weights -----------------------------------------------------------------------------------


def _parameters(model: FitModel) -> int:
    return sum(x.entries for x in model.sizes.weights.values())


def index_bytes(case: Case) -> Replay:
    """Return the bytes of weights, and those that only the file has."""
    options = replace(case.options, dtype=FORMATS[case.setting["bytes"]])
    extra = case.setting.get("extra_bytes", 0)
    added = f"with {extra:,} B that the model does not run" if extra else ""
    return Replay(weight_bytes(case.model, options) + extra, added=added)


def gguf(case: Case) -> Replay:
    """Return the size of a GGUF file, or its bits a weight."""
    types = case.setting.get("types")
    dtype = MIXTURES[types["default"]] if types else "mxfp4_moe"
    size = weight_bytes(case.model, replace(case.options, dtype=dtype))
    bits = Fraction(8 * size, _parameters(case.model))
    return Replay(bits if case.unit == "bit" else size / case.bytes_of_unit)


def marlin(case: Case) -> Replay:
    """Return weights in MXFP4 whose experts a kernel pads to rows and columns of its own."""
    sizes, (inner, hidden) = case.model.sizes, (case.setting[x] for x in ("ff_pad", "h_pad"))
    expert, width = sizes.weights["expert"], sizes.hidden
    padded = expert.entries * inner * hidden // width**2
    weights = {**sizes.weights, "expert": RoleWeights(padded, expert.active)}
    biases = 3 * expert.entries // (3 * width**2) * width  # of gate, up and down
    grown = Fraction(biases * (2 * inner + hidden - 3 * width), 3 * width)
    model = replace(case.model, sizes=replace(sizes, weights=weights))
    size = weight_bytes(model, replace(case.options, dtype="mxfp4")) + 2 * grown
    return Replay(size / GiB, added=f"with experts of {width:,} padded to {inner:,} by {hidden:,}")


def awq(case: Case) -> Replay:
    """Return weights in four bits, and the engine's table of rotary positions."""
    table = case.setting["rotary_positions"] * case.fields["head_dim"] * 2
    size = weight_bytes(case.model, replace(case.options, dtype="int4")) + table
    return Replay(size / GiB, added="with rotary positions")
