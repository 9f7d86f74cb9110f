"""Report to text or figure; nothing here computes."""
