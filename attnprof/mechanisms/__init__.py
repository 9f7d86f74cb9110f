"""The mechanisms: a file each or a family, or a folder with ``spec.py`` and a torch ``module.py``."""
