"""Run candidates: draw their weights, turn failures into refusals, time them in turns."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from attnprof import registry
from attnprof.blocks.core import checked_sizes, seeded_core
from attnprof.errors import AttnprofError, CannotRunError, RequestError
from attnprof.measure.clocks import cuda_clock, time_in_turns
from attnprof.measure.point import available_bytes
from attnprof.measure.request import Budget
from attnprof.measure.statistics import MedianEstimate, estimate_median
from attnprof.measure.subject import Subject, is_out_of_memory
from attnprof.measure.tradeoff.candidates import Candidate
from attnprof.measure.tradeoff.distances import Core
from attnprof.measure.tradeoff.structures import QueriesKeysValues
from attnprof.mechanism import Mechanism
from attnprof.ops.layer import LayerSizes
from attnprof.units import format_bytes
from attnprof.user_code import error_text
from attnprof.workload import Workload

#: Tensors as large as the inputs that a comparison holds beside what the candidate does.
COPIES = 6


@dataclass(frozen=True)
class Terms:
    """The conditions of all rows.

    A mechanism made for one length is made for ``built_for`` tokens (None: the input's length).
    """

    causal: bool = False
    dtype: str = "float32"
    device: str = "cpu"
    seeds: int = 3
    seed: int = 0
    built_for: int | None = None


def workload_of(given: QueriesKeysValues, terms: Terms) -> Workload:
    """Return the sizes of an input, as closed forms take them."""
    (b, h, n, d), (_, g, m, dv) = given.q.shape, given.v.shape
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


def draws_of(mechanism: Mechanism, workload: Workload, terms: Terms) -> int:
    """Return how many draws of the weights to compare: 1 if they do not start at random."""
    weights = mechanism.core_weights(_sizes(mechanism, workload, terms)).values()
    drawn = any(weight is not None and isinstance(weight.start, str) for weight in weights)
    return terms.seeds if drawn else 1


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
    candidates: Sequence[Candidate], given: QueriesKeysValues, terms: Terms,
    budget: Budget,
) -> dict[Candidate, MedianEstimate]:  # fmt: skip
    """Return the time of a forward pass of every candidate's core, called in turns.

    They run in the number format and on the device of ``terms``; on a CPU it is the processor time
    of one thread.
    """
    device, workload = terms.device, workload_of(given, terms)
    tensors = [x.to(device, getattr(torch, terms.dtype)) for x in (given.q, given.k, given.v)]
    subjects = []
    for candidate in candidates:
        core: Any = seeded(candidate, workload, terms, terms.seed, terms.dtype, device)
        subjects.append(Subject(core, _nothing, _nothing, partial(core, *tensors)))
    clock = cuda_clock(torch, device) if device.startswith("cuda") else None
    timed = time_in_turns(subjects, budget, clock)
    return {c: estimate_median(times) for c, times in zip(candidates, timed, strict=True)}


def _nothing() -> None:
    """Do nothing before or after a call."""
