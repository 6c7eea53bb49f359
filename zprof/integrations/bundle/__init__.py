"""What support needs of a run, in one file, and nothing that the run's owner did not mean to give."""
