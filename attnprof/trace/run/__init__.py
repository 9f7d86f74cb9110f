"""One run of a target, recorded operation by operation."""
