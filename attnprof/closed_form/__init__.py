"""Closed forms solved: crossovers, head optima, costs as text and LaTeX."""
