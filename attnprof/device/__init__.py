"""What devices can do at most, and how near a measurement comes.

``ceilings`` has makers' figures with their source, and measures those of a device that is not
among them; ``roofline`` sets a record beside them. Nothing is guessed.
"""
