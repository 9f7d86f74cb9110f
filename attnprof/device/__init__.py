"""What devices can do at most, and how near a measurement comes."""
