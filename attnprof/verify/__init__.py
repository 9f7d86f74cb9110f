"""Decide whether a printed formula is what the code does: read it, derive ours, compare both."""
