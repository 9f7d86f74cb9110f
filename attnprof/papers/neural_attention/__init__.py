"""Neural Attention (001), replayed."""
