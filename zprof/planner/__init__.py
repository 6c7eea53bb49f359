"""Predicts what a job would cost before it runs, and what one change would make of a measured run."""
