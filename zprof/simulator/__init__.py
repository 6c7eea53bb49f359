"""Simulate sharded steps with a known truth, written as traces that a real job could have left."""
