"""Single claims of papers of 2024 and 2025, replayed."""
