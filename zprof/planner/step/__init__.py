"""The time of a step, and what travels in it."""
