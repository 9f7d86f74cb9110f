"""Render a report as text or figure; nothing here computes."""
