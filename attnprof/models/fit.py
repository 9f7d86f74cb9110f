"""Whether a model fits a memory: weights, cache, activations and reserve of every rank.

Entry points: :func:`fit` for Python, :func:`fit_report` for the command; bytes are those of
:mod:`attnprof.models.fit_parts`, training is in :mod:`attnprof.models.fit_training`.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from fractions import Fraction
from math import ceil
from os import PathLike
from typing import Any

from attnprof.errors import RequestError, closest
from attnprof.models.fit_parts import (
    LONGEST,
    FitModel,
    FitOptions,
    cache_bytes,
    cache_formula,
    check_ranks,
    fit_model,
    layer_share,
    page_tokens,
    row_bytes,
    weight_bytes,
    weight_format,
    weight_formula,
)
from attnprof.models.fit_steps import activation_bytes, largest, sent_bytes
from attnprof.record import FitRecord, Report
from attnprof.units import format_bytes, plural


def fit(
    config: str | PathLike[str] | Mapping[str, Any], memory: int | str, **options: Any
) -> Report:
    """Return whether a model fits a memory, and the longest context and largest batch that do.

    ``config`` is a path, a name as ``attnprof fit`` takes it, or a mapping as in config.json;
    ``memory`` is of one device, in bytes or like ``80GB``. Options: ``seq_len``, ``batch_size``,
    ``dtype``, ``cache_dtype``, ``block_size``, ``tensor_parallel``, ``pipeline``,
    ``expert_parallel``, ``context_parallel``, ``chunk``, ``utilization``, ``uncapped``; with
    ``train=True`` those of :func:`attnprof.models.fit_training.training_report`. The summary's
    values are attributes of the report, too: ``fits``, ``longest_context``, ``largest_batch``,
    ``cache_bytes_per_token``, ``cache_tokens``, ``bytes_sent_per_step``, ``answer``. Raises
    :class:`attnprof.errors.RequestError` for a wrong request.

    >>> report = attnprof.fit("llama-3.1-8b", memory="24GB", seq_len=32768)
    >>> report.fits, report.longest_context, report.largest_batch
    (True, 34832, 1)
    """
    from attnprof.arguments import memory_bytes

    training = options.pop("train", False)
    given = {"memory": memory_bytes(memory), **options}
    if not training:
        asked = options_of(FitOptions, given)
        return fit_report(fit_model(config), asked)
    from attnprof.models.fit_training import TrainingOptions, training_report

    return training_report(fit_model(config), options_of(TrainingOptions, given))


def options_of(kind: Any, given: Mapping[str, Any]) -> Any:
    """Return options of a kind; :class:`RequestError` for a name that it does not have."""
    names = [field.name for field in fields(kind)]
    if wrong := next((name for name in given if name not in names), ""):
        raise RequestError(f"{wrong}: unknown option; {closest(wrong, names)}")
    return kind(**given)


# -- the answer ------------------------------------------------------------------------------


def fit_report(model: FitModel, options: FitOptions) -> Report:
    """Return a record a part, and what fits; all of one rank."""
    check_ranks(model, options)
    name, _, who = weight_format(model, options)
    weights = weight_bytes(model, options)
    active, formula = activation_bytes(model, options)
    reserve = options.memory - int(options.memory * options.utilization)
    left = options.memory - reserve - weights - active
    one = cache_bytes(model, options, options.seq_len)
    cache = options.batch_size * one
    total = weights + cache + active + reserve
    pages = plural(page_tokens(model, options), "token")
    rows = [
        ("weights", weights, weight_formula(model, options), f"{name}, by {who}"),
        ("cache", cache, cache_formula(model, options),
         f"{options.cache_dtype or 'bfloat16'}, pages of {pages}"),
        ("activations", active, formula, f"a convention; at most {options.chunk:,} tokens at once"),
        ("reserve", reserve, f"{1 - options.utilization:.2g} of the memory",
         "a convention of engines: --utilization"),
        ("total", total, "", f"of {format_bytes(options.memory)} on one rank"),
    ]  # fmt: skip
    records = [FitRecord(part=a, bytes=b, formula=c, basis=d) for a, b, c, d in rows]
    room = options.memory - reserve - weights
    rows_of_all = sum(x.layers * row_bytes(x, options) for x in model.caches)
    per_token = rows_of_all * layer_share(model, options)
    in_all = _tokens_in_all(model, options, left)
    summary = {
        "name": model.sizes.name, "fits": total <= options.memory,
        "longest_context": _largest(model, options, "seq_len", room),
        "largest_batch": _largest(model, options, "batch_size", room),
        "cache_bytes_per_token": ceil(per_token), "cache_tokens": in_all,
        "bytes_sent_per_step": sent_bytes(model, options, options.batch_size),
        "memory_bytes": options.memory, "seq_len": options.seq_len,
        "batch_size": options.batch_size, "dtype": name,
        "layers": {x.kind: x.layers for x in model.caches},
        "notes": [*said_of(model), *_notes(model, options)],
    }  # fmt: skip
    return Report("fit", records, {**summary, "answer": _answer(summary, total)})


def _largest(model: FitModel, options: FitOptions, name: str, room: int) -> int:
    """Return the largest length or batch whose caches and activations have room, all else as asked.

    Activations grow with both, up to a chunk. :data:`LONGEST` if nothing grows.
    """

    def fits(number: int) -> bool:
        asked = replace(options, **{name: number})  # type: ignore[arg-type]
        cache = asked.batch_size * cache_bytes(model, asked, asked.seq_len)
        return cache + activation_bytes(model, asked)[0] <= room

    return largest(fits)


def _tokens_in_all(model: FitModel, options: FitOptions, left: int) -> int:
    """Return how many tokens all caches hold: whole blocks, or sequences as long as the asked."""
    if left <= 0:
        return 0
    if all(one.heads and not one.window and not one.state and not one.tail for one in model.caches):
        page = cache_bytes(model, replace(options, context_parallel=1), options.block_size)
        return left // page * options.block_size * options.context_parallel
    one = cache_bytes(model, options, options.seq_len)
    return int(Fraction(left, one) * options.seq_len) if one else LONGEST


def said_of(model: FitModel) -> list[str]:
    """Return what is noted of a model, without what its weights' format is not read for."""
    return [note for note in model.sizes.notes if "quantization_config" not in note]


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
    if model.sizes.mtp_layers or (options.pipeline > 1 and model.layers % options.pipeline):
        notes.append("the fullest rank is shown; layers that predict further tokens are left out")
    return notes


def _answer(summary: Mapping[str, Any], total: int) -> str:
    """Return ``fits: 41.8 GiB of 80; …``, the sentence that says what fits."""
    memory, seq = format_bytes(summary["memory_bytes"]), summary["seq_len"]
    if not summary["fits"]:
        longest = summary["longest_context"]
        most = f"the longest context that does is {longest:,} tokens" if longest else (
            "its weights leave no room for a cache"
        )  # fmt: skip
        return f"does not fit: {format_bytes(total)} of {memory}; {most}"
    requests = plural(summary["largest_batch"], "request")
    return (
        f"fits: {format_bytes(total)} of {memory}; {summary['cache_tokens']:,} tokens in all; "
        f"at {seq:,} tokens {requests}"
    )
