"""Five documents and recent papers, replayed: tables as data, claims recomputed, figures drawn.

One folder a document. ``claims.toml`` describes the check of each claim, ``checks*.py`` compute our
values (``OURS``). ``figures.py`` recomputes tables and the data of figures (``TABLES``,
``FIGURES``). ``measurements.py`` has everything that needs a clock, an allocator or a sampler
(``MEASUREMENTS``). ``tables/`` and ``verdicts.csv`` are data.
"""
