"""The terminal UI: a report on a screen, every number of which can be opened."""
