"""The five documents, replayed: their tables as data, their claims recomputed, their figures.

One folder a document. ``claims.toml`` says how each claim is answered, ``checks*.py`` compute what
it takes (``OURS``); ``tables.py`` regenerates its tables (``TABLES``, or in ``figures.py``),
``figures.py`` the data of its figures (``FIGURES``), ``measurements.py`` what only a clock, an
allocator or a sampler can say (``MEASUREMENTS``); ``tables/`` and ``verdicts.csv`` are data.
"""
