"""Find the causes in a run, price them, and give the verdict."""
