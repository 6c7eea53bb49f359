"""Replays of the measured step without a cause, to price findings and to find further causes."""
