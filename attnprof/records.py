"""Kinds of record."""

from attnprof.record import *  # noqa: F403
