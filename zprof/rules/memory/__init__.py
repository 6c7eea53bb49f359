"""Rules about memory: which tenants hold bytes at the peak that a change would free."""
