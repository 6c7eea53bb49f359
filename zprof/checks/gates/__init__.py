"""Gates: each reads one quantity of a run and its baseline, to be judged against a limit."""
