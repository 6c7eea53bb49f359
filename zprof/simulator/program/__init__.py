"""Generate the instructions of every rank's host in a step."""
