"""Compare mechanisms with softmax attention: every candidate's error on every input, and its cost.

Candidates are mechanisms with several values of the parameters that tune them.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from statistics import median
from typing import Any

import torch

from attnprof import registry
from attnprof.blocks.core import checked_sizes, seeded_core
from attnprof.errors import AttnprofError, CannotRunError, RequestError, together
from attnprof.measure.clocks import cuda_clock, on_device, time_in_turns
from attnprof.measure.point import available_bytes
from attnprof.measure.request import Budget
from attnprof.measure.statistics import MedianEstimate, estimate_median
from attnprof.measure.subject import Subject, is_out_of_memory
from attnprof.measure.tradeoff_inputs import Core, Distance, ExactAttention, QueriesKeysValues
from attnprof.mechanism import Mechanism
from attnprof.ops.layer import LayerSizes
from attnprof.processes.progress import tell
from attnprof.record import Report, TradeoffRecord
from attnprof.record.measured import names_of
from attnprof.units import format_bytes, format_number, format_ratio
from attnprof.user_code import error_text
from attnprof.workload import Workload

#: Shares of a parameter's default that are tried.
SHARES = (0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class Candidate:
    """A mechanism with its parameters, and the name that was typed."""

    name: str
    mechanism: Mechanism


def candidates(
    names: Sequence[str], values: Mapping[str, Sequence[str]], seq_len: int, head_dim: int
) -> list[Candidate]:
    """Return every mechanism with every combination of the ``values`` it has a parameter for.

    A ``tuned`` parameter without values gets several: shares of its default, or of the head width
    if the default follows from sizes, up to ``seq_len``. A name that no mechanism has is an error.
    """
    registry.configured(names, {name: choices[0] for name, choices in values.items()})
    chosen_candidates: dict[Candidate, None] = {}
    for name in names:
        mechanism = registry.get(name)
        typed = {
            key: choices for key, choices in values.items() if key in mechanism.parameter_names()
        }
        for chosen in product(*typed.values()):
            base = mechanism.with_params(dict(zip(typed, chosen, strict=True)))
            tuned = [key for key in mechanism.tuned if key not in typed]
            for each in _tuned(base, tuned, seq_len, head_dim):
                chosen_candidates[Candidate(name, each)] = None
    return list(chosen_candidates)


def _tuned(base: Mechanism, names: Sequence[str], n: int, d: int) -> Iterator[Mechanism]:
    """Yield the mechanism with one tuned parameter at a time at several values."""
    if not names:
        yield base
    for name in names:
        default = base.params[name]
        if default is None:
            yield base
        least: Any = base.allowed.get(name)
        for value in ladder(default or d, n, least if isinstance(least, int) else 1):
            yield base.with_params({name: value})


def ladder(default: int, most: int, least: int = 1) -> list[int]:
    """Return whole shares of a default between ``least`` and ``most``, each once, ascending."""
    return sorted({max(least, min(most, round(share * default))) for share in SHARES})


#: Tensors as large as the inputs that a comparison holds beside what the candidate does.
COPIES = 6


@dataclass(frozen=True)
class Terms:
    """The conditions of all rows; ``built_for``: tokens of mechanisms made for one length."""

    causal: bool = False
    dtype: str = "float32"
    device: str = "cpu"
    seeds: int = 3
    seed: int = 0
    built_for: int | None = None


def workload_of(qkv: QueriesKeysValues, terms: Terms) -> Workload:
    """Return the sizes of an input, as closed forms take them."""
    (b, h, n, d), (_, g, m, dv) = qkv.q.shape, qkv.v.shape
    return Workload(
        n, h, d, b, num_kv_heads=None if g == h else g, value_head_dim=None if dv == d else dv,
        kv_seq_len=None if m == n else m, causal=terms.causal, dtype=terms.dtype,
    )  # fmt: skip


def check_memory(mechanism: Mechanism, workload: Workload) -> None:
    """Raise :class:`CannotRunError` if a comparison in float64 would not fit in memory."""
    w = workload.with_(dtype="float64")
    inputs = w.batch_size * w.num_heads * w.head_dim * (w.seq_len + w.keys) * w.item_size
    needed, free = int(mechanism.cost(w, "core").peak()) + COPIES * inputs, available_bytes("cpu")
    if needed > free:
        raise CannotRunError(
            f"{mechanism.name} does not fit: needs {format_bytes(needed)} in float64, "
            f"{format_bytes(free)} are free"
        )


def _sizes(mechanism: Mechanism, w: Workload, terms: Terms) -> LayerSizes:
    return checked_sizes(
        mechanism, w.d_model, w.num_heads, terms.built_for or w.seq_len, w.num_kv_heads,
        w.value_head_dim,
    )  # fmt: skip


def seeded(
    candidate: Candidate, workload: Workload, terms: Terms, seed: int,
    dtype: str = "float64", device: str = "cpu",
) -> Core:  # fmt: skip
    """Return a mechanism's core, weights drawn from a seed, as a function of q, k and v."""
    mechanism, source = candidate.mechanism, registry.module_of(candidate.name)
    core = seeded_core(mechanism, source, _sizes(mechanism, workload, terms), seed)
    core = core.to(device, getattr(torch, dtype))
    return torch.no_grad()(partial(core, causal=terms.causal))


@contextmanager
def refusals(name: str) -> Iterator[None]:
    """Turn errors of a user's code, and lack of memory, into an error that refuses the row."""
    try:
        yield
    except AttnprofError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise CannotRunError(f"{name} does not fit in memory") from error
        if name in registry.names():
            raise
        raise RequestError(f"{name} does not run: {error_text(error)}") from error


def times_of(
    candidates: Sequence[Candidate], qkv: QueriesKeysValues, terms: Terms,
    budget: Budget,
) -> dict[Candidate, MedianEstimate]:  # fmt: skip
    """Return the time of a forward pass of every candidate's core, called in turns.

    They run in the number format and on the device of ``terms``; on a CPU it is the processor time
    of one thread.
    """
    device, workload = terms.device, workload_of(qkv, terms)
    tensors = [x.to(device, getattr(torch, terms.dtype)) for x in (qkv.q, qkv.k, qkv.v)]
    subjects = []
    for candidate in candidates:
        core: Any = seeded(candidate, workload, terms, terms.seed, terms.dtype, device)
        subjects.append(Subject(core, lambda: None, lambda: None, partial(core, *tensors)))
    with on_device(device):
        clock = cuda_clock(torch, device) if device.startswith("cuda") else None
        timed = time_in_turns(subjects, budget, clock)
    return {c: estimate_median(times) for c, times in zip(candidates, timed, strict=True)}


#: Errors below this are rounding.
EXACT = 1e-9


def tradeoff_report(
    candidates: Sequence[Candidate], inputs: Sequence[QueriesKeysValues], terms: Terms,
    budget: Budget | None, environment: Mapping[str, Any],
) -> Report:  # fmt: skip
    """Return a record a candidate and input; without a ``budget`` nothing is timed.

    A candidate that cannot run is a record with the reason. Raises :class:`RequestError` or
    :class:`CannotRunError` if none can.
    """
    refused: list[AttnprofError] = []
    groups = []
    for place, qkv in enumerate(inputs):
        rows = []
        exact = ExactAttention(qkv, causal=terms.causal)
        for number, candidate in enumerate(candidates, place * len(candidates)):
            total = len(inputs) * len(candidates)
            tell(f"comparing {candidate.name} on {qkv.source}", number, total)
            row = _blank_record(candidate, qkv, terms)
            try:
                row = replace(row, **_costs_and_errors(candidate, exact, terms))
            except (RequestError, CannotRunError) as error:
                refused.append(error)
                row = replace(row, skipped=str(error))
            rows.append(row)
        groups.append(rows)
    if refused and len(refused) == len(candidates) * len(inputs):
        raise together(refused)
    if budget is not None:
        groups = _with_times(groups, candidates, inputs, terms, budget)
    groups = [_mark_pareto(rows) for rows in groups]
    records = [row for rows in groups for row in rows]
    relations = {c.name: list(c.mechanism.to_softmax) for c in candidates}
    nearest = [line for rows, qkv in zip(groups, inputs, strict=True)
               for line in _nearest(rows, workload_of(qkv, terms))]  # fmt: skip
    summary = {"relations": relations, "nearest": nearest, "answer": " ".join(nearest)}
    return Report("tradeoff", records, summary, environment)


def _blank_record(candidate: Candidate, qkv: QueriesKeysValues, terms: Terms) -> TradeoffRecord:
    b, h, n, d = qkv.q.shape
    return TradeoffRecord(
        mechanism=candidate.name, params=candidate.mechanism.params, input=qkv.source,
        norms=qkv.norms, relation=candidate.mechanism.to_softmax[0], causal=terms.causal,
        batch_size=b, seq_len=n, d_model=h * d, num_heads=h, head_dim=d, dtype=terms.dtype,
        device=terms.device, seeds=0,
    )  # fmt: skip


def _costs_and_errors(candidate: Candidate, exact: ExactAttention, terms: Terms) -> dict[str, Any]:
    """Return a candidate's costs by closed form, and its distances over draws of the weights."""
    mechanism, workload = candidate.mechanism, workload_of(exact.inputs, terms)
    if not mechanism.abilities.attend:
        raise RequestError(
            f"{candidate.name} has no queries and keys: it is no approximation of softmax attention"
        )
    table = mechanism.cost(workload, "core")
    check_memory(mechanism, workload)
    weights = mechanism.core_weights(_sizes(mechanism, workload, terms)).values()
    drawn = any(weight is not None and isinstance(weight.start, str) for weight in weights)
    count = terms.seeds if drawn else 1
    distances: list[Distance] = []
    for seed in range(terms.seed, terms.seed + count):
        core = seeded(candidate, workload, terms, seed)
        with refusals(candidate.name):
            distance = exact.distance(core, distribution=not distances)
        if distance is None:
            raise CannotRunError(f"{candidate.name} gives NaN or infinite numbers in float64")
        distances.append(distance)
    errors = [distance.relative for distance in distances]
    return {
        "seeds": count, "error_relative": median(errors), "error_relative_low": min(errors),
        "error_relative_high": max(errors),
        "error_worst_row": median(distance.worst_row for distance in distances),
        "error_distribution": distances[0].distribution, "weights": distances[0].weights,
        "flops": int(table.flops), "bytes_moved": int(table.total.bytes_moved),
        "peak_bytes": int(table.peak()),
    }  # fmt: skip


def _with_times(
    groups: list[list[TradeoffRecord]], candidates: Sequence[Candidate],
    inputs: Sequence[QueriesKeysValues], terms: Terms, budget: Budget,
) -> list[list[TradeoffRecord]]:  # fmt: skip
    """Return the rows with times of every candidate, on the first input of a size that it takes."""
    times: dict[Workload, dict[Candidate, MedianEstimate]] = {}
    timed_groups = []
    for rows, qkv in zip(groups, inputs, strict=True):
        workload = workload_of(qkv, terms)
        runs = [c for c, row in zip(candidates, rows, strict=True) if row.skipped is None]
        size_times = times.setdefault(workload, {})
        if untimed := [c for c in runs if c not in size_times]:
            size_times |= times_of(untimed, qkv, terms, budget)
        timed = []
        for candidate, row in zip(candidates, rows, strict=True):
            time = None if row.skipped else size_times.get(candidate)
            timed.append(row if time is None else replace(
                row, median_s=time.median_s, ci_low_s=time.low_s, ci_high_s=time.high_s
            ))  # fmt: skip
        timed_groups.append(timed)
    return timed_groups


def _mark_pareto(rows: Sequence[TradeoffRecord]) -> list[TradeoffRecord]:
    """Return the rows marked ``pareto`` unless another has no more FLOPs and no larger error."""
    costs = [(row.flops, _error_or_zero(row)) for row in rows if row.skipped is None]

    def beaten(one: tuple[Any, float]) -> bool:
        return any(o != one and o[0] <= one[0] and o[1] <= one[1] for o in costs)

    return [
        row if row.skipped else replace(row, pareto=not beaten((row.flops, _error_or_zero(row))))
        for row in rows
    ]


def _error_or_zero(row: TradeoffRecord) -> float:
    """Return the error, or 0 if it is just rounding."""
    error = row.error_relative or 0.0
    return 0.0 if error < EXACT else error


def _nearest(rows: Sequence[TradeoffRecord], workload: Workload) -> Iterator[str]:
    """Yield a sentence: which mechanism cheaper than softmax attention has the least error."""
    whole = int(registry.get("standard").cost(workload, "core").flops)
    named = zip(rows, names_of(rows), strict=True)
    cheaper = [
        (row, name) for row, name in named
        if row.flops is not None and row.flops < whole and row.relation in ("approximates", "")
    ]  # fmt: skip
    if not cheaper:
        return
    row, name = min(cheaper, key=lambda pair: _error_or_zero(pair[0]))
    norms = f" ({row.norms})" if row.norms else ""
    share = format_ratio(row.flops or 0, whole)
    yield (
        f"{row.input}{norms}: with fewer FLOPs than softmax attention, {name} is nearest, at "
        f"{format_number(_error_or_zero(row), short=True)} of the output's norm and {share}× its "
        "FLOPs."
    )
