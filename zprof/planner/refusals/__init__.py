"""Checks of a job, by what they look at."""
