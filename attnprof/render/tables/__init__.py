"""The tables that commands print, from their reports; nothing here computes."""
