"""One folder a mechanism or family: ``spec.py`` without torch, ``module.py`` with it."""
