"""Find the rank that made the others wait, and why it was late."""
