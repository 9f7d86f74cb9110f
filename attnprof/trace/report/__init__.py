"""The results of a derivation: formulas, records, costs by submodule, peaks on a GPU."""
