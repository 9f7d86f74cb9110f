"""The mechanisms: a file a family, or a folder with ``spec.py`` and, of torch, ``module.py``."""
