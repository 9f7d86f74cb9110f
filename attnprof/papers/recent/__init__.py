"""Papers of 2024 and 2025: single claims of theirs, replayed."""
