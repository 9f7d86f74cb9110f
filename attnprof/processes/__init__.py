"""Processes that may die, hang or fork on: what runs in them ends, and leaves nothing behind.

``forks`` runs one piece of work in a fork and says how it ended, ``pool`` does that from any
process, or in fresh ones that a ``server`` forks, ``supervision`` for a whole command; ``folders``
are temporary ones that go with their process, however it ends.
"""
