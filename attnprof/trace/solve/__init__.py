"""Closed forms of a target: by a symbolic run or by interpolation, verified against other runs."""
