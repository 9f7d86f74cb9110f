"""Longformer: a window of neighbours and a few global tokens."""
