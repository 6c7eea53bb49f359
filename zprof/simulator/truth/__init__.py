"""Compute from the schedule what really happened."""
