"""Attention with fewer projections: Optimised, Efficient and Super Attention (000)."""
