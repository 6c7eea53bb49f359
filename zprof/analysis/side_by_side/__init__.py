"""The leaves of two runs, paired by what they are of."""
