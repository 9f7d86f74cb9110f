"""Second ways to the same numbers, sharing no code with the package."""
