"""Devices: their ceilings, their calibration, and times predicted by it."""
