"""What devices can do at most, and how near a measurement comes.

``table`` has makers' figures with their source; ``calibration`` measures the ceilings of a device
that is not in it; ``roofline`` sets a record beside them. Nothing is guessed.
"""
