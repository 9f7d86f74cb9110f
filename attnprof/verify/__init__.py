"""Decide whether a printed formula is right: read it, derive ours from code, compare both."""
