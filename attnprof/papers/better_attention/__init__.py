"""You Need to Pay Better Attention (000), replayed."""
