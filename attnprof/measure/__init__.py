"""What touches hardware: clocks, memory, second-opinion counters, isolation."""
