"""Run code that may die, hang or fork in processes of its own, and leave nothing running."""

#: New objects between two looks for garbage: modules and formulas are many objects that stay.
SELDOM = 100_000
