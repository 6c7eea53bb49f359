"""Sharded steps with a known truth, as traces that a real job could have left."""
