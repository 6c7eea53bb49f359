"""Compare two runs: their differences, the same figures of both, and whether a change is more than noise."""
