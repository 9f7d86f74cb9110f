"""Measure many points, over hours and machines, into one file that survives interruptions."""
