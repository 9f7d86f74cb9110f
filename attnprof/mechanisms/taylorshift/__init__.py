"""TaylorShift (004): direct, efficient, and the one that switches."""
