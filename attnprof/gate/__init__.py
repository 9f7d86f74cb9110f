"""Did code get worse: counts are compared exactly, times by paired statistics."""
