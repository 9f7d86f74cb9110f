"""Whether a printed formula is what the code does: read, matched against ours, told apart."""
