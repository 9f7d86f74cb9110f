"""Did it get worse: exact comparison of what has no noise, paired statistics for what has.

``paired`` judges times of two revisions taken in turns; ``rules`` say what a case can get.
"""
