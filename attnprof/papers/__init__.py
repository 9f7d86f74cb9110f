"""The five documents, replayed: their tables as data, their claims recomputed, their figures.

One folder a document. ``checks*.py`` there hold ``CHECKS``, how each claim is answered;
``tables.py`` regenerates its tables (``TABLES``, or in ``figures.py``), ``figures.py`` the data of
its figures (``FIGURES``), ``measurements.py`` what only a clock, an allocator or a sampler can say
(``MEASUREMENTS``); ``tables/`` and ``verdicts.csv`` are data.
"""
