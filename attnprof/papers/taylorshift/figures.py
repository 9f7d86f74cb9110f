"""004's figures. Figures 3 and 6 show trainings, which are not run here."""

from __future__ import annotations

from attnprof.papers.regenerated import Figure
from attnprof.papers.taylorshift.figure_costs import encoders, heads
from attnprof.papers.taylorshift.figure_sizes import errors, norms

FIGURES: dict[str, Figure] = {
    "1": Figure("Time and memory of one head over length", heads, measured=True),
    "2": Figure("An encoder with d = 32: memory and time", encoders, measured=True),
    "4": Figure("Mean norms of intermediate results", norms, measured=True),
    "5": Figure("Errors of the fitted laws", errors, measured=True),
}
NOT_MADE = {
    "3": "ImageNet accuracy early in training: it needs that training, on several GPUs",
    "6": "accuracy by length of a trained ListOps model: it needs its training and its test set",
}
