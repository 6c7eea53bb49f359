"""Simulate sharded steps with known ground truth, written as traces that a real job could produce."""
