"""Formula text: one parser and one evaluator, bounded on any input; no torch, no sympy at import."""
