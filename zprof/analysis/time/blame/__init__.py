"""Who made the others wait, and why it was late."""
