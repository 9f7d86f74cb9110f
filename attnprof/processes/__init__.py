"""Run code that may die, hang or fork in processes of its own, and leave nothing running."""
