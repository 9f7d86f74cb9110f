"""What only a clock, an allocator or a sampler can say of 004; here Figure 2's encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from attnprof.measure.clocks import time_in_turns
from attnprof.measure.measured_crossovers import first_crossing
from attnprof.measure.memory import measure_peak
from attnprof.measure.request import Budget
from attnprof.measure.subject import Subject
from attnprof.papers.taylorshift.crossings import clocked, measure_crossovers, root
from attnprof.papers.taylorshift.norms import fit_norms, measure_norms
from attnprof.registry import get, module_of

STANDARD, DIRECT, EFFICIENT = MODELS = ("standard", "taylor-direct", "taylor-efficient")
#: Depth, width and MLP of the document's text model (Table 7, IMDB); 8 heads make d = 32 of it.
DEPTH, WIDTH, HEADS, MLP_RATIO = 4, 256, 8, 4
LENGTHS = (128, 256, 512, 750, 1000, 1250, 1500, 1800, 2000, 2500)
BUDGET = Budget(samples=40, max_time_s=4.0, warmup_s=0.1, least=3)


def encoder(mechanism: str, seq_len: int) -> Subject:
    """A pre-norm encoder with drawn weights, and its call on one sequence without gradients."""
    import torch
    from torch import nn

    from attnprof.blocks.assemble import build_layer, checked_sizes

    torch.manual_seed(0)
    spec = get(mechanism)
    sizes = checked_sizes(spec, WIDTH, HEADS, seq_len)

    def block() -> list[nn.Module]:
        inner = MLP_RATIO * WIDTH
        mlp = nn.Sequential(nn.Linear(WIDTH, inner), nn.GELU(), nn.Linear(inner, WIDTH))
        attention = build_layer(spec, module_of(mechanism), sizes)
        return [nn.LayerNorm(WIDTH), attention, nn.LayerNorm(WIDTH), mlp]

    blocks = [block() for _ in range(DEPTH)]
    tokens = torch.randn(1, seq_len, WIDTH)

    @torch.no_grad()
    def call() -> torch.Tensor:
        x = tokens
        for before, attention, between, mlp in blocks:
            x = x + attention(before(x))
            x = x + mlp(between(x))
        return x

    def nothing() -> None:
        """There is nothing to prepare."""

    return Subject(nn.ModuleList(m for one in blocks for m in one), nothing, nothing, call)


@cache
def peak(mechanism: str, seq_len: int) -> int:
    """Most bytes an encoder holds over its weights and input, by the allocator."""
    import torch

    return measure_peak(encoder(mechanism, seq_len), "cpu", torch).bytes


def measure_encoder(sizes: Sequence[int] = LENGTHS, budget: Budget = BUDGET) -> dict[str, Any]:
    """Memory and time of the three encoders, their ratios efficient by standard, crossovers.

    ``memory_crossover`` is exact: the first length at which the efficient encoder's peak is not
    above the standard one's. ``time_crossover`` lies on a line between two measured lengths.
    """
    peak.cache_clear()
    rows = [row for n in sizes for row in _point(n, budget)]
    known = {(row["mechanism"], row["seq_len"]): row for row in rows}
    memory, time = (
        {n: known[EFFICIENT, n][name] / known[STANDARD, n][name] for n in sizes}
        for name in ("peak_bytes", "time_s")
    )
    return {
        "seq_len": list(sizes),
        "memory_ratio": list(memory.values()),
        "time_ratio": list(time.values()),
        "memory_crossover": memory_crossing(memory),
        "time_crossover": crossing(time),
        "curves": rows,
        "model": {"depth": DEPTH, "d_model": WIDTH, "num_heads": HEADS, "head_dim": WIDTH // HEADS,
                  "mlp_ratio": MLP_RATIO, "batch_size": 1},
    }  # fmt: skip


def _point(seq_len: int, budget: Budget) -> list[dict[str, Any]]:
    timed = time_in_turns([encoder(name, seq_len) for name in MODELS], budget)
    return [
        {"mechanism": name, "seq_len": seq_len, **clocked(times), "peak_bytes": peak(name, seq_len)}
        for name, times in zip(MODELS, timed, strict=True)
    ]


def memory_crossing(ratios: Mapping[int, float]) -> int | None:
    """The first length at which the efficient encoder's peak is not the larger one.

    Looked for around where ratios by length say; None where they say nowhere.
    """
    near = crossing(ratios)
    if near is None:
        return None
    return first_crossing(lambda n: peak(STANDARD, n) - peak(EFFICIENT, n), round(near))


def crossing(ratios: Mapping[int, float]) -> float | None:
    """Where ratios by length fall below 1 for good; None where they do not."""
    last = [(a, b) for a, b in pairwise(ratios) if ratios[a] > 1 >= ratios[b]]
    if not last or ratios[max(ratios)] > 1:
        return None
    return root({n: ratios[n] for n in last[-1]})


#: In this order: the fits are to the norms.
MEASUREMENTS: dict[str, Callable[[], Any]] = {
    "crossovers": measure_crossovers,
    "encoder": measure_encoder,
    "norms": measure_norms,
    "fits": fit_norms,
}
