"""Five documents and recent papers, replayed: tables as data, claims recomputed, figures drawn.

One folder a document. ``claims.toml`` says how each claim is answered, ``checks*.py`` compute what
it takes (``OURS``); ``figures.py`` makes its tables again and the data of its figures (``TABLES``,
``FIGURES``), ``measurements.py`` what only a clock, an allocator or a sampler can say
(``MEASUREMENTS``); ``tables/`` and ``verdicts.csv`` are data.
"""
