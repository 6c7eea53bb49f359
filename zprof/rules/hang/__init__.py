"""Rules about a job that is stuck."""
