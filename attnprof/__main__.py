"""`python -m attnprof`."""

from attnprof.cli.app import main

main()
