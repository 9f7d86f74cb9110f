"""Did it get worse: exact comparison of what has no noise, paired statistics for what has."""
