"""Tests run as commands do: see :func:`attnprof.cli.app.main`, whose settings these are.

Imports make objects that stay: collections that run meanwhile find nothing to free.
"""

import gc
import os

gc.set_threshold(100_000)
os.environ.setdefault("SYMPY_CACHE_SIZE", "50000")
