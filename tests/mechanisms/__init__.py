"""Every mechanism against definitions, counters and the allocator."""

import pytest

pytest.register_assert_rewrite("tests.mechanisms.checks")
