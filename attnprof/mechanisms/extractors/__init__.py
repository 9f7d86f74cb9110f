"""The Extractors of document 002: SHE, HE, WE and ME, causal by nature."""
