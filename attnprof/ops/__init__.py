"""Counting tensors: what torch would do with the same text, in operations, bytes and memory."""
