"""Pages' commands run as those of the command line's own tests."""

from tests.cli.conftest import attnprof

__all__ = ["attnprof"]
