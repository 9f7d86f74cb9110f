"""Everything that touches hardware: clocks, memory, other counters, processes for measuring."""
