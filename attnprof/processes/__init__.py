"""Processes that may die, hang or fork on: what runs in them ends, and leaves nothing behind."""
