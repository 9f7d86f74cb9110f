"""Torch building blocks that mechanisms share: the layer around a core, caches."""
