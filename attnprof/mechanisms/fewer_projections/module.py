"""Cores of Optimised, Efficient and Super Attention."""

from __future__ import annotations

from attnprof.mechanisms.standard.module import StandardCore

CORES = {"optimised": StandardCore, "efficient": StandardCore}
