"""Run a program on all ranks at once, and record when everything happened."""
