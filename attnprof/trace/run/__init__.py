"""Record what one run of a target does: every ATen operation, its cost, storages made and freed.

``runs`` makes a run in one of three ``worlds`` (fake, meta, real tensors), within ``limits``;
``recorder`` records it, ``call_by_call`` compares calls of one module.

- symbolic sizes: ``symbols``, ``torch_under_symbols``, ``remainders``, ``classes``, ``quotients``,
  ``table_keys``;
- values: ``values``, ``chance``, ``experts``, ``expert_rows``, ``choices``;
- what the user's code must not notice, or leave changed: ``disguise``, ``lazy``, ``surroundings``;
- what belongs where: ``submodules``, ``replays``, ``unsupported``;
- speed: ``remembered``, ``once``.
"""
