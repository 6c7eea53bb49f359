"""Align the clocks of the ranks, using the collectives themselves."""
