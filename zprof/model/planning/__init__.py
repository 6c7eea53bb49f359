"""Words of the planner: the job that is asked about, what it would cost, and what a change would change."""
