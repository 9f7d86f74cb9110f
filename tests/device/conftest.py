"""Tests of devices run commands as those of the command line do."""

from tests.cli.conftest import attnprof

__all__ = ["attnprof"]
