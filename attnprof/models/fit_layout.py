"""The sizes that decide a model's memory: weights, caches, division by ranks.

Sizes come from a run of the model's own code (:mod:`attnprof.models.mfu_sizes`), caches from the
same run (:mod:`attnprof.models.fit_cache`). Entry point: :func:`fit_model`.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil
from os import PathLike
from typing import Any

from attnprof.errors import CannotRunError, RequestError
from attnprof.models.conventions import ModelSizes
from attnprof.models.fit_cache import LayerCache, cache_layout
from attnprof.models.fit_formats import FINER, StoredFormat, stored_entries
from attnprof.models.fit_options import FitOptions
from attnprof.models.hub_config import configuration, text_config
from attnprof.models.mfu_sizes import IDLE, further_layers, role_of, subject_sizes, together
from attnprof.models.names import config_of
from attnprof.models.sources import hub_subject
from attnprof.models.swap import Swap, notes_on
from attnprof.models.text_run import TextRun, text_run

#: Projections to latents, and to rows for several tokens, that no rank has a part of.
_WHOLE_PROJECTIONS = r"\b(?!o_)\w+_a_proj|\.compressor\.\w+_proj"


@dataclass(frozen=True)
class FitModel:
    """A model's sizes and caches, as far as memory depends on them.

    ``inner``: entries per token inside a layer's feed-forward network, on average (gate, up and
    product, or before and after the activation; of the experts that a token is sent to).
    ``widest``: the same of the layer with most of them. ``finer``: entries of tensors by their GGUF
    names and by role. ``stored``: each role's entries by the formats that the file names.
    ``dropout``: whether the configuration has dropout. ``swapped``: whether some layers have
    mechanisms of ours. ``idle``: entries of weights that text does not run, as of vision.
    ``longest``: the most tokens that the configuration is for, 0 if it does not say. ``by_layer``:
    entries of a role in each layer, and whether a layer has a cache.
    """

    sizes: ModelSizes
    caches: Sequence[LayerCache]
    fields: Mapping[str, Any]
    inner: int
    chosen: int
    experts: int = 1
    expert_layers: int = 0
    latent_weights: int = 0
    finer: Mapping[str, Counter[str]] = field(default_factory=dict)
    stored: Mapping[str, Counter[StoredFormat | None]] = field(default_factory=dict)
    dropout: bool = False
    source: str = ""
    swapped: bool = False
    idle: int = 0
    longest: int = 0
    by_layer: Mapping[str | LayerCache, Counter[int]] = field(default_factory=dict)
    widest: int = 0

    @property
    def layers(self) -> int:
        """The number of layers."""
        return self.sizes.layers or sum(one.layers for one in self.caches)


def fit_model(
    config: str | PathLike[str] | Mapping[str, Any], swaps: Sequence[Swap] = (), tokens: int = 4096,
    *, served: bool = True,
) -> FitModel:  # fmt: skip
    """Return the layout of a model: a path, a name, or the fields of a ``config.json``.

    ``swaps`` put mechanisms of ours into some of its layers; one of a fixed length has ``tokens``.
    Without ``served`` it has no caches, as in training. Raises :class:`CannotRunError` for a model
    that is ``served`` and keeps none, or none that is known.
    """
    config_fields = config_of(config)
    name = config if isinstance(config, str) else "the configuration"
    title = " with ".join(filter(None, (str(name), ", ".join(swap.text for swap in swaps))))
    subject = hub_subject(config_fields, title.rpartition("/")[2] or title, None, swaps, tokens)
    if served and subject.no_step:
        raise CannotRunError(f"{subject.name} keeps no cache: {subject.no_step}")
    subject = replace(subject, notes=(*subject.notes, *notes_on(swaps)))
    whole = configuration(config_fields, str(name))
    run = text_run(subject, **({"use_cache": True} if served else {}))
    sizes = subject_sizes(subject, text_config(whole), run)
    notes = tuple(x.replace(IDLE, "held, though text does not run it") for x in sizes.notes)
    sizes = replace(sizes, mtp_layers=further_layers(config_fields), notes=notes)
    if served and whole.is_encoder_decoder:
        note = "rows of its encoder's tokens are kept, too: as many as of its own"
        sizes = replace(sizes, notes=(*sizes.notes, note))
    weights = dict(run.model.named_parameters())

    modules = {name: name.rpartition(".")[0] for name in weights}
    roles = {name: role_of(run, name, weight) for name, weight in weights.items()}
    stored = stored_entries(
        config_fields,
        (
            (module, type(run.modules[module]).__name__, roles[name], weights[name].numel())
            for name, module in modules.items() if roles[name]
        ),
    )  # fmt: skip
    latent = [weight for name, weight in weights.items() if re.search(_WHOLE_PROJECTIONS, name)]
    finer = {tensor: Counter[str]() for tensor in FINER}
    for tensor, (of_roles, pattern) in FINER.items():
        for parameter, role in roles.items():
            if role in of_roles and re.search(pattern, parameter):
                finer[tensor][role] += weights[parameter].numel()
    with_experts = {key.partition(".experts.")[0] for key in weights if ".experts." in key}
    met = sizes.active("mlp", "expert", "shared expert")
    inner = -(-met // (sizes.hidden * sizes.layers)) if sizes.hidden and sizes.layers else 0
    chosen = subject.chosen if subject.experts > 1 else 1
    rates = [rate for key, rate in whole.to_dict().items() if "drop" in key]
    caches = cache_layout(run, subject) if served else []
    by_layer, met_share = _by_layer(run, roles, caches), Fraction(subject.chosen, subject.experts)
    met_in = [
        by_layer["mlp"][n] + by_layer["shared expert"][n] + by_layer["expert"][n] * met_share
        for n in range(sizes.layers)
    ]
    widest = max(inner, ceil(max(met_in) / sizes.hidden)) if inner else 0
    return FitModel(
        sizes, together(cache for _, cache in caches), config_fields, inner, chosen,
        subject.experts, len(with_experts), sum(weight.numel() for weight in latent), finer, stored,
        any(isinstance(rate, float) and rate > 0 for rate in rates), str(name), bool(swaps),
        sum(weight.numel() for name, weight in weights.items() if not roles[name]), subject.longest,
        by_layer, widest,
    )  # fmt: skip


def _by_layer(
    run: TextRun, roles: Mapping[str, str], caches: Iterable[tuple[int, LayerCache]]
) -> dict[str | LayerCache, Counter[int]]:
    """Return the entries of each role in each layer, and the numbers of layers with each cache."""
    by_layer = defaultdict[str | LayerCache, Counter[int]](Counter)
    owners = {name: name.rpartition(".")[0] for name, role in roles.items() if role}
    layers = {name: run.places[owner].layer for name, owner in owners.items()}
    numbers = {path: n for n, path in enumerate(dict.fromkeys(filter(None, layers.values())))}
    for name, weight in run.model.named_parameters():
        if path := layers.get(name):
            by_layer[roles[name]][numbers[path]] += weight.numel()
    for number, cache in caches:
        by_layer[cache][number] += 1
    return by_layer


def check_ranks(model: FitModel, options: FitOptions) -> None:
    """Raise :class:`RequestError` for ranks that do not divide the model's layers or heads."""
    if options.pipeline > model.layers:
        raise RequestError(
            f"--pipeline {options.pipeline}: {model.sizes.name} has {model.layers} layers: "
            f"type at most --pipeline {model.layers}"
        )
    heads = {one.heads for one in model.sizes.attention if one.heads > 1}
    if wrong := next((h for h in heads if h % options.tensor_parallel), 0):
        raise RequestError(
            f"--tensor-parallel {options.tensor_parallel} does not divide the {wrong} heads of "
            f"{model.sizes.name}: type a number that does"
        )
    t, e = options.tensor_parallel, options.expert_parallel
    if e > 1 and not 1 < model.experts >= e:
        have = f"{model.experts} experts" if model.experts > 1 else "no experts"
        more = f"type at most {model.experts}" if model.experts > 1 else "leave it out"
        raise RequestError(f"--expert-parallel {e}: {model.sizes.name} has {have}: {more}")
    if max(t, e) % min(t, e):
        raise RequestError(
            f"--expert-parallel {e} and --tensor-parallel {t} are of the same ranks: type numbers "
            "of which one divides the other"
        )
    if options.cache_dtype == "fp8_ds_mla" and not any(one.latent for one in model.caches):
        raise RequestError(
            f"--cache-dtype fp8_ds_mla is of latent rows, which {model.sizes.name} does not have: "
            "type fp8"
        )
