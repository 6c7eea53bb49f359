"""Questions of one's own: SQL over the tables of a run."""
