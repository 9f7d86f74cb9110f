"""Many points, over hours and machines, into one file that survives whatever happens.

``plan`` says which points, ``journal`` keeps their records one line each, ``runner`` measures what
the journal does not have yet, here or on a cluster's workers.
"""
