"""What touches hardware: clocks, memory, second-opinion counters, processes of their own."""
