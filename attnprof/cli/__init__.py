"""The command line: one file a command, which parses, asks one room, renders and exits."""
