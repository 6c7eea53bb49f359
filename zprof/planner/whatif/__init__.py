"""A measured run, modelled, and changed in one thing."""
