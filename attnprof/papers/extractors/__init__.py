"""Attention Is Not All You Need Anymore (002), replayed."""
