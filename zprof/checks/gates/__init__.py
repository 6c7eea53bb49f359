"""The gates: each reads one quantity of a run and of its baseline, to be judged against a limit."""
