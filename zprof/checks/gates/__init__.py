"""The gates: each reads one quantity of a run and of its baseline, and says whether the limit holds."""
