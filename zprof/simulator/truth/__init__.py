"""What really happened, computed from the schedule."""
