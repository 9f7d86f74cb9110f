"""Scaled dot-product attention, written out and fused."""
