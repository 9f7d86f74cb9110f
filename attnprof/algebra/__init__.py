"""Formula text: one parser and one evaluator, bounded on any input; light to import."""
