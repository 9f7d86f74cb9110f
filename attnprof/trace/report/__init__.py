"""What a derivation is and says: its formulas, records, where costs arise, memory on a GPU."""
