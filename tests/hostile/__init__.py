"""Modules that do what modules of attention should not; each file has one, named ``Att``."""
