"""Measure on hardware: time and memory of one point, checks against other counters, sweeps."""
