"""`attnprof list`."""

from __future__ import annotations

from attnprof.cli.options import Format, FormatOption, OutputOption


def list_(fmt: FormatOption = Format.TABLE, output: OutputOption = None) -> None:
    """Mechanisms."""
