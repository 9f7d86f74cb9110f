"""Derive closed forms of a target, verify them by runs at other shapes, and say where they hold.

``derive`` tries the ``strategies`` in turn; each ends in formulas with a domain:

- symbolic: ``symbolic`` (one run), ``turns`` (loops that our code marks), ``domain`` and
  ``conditions`` (torch's guards), ``single_sizes`` (a size that a guard excludes);
- mixed: ``plan`` and ``block_lengths`` (which sizes are numbers), ``mixture`` (their runs),
  ``accounts``, ``axes`` and ``lattice`` (the fit), ``worst`` and ``families`` (its peaks),
  ``mixed_forms`` and ``blocks`` (formulas over sizes), ``mixed``, ``reach``, ``probes`` and
  ``fewer`` (their domain);
- interpolated: ``search`` (one size), ``grid`` and ``columns`` (all), ``interpolation``.

All are verified by concrete runs: ``budget``, ``shapes``, ``contradictions``, ``later_calls``;
``count`` and ``small_runs`` compare with real tensors and other random numbers. ``squares`` and
``even_routing`` are special sizes; ``one_shape`` and ``reasons`` answer if there is no formula.
"""
