"""Start child processes with limits, end them, and tell how they failed."""
