"""Closed forms solved: head optima, costs as text and LaTeX."""
