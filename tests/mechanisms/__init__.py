"""Every mechanism against definitions, counters and the allocator."""
