"""Figures from reports; matplotlib is imported when one is drawn."""
