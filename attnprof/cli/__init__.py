"""One file a command: parse, one call, render, exit code."""
