"""What each command shows on the terminal, a file a command; nothing here computes."""
