"""Attention whose weights are a product of two thin factors."""
