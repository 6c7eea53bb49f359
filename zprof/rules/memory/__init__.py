"""Rules about memory: who holds bytes of the peak that a change would free."""
