"""Closed forms from running code: what a module executes and holds, counted on fake tensors.

``recorder`` watches one run, ``rules`` say what an ATen operation costs, ``liveness`` what is held
at the worst moment; ``symbolic_run`` and ``interpolation`` are the two ways to a formula, and
``verification`` holds every formula against runs at other shapes.
"""
