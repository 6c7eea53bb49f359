"""Predict what a job costs before it runs, and what one change would do to a measured run."""
