"""Replay the measured step without a cause, to estimate savings and to find further causes."""
