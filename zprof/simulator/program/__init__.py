"""What every rank's host does in a step, as a list of instructions."""
