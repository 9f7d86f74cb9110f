"""Derive closed forms of a target, verify them by runs at other shapes, and say where they hold.

``derive`` tries the ``strategies`` in turn; each ends in formulas with a domain:

- symbolic: ``symbolic`` (one run), ``turns`` (loops that our code marks), ``domain`` and
  ``conditions`` (torch's guards);
- mixed: ``plan`` (which sizes are numbers), ``mixture`` (their runs), ``accounts`` and ``lattice``
  (the fit), ``mixed_forms`` (formulas over sizes), ``mixed`` (their domain);
- interpolated: the same of concrete runs, in which all sizes are numbers.

All are verified by concrete runs: ``verification``; ``smaller_sizes`` extends domains, ``count``
and ``small_runs`` compare with real tensors and other random numbers.
"""
