"""Parts of the mechanisms' code that several share: layers, caches, products by blocks of rows.

A mechanism's core is written once, against torch's tensor methods. The same text runs on torch's
tensors and on :mod:`attnprof.ops`' counting tensors, which give its cost.
"""
