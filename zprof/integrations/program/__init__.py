"""Starts the recording of a program that knows nothing of it: in this process, or in a command's children."""
