"""What one run of a target does: every ATen operation, its cost, storages made and freed."""
