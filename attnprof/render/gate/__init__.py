"""A report of ``check`` for everybody who reads one: people, test runners, pull requests."""
