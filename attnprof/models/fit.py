"""Tell whether a model, served or trained, fits a memory: the bytes of each part on one rank.

Entry points: :func:`fit` for Python, :func:`fit_report` and :func:`training_report` for the
command; bytes are those of :mod:`attnprof.models.fit_parts`.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from fractions import Fraction
from math import ceil
from os import PathLike
from typing import Any

from attnprof.errors import RequestError, closest
from attnprof.models.fit_formats import file_formats, quantization_of
from attnprof.models.fit_layout import FitModel, check_ranks, fit_model
from attnprof.models.fit_options import (
    GRADIENTS,
    LONGEST,
    OPTIMIZERS,
    SHARDS,
    FitOptions,
    TrainingOptions,
)
from attnprof.models.fit_parts import (
    HALF,
    activation_bytes,
    activation_bytes_per_token,
    added_bytes,
    cache_bytes,
    cache_formula,
    entries_of_rank,
    page_tokens,
    sent_bytes,
    table_rows,
    trained_entries,
    weight_bytes,
    weight_format,
    weight_formula,
)
from attnprof.models.swap import swaps_of
from attnprof.record import FitRecord, Report
from attnprof.units import format_bytes, plural

#: Roles of weights that are matrices inside layers, which Muon has one moment for.
_INNER = ("attention", "mlp", "expert", "shared expert")


def fit(
    config: str | PathLike[str] | Mapping[str, Any], memory: int | str, **options: Any
) -> Report:
    """Return whether a model fits a memory, and the longest context and largest batch that do.

    ``config`` is a path, a name as ``attnprof fit`` takes it, or a mapping as in config.json;
    ``memory`` is of one device, in bytes or like ``80GB``. Options: ``seq_len``, ``batch_size``,
    ``dtype``, ``cache_dtype``, ``block_size``, ``tensor_parallel``, ``pipeline``,
    ``expert_parallel``, ``context_parallel``, ``chunk``, ``utilization``, ``uncapped``; ``swap``,
    mechanisms in some layers as ``--swap`` takes them, with their ``settings``; with
    ``train=True`` those of :class:`attnprof.models.fit_options.TrainingOptions`. The summary's
    values are attributes of the report, too: ``fits``, ``longest_context``, ``largest_batch``,
    ``cache_bytes_per_token``, ``cache_tokens``, ``bytes_sent_per_step``, ``answer``. Raises
    :class:`attnprof.errors.RequestError` for a wrong request.

    >>> report = attnprof.fit("llama-3.1-8b", memory="24GB", seq_len=32768)
    >>> report.fits, report.longest_context, report.largest_batch
    (True, 34832, 1)
    """
    from attnprof.arguments import memory_bytes

    training, swap = options.pop("train", False), options.pop("swap", ())
    swaps = swaps_of([swap] if isinstance(swap, str) else swap, options.pop("settings", {}))
    kind: Any = TrainingOptions if training else FitOptions
    names = [field.name for field in fields(kind)]
    if wrong := next((name for name in options if name not in names), ""):
        raise RequestError(f"{wrong}: unknown option; {closest(wrong, names)}")
    request = kind(memory=memory_bytes(memory), **options)
    layout: Any = (swaps, request.seq_len) if swaps else ()
    model = fit_model(config, *layout, served=not training)
    return (training_report if training else fit_report)(model, request)


def _report(
    model: FitModel, options: Any, parts: Callable[[FitModel, Any], list[FitRecord]],
    more: Mapping[str, Any], answer: Callable[[Mapping[str, Any], int], str],
) -> Report:  # fmt: skip
    """Return the records of parts, one of the total, and whether all of it fits.

    The longest context and the largest batch fit with all other options as typed.
    """
    records = parts(model, options)
    total = _total(records)
    basis = f"of {format_bytes(options.memory)} on one rank"
    records.append(_part("total", total, "", basis))

    def most(name: str) -> int:
        def is_too_much(number: int) -> bool:
            larger = parts(model, replace(options, **{name: number}))
            return bool(_total(larger) > options.memory)

        return bisect_left(range(LONGEST + 1), True, 1, key=is_too_much) - 1

    notes = [note for note in model.sizes.notes if "quantization_config" not in note]
    if model.sizes.mtp_layers:
        further = plural(model.sizes.mtp_layers, "layer")
        notes.append(f"left out: {further} for multi-token prediction")
    longest = most("seq_len")
    if max(longest, options.seq_len) > model.longest > 0:
        notes.append(
            f"the configuration is for at most {model.longest:,} tokens: what fits beyond is a "
            "matter of memory alone"
        )
    summary = {
        "name": model.sizes.name, "fits": total <= options.memory,
        "longest_context": longest, "largest_batch": most("batch_size"),
        "cache_bytes_per_token": more.get("cache_bytes_per_token", 0),
        "cache_tokens": more.get("cache_tokens", 0),
        "bytes_sent_per_step": more["bytes_sent_per_step"],
        "memory_bytes": options.memory, "seq_len": options.seq_len,
        "batch_size": options.batch_size, "dtype": more.get("dtype", "bfloat16"),
        "layers": more.get("layers", {}), "notes": [*notes, *more.get("notes", ())],
    }  # fmt: skip
    return Report("fit", records, {**summary, "answer": answer(summary, total)})


def _part(name: str, size: int, formula: str, basis: str) -> FitRecord:
    return FitRecord(part=name, bytes=size, formula=formula, basis=basis)


def _total(parts: Sequence[FitRecord]) -> int:
    return sum(part.bytes for part in parts)


def _reserve(options: FitOptions, basis: str) -> FitRecord:
    size = options.memory - int(options.memory * options.utilization)
    share = f"{1 - options.utilization:.2g} of the memory"
    return _part("reserve", size, share, f"{basis}: --utilization")


# -- a model that is run ---------------------------------------------------------------------


def fit_report(model: FitModel, options: FitOptions) -> Report:
    """Return the report of ``fit``: a record per part of one rank's memory, and whether it fits."""
    check_ranks(model, options)
    layers = Counter[str]()
    for one in model.caches:
        layers[one.kind] += one.layers
    more = {
        "cache_bytes_per_token": added_bytes(model, options),
        "cache_tokens": _tokens_in_all(model, options),
        "bytes_sent_per_step": sent_bytes(model, options, options.batch_size),
        "dtype": weight_format(model, options)[0], "layers": dict(layers),
        "notes": _notes(model, options),
    }  # fmt: skip
    return _report(model, options, _serving_parts, more, _answer)


def _serving_parts(model: FitModel, options: FitOptions) -> list[FitRecord]:
    """Return the parts on the fullest rank."""
    name, _, who = weight_format(model, options)
    of_cache = "states in float32"
    if any(one.heads for one in model.caches):
        pages = plural(page_tokens(model, options), "token")
        of_cache = f"{options.cache_dtype or 'bfloat16'}, pages of {pages}"
    activations, formula = activation_bytes(model, options)
    kept = options.batch_size * cache_bytes(model, options, options.seq_len)
    at_once = f"a convention; at most {plural(options.chunk, 'token')} at once"
    weights = weight_bytes(model, options), weight_formula(model, options)
    return [
        _part("weights", *weights, f"{name}, by {who}"),
        _part("cache", kept, cache_formula(model, options), of_cache),
        _part("activations", activations, formula, at_once),
        _reserve(options, "a convention of engines"),
    ]


def _tokens_in_all(model: FitModel, options: FitOptions) -> int:
    """Return how many tokens all caches hold: whole blocks, or sequences of the asked length."""
    parts = _serving_parts(model, options)
    left = options.memory - sum(part.bytes for part in parts if part.part != "cache")
    if left <= 0:
        return 0
    fixed = (
        one.window or one.state or one.tail or one.rest or not one.heads for one in model.caches
    )
    if not any(fixed):
        page = cache_bytes(model, replace(options, context_parallel=1), options.block_size)
        return left // page * options.block_size * options.context_parallel
    one = cache_bytes(model, options, options.seq_len)
    return int(Fraction(left, one) * options.seq_len) if one else LONGEST


def _notes(model: FitModel, options: FitOptions) -> list[str]:
    notes = []
    windows = [one for one in model.caches if one.window]
    if windows and not options.uncapped:
        whole = cache_bytes(model, replace(options, uncapped=True), options.seq_len)
        notes.append(
            f"window layers keep their window; an engine that keeps all tokens there needs "
            f"{format_bytes(options.batch_size * whole)} of cache: --uncapped"
        )
    if (page := page_tokens(model, options)) != options.block_size:
        notes.append(
            f"pages of {page:,} tokens hold a layer's state, as vLLM aligns them; --block 1 for "
            "caches that are not in pages"
        )
    config = quantization_of(model.fields)
    if config and options.dtype is None and not file_formats(model.fields):
        method = str(config.get("quant_method") or "without a quant_method")
        notes.append(
            f"quantization_config ({method}) does not say a format that is known: weights are "
            "counted in bfloat16; type --dtype int4, fp8, or what they are in"
        )
    if model.swapped:
        notes.append(
            "swapped layers keep what their mechanisms do; for their time type attnprof model "
            "with the same --swap"
        )
    if options.pipeline > 1 and model.layers % options.pipeline:
        notes.append("the fullest rank is shown")
    if _cache_is_fp8(config) and options.cache_dtype is None:
        notes.append("quantization_config keeps the cache in fp8: type --cache-dtype fp8")
    return notes


def _cache_is_fp8(config: Mapping[str, Any]) -> bool:
    """Return whether a file's table on quantisation says that engines keep the cache in fp8."""
    scheme = config.get("kv_cache_scheme")
    bits = scheme.get("num_bits") if isinstance(scheme, Mapping) else None
    return bits == 8 or str(config.get("kv_cache_quant_algo")).lower() == "fp8"


def _answer(summary: Mapping[str, Any], total: int) -> str:
    """Return the sentence ``fits: 41.8 GiB of 80; …``."""
    memory, length = format_bytes(summary["memory_bytes"]), plural(summary["seq_len"], "token")
    requests = plural(summary["largest_batch"], "request")
    if not summary["fits"]:
        most = "its weights leave no room for a cache"
        if summary["largest_batch"]:
            most = f"at {length} {requests} would"
        if longest := summary["longest_context"]:
            most = f"the longest context that does is {longest:,} tokens"
        return f"does not fit: {format_bytes(total)} of {memory}; {most}"
    return (
        f"fits: {format_bytes(total)} of {memory}; {summary['cache_tokens']:,} tokens in all; "
        f"at {length} {requests}"
    )


# -- a model that is trained -----------------------------------------------------------------


def training_report(model: FitModel, options: TrainingOptions) -> Report:
    """Return a record a part of a training step, and whether it fits."""
    check_ranks(model, options)
    if model.swapped:
        raise RequestError(
            f"what training {model.sizes.name} keeps is not laid out: leave --train out, or type "
            "attnprof model with the same --swap and --phase train"
        )
    more = {"bytes_sent_per_step": _sent_in_training(model, options)}
    return _report(model, options, _training_parts, more, _training_answer)


def _training_parts(model: FitModel, options: TrainingOptions) -> list[FitRecord]:
    """Return the parts on the fullest rank."""
    by_role = entries_of_rank(model, options)
    entries = trained_entries(model, options)
    inner = sum((by_role[role] for role in _INNER if role in by_role), Fraction(0))
    by_inner, by_others = OPTIMIZERS[options.optimizer]
    state = f"{by_others}*P" if by_inner == by_others else f"{by_inner} or {by_others} a parameter"
    each, of_gradient = _kept_per_token(model, options), GRADIENTS[options.gradient_dtype]
    kept = options.batch_size * options.seq_len * each / options.context_parallel

    def sharded(part: str, number: Fraction, formula: str, basis: str) -> FitRecord:
        ranks = options.data_parallel if part[0] in SHARDS[options.shard] else 1
        shared = f", over {ranks} ranks by {options.shard}" if ranks > 1 else ""
        return _part(part, ceil(number / ranks), formula, f"{basis}{shared}")

    of_state = f"{options.optimizer}: float32 master and moments"
    how = f"recompute {options.recompute}; N = {options.seq_len:,}"
    return [
        sharded("weights", HALF * sum(by_role.values(), Fraction(0)), "2*P", "bfloat16"),
        sharded("gradients", of_gradient * entries, f"{of_gradient}*P", options.gradient_dtype),
        sharded("optimizer", by_inner * inner + by_others * (entries - inner), state, of_state),
        _part("activations", ceil(kept), f"{float(each):.6g}*B*N", how),
        _reserve(options, "a convention"),
    ]


def _kept_per_token(model: FitModel, options: TrainingOptions) -> Fraction:
    """Return the bytes of a token's activations and logits.

    Logits are in half precision, in float32 for the loss, and have a gradient in float32.
    """
    logits = Fraction(table_rows(model) * (HALF + 4 + 4), options.tensor_parallel)
    return activation_bytes_per_token(model, options, options.seq_len) + logits


def _sent_in_training(model: FitModel, options: TrainingOptions) -> int:
    """Return the bytes that a rank sends in a step: of layers three times, and gradients once.

    Gradients are reduced over data-parallel ranks by rings, 2 (d - 1)/d of them; with ZeRO 3
    weights are gathered twice and gradients scattered, 3 (d - 1)/d.
    """
    d, times = options.data_parallel, 3 if options.shard == "zero3" else 2
    gradients = Fraction(times * (d - 1), d) * HALF * trained_entries(model, options)
    return 3 * sent_bytes(model, options, options.batch_size * options.seq_len) + ceil(gradients)


def _training_answer(summary: Mapping[str, Any], total: int) -> str:
    memory, length = format_bytes(summary["memory_bytes"]), plural(summary["seq_len"], "token")
    batch, most = summary["batch_size"], summary["largest_batch"]
    if summary["fits"]:
        return (
            f"trains: {format_bytes(total)} of {memory} with {plural(batch, 'sequence')} of "
            f"{length} a rank; {most:,} fit"
        )
    longest = summary["longest_context"]
    less = f"{longest:,} tokens would fit" if longest else "its weights and optimizer alone do not"
    return f"does not train: {format_bytes(total)} of {memory} at {length}; {less}"
