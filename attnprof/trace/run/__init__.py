"""Record what one run of a target does: every ATen operation, its cost, storages made and freed.

``runs`` makes a run in one of three ``worlds`` (fake, meta, real tensors), within ``limits``, and
compares calls of one module; ``recorder`` records it.

- symbolic sizes: ``symbols``, ``torch_under_symbols``, ``remainders``;
- values: ``values``, ``experts``;
- what the user's code must not notice, or leave changed: ``disguise``, ``surroundings``;
- the submodule that runs: ``submodules``; speed: ``remembered``.
"""
