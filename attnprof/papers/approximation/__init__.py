"""Attention Approximation (003), replayed."""
