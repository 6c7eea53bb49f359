"""Start child processes with limits, end them, and report how they failed."""
