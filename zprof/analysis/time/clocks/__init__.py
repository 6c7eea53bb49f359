"""The clocks of the ranks, brought together from the collectives themselves."""
