"""Sparse Transformer: strided and fixed patterns."""
