"""TaylorShift (004), replayed."""
