"""What only a clock, an allocator or a sampler can say of 004's figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attnprof.papers.taylorshift.crossings import measure_crossovers
from attnprof.papers.taylorshift.encoder import measure_encoder
from attnprof.papers.taylorshift.norms import fit_norms, measure_norms

#: In this order: the fits are to the norms.
MEASUREMENTS: dict[str, Callable[[], Any]] = {
    "crossovers": measure_crossovers,
    "encoder": measure_encoder,
    "norms": measure_norms,
    "fits": fit_norms,
}
