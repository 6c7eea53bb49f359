"""Recorder of programs that do not know zprof: finds their steps, models and optimizers."""
