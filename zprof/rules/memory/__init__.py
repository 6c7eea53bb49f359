"""Rules about memory: bytes at the peak that a change would free, by tenant."""
