"""Find out what a stuck job waits for, from the flight recorders of its ranks."""
