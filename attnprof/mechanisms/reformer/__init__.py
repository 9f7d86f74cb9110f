"""Reformer: softmax attention within buckets of a locality-sensitive hash."""
