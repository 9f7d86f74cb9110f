"""Processes that may die, hang or fork on: what runs in them ends, and leaves nothing behind.

``keeping`` runs one piece of work in a fork and says how it ended, ``apart`` does that from any
process, ``supervision`` for a whole command; ``folders`` are temporary ones that go with their
process, however it ends.
"""
