"""Imports make objects that stay: collections that run meanwhile find nothing to free."""

import gc

gc.set_threshold(100_000)
