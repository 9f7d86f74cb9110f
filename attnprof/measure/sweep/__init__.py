"""Many points, over hours and machines, into one file that survives whatever happens."""
