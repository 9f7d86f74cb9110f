"""Neural Attention (001): a small network scores every pair of query and key."""
