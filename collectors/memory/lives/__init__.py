"""Storages from birth to death, the phase and the stack they were born in, and the log of all of it."""
