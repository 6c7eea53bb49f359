"""Compute the ground truth from the schedule."""
